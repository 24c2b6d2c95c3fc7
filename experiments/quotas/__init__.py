"""Register memory that certified quotas save at equal throughput, and optimisers of quotas for very many registers.

instances        quota problems made at random or by a formula
linear, cycles   the linear relaxation of a quota problem, and cuts that raise its bound
settle           whole quotas for very many registers, from the relaxation's start times
"""

"""Parallelism: from a logical graph and a cluster to a verified Plan; options, stages x mesh x micro-batches, and memory.

Its entry points are make_plan and search_plans in planner.parallelism.make.  This file imports nothing, because the simulator reads
planner.parallelism.asked_quotas and must not load the search and its solvers for that.
"""

"""The quick tracer.

record.py      writes the graph
traced.py      the tensors that a module computes with meanwhile
views.py       views as other names of a tensor, and what a write through one makes of it
operators.py   what is asked of torch's operators
"""

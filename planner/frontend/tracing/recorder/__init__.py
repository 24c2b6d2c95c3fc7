"""The quick tracer.

record.py      writes the graph
traced.py      the tensors that a module computes with meanwhile
views.py       views as other names of a tensor, and the inverses of view ops
writes.py      what a write makes of a tensor and of its views
operators.py   what is asked of torch's operators
"""

"""Tracing: from a module to an fx graph of one micro-batch, with the role and the module of every node."""

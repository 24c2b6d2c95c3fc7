"""The planner: an ``nn.Module`` and a cluster go in, one Plan of actors and registers comes out.

Importing ``planner`` or ``planner.ir`` loads neither torch nor a solver nor simpy.
"""

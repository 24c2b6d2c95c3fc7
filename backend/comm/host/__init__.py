"""Shared memory between the processes of one host: the blocks that transfers write to, collectives, and messages between ranks."""

"""A worker: the process that performs one rank's actors."""

from backend.worker.registers import RUNTIME_BYTES, Registers

__all__ = ["RUNTIME_BYTES", "Registers"]

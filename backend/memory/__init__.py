"""The memory of Regsts, and the options by which a run holds it.

arena              one allocation that holds all blocks of a rank
block              one copy of a Regst; a Regst of quota q has q of them
registers          all blocks of a rank
operand bindings   the tensors that one actor reads and writes in an act (backend.ops.bindings)
workspace          values inside a fragment, in memory that was planned for them (backend.ops.workspace)
"""

from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode

__all__ = ["DEFAULT_MEMORY", "MemoryOptions", "RegisterMode"]

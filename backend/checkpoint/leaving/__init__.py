"""How the last state of a run reaches whoever started it: in files or in shared memory, read tensor by tensor when one is asked for.

a run that saves                                     its checkpoint of the last step is all that it leaves
ranks of one host whose registers are STATIC         their state lies in memory of the launcher's from the first step on; nothing is written
any other run                                        rank r --its shares, not synced--> state/rank000r.pt in the run's folder --> the launcher maps them

The launcher reads nothing by itself, so neither its memory nor its time follows the state's size.  A mapped file lives on when the run's folder
(or an older checkpoint) is removed; it goes with the last FinalState that reads it, and so does the memory.
"""

from backend.checkpoint.leaving.files import leave_state, left_file
from backend.checkpoint.leaving.final import FinalState, final_state
from backend.checkpoint.leaving.memory import StateMemory, own_state_memory, state_memory

__all__ = ["FinalState", "StateMemory", "final_state", "leave_state", "left_file", "own_state_memory", "state_memory"]

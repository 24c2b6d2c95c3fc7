"""The backend: performs Plans, in one process (``perform``, the meaning) or on real ones (``run``), and measures them.

It may import ``planner``, never ``simulator`` or ``regista``.
"""

from backend.launch import run
from backend.measure.microbench import microbench
from backend.measure.profile import Profile, profile
from backend.reference import ReferencePerformer, perform
from backend.run_folder import Outcome

__all__ = ["Outcome", "Profile", "ReferencePerformer", "microbench", "perform", "profile", "run"]

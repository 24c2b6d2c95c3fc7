"""The one error family.  Every refusal states the law, the numbers and the way out."""

from __future__ import annotations

__all__ = [
    "Cancelled",
    "CheckFailed",
    "DeadLock",
    "InvalidCluster",
    "InvalidFile",
    "InvalidPlan",
    "InvalidProgram",
    "InvalidTrace",
    "Mismatch",
    "NotFinite",
    "OutOfMemory",
    "PlanDoesNotComputeProgram",
    "RegistaError",
    "UnknownOp",
    "Unsupported",
    "Untrusted",
    "WorkerFailed",
]


class RegistaError(ValueError):
    """Anything that the user can mend.  The command line turns it into one message and exit code 2."""


class InvalidFile(RegistaError):
    """A file is missing, truncated, of another kind, or of another schema version."""


class InvalidProgram(RegistaError):
    """The module, its inputs, its loss or its optimizer cannot be traced as one training step."""


class UnknownOp(RegistaError):
    """An op of the graph has no SBP rule or no kernel."""


class Unsupported(RegistaError):
    """A legal request that this version does not carry out; it is refused rather than guessed."""


class Cancelled(RegistaError):
    """A search was ended by its caller before it had a plan."""


class InvalidCluster(RegistaError):
    """A cluster description breaks a law (units, counts, positive rates)."""


class InvalidPlan(RegistaError):
    """A Plan breaks a structural law of SEMANTICS 3."""


class DeadLock(InvalidPlan):
    """A Plan is not live (SEMANTICS 4.1); the message names the cycle and the quota that would break it."""


class OutOfMemory(InvalidPlan):
    """A Plan needs more bytes on a device than the device has (SEMANTICS 5, law 5)."""


class PlanDoesNotComputeProgram(InvalidPlan):
    """A Plan computes something else than the program it is given for; the message names the first difference."""


class Untrusted(RegistaError):
    """Code would run that only a file names, and the user has not said that it may."""


class InvalidTrace(RegistaError):
    """A trace breaks one of the six laws of SEMANTICS 5."""


class Mismatch(RegistaError):
    """Two files that should belong together do not (plan and trace, simulated and measured)."""


class CheckFailed(RegistaError):
    """A check of values in forward (an assert, an if that raises) does not hold for a micro-batch; the message names the statement."""


class NotFinite(RegistaError):
    """The loss of a run is nan or infinite; the message names the first op that made it so."""


class WorkerFailed(RegistaError):
    """A process of a run died, hung or raised; the message names the rank and what it was doing."""

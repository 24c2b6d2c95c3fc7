"""What a person asks of a Plan first: how it is split, whether it fits, and what takes its time; from the Plan alone."""

from regista.analysis.answer.answer import Answer, answer
from regista.analysis.answer.limiter import Limiter
from regista.analysis.answer.patterns import Pattern
from regista.analysis.answer.roles import Role

__all__ = ["Answer", "Limiter", "Pattern", "Role", "answer"]

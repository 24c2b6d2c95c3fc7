"""Advice on a job as its framework writes it: read, predicted, searched, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.ir.errors import Unsupported
from regista.jobs.advice.advice import Advice
from regista.jobs.advice.advice import advise as advise_on
from regista.jobs.advice.search import Limits
from regista.jobs.families import family as family_of
from regista.jobs.formats import Asked, read_framework

__all__ = ["advise"]


def advise(
    job: str,
    cluster: str | None = None,
    *,
    family: str | None = None,
    seq: int | None = None,
    vocab: int | None = None,
    ignore: Sequence[str] = (),
    seconds: float = 20.0,
    tries: int = 24,
    say: Callable[[str], None] = lambda _: None,
) -> Advice:
    """What is wrong with a job, how long its step is, and which settings of its framework are better.

    Args:
        job: a file of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed or ours, or Megatron-LM's arguments themselves.
        cluster: a preset with its nodes (``dgx-h100:16``) or a TOML; None: the job says it.
        family, seq, vocab: the model, tokens per sequence and words, for files that do not say.   ignore: unknown settings to be named, not refused.
        seconds: no candidate is begun later.   tries: candidates that are predicted at most.   say: takes a line of progress.

    Raises:
        RegistaError: the file is no job, a setting is unknown or contradicts another, or the job is refused.
    """
    for name, value in (("seconds", seconds), ("tries", tries), ("seq", seq), ("vocab", vocab)):
        if value is not None and not value > 0:
            raise Unsupported(f"--{name} {value}; more than 0 is needed")
    asked = Asked(
        cluster=cluster,
        family=None if family is None else family_of(family),
        seq=seq,
        vocab=vocab,
        ignored=tuple(name.lstrip("-") for name in ignore),
    )
    reading = read_framework(job, asked)
    return advise_on(reading, cluster or str(reading.flags.get("cluster.name")), Limits(seconds=seconds, predictions=tries), say)

"""The cases: one file per kind of model."""

from __future__ import annotations

from experiments.corpus.case import Case
from experiments.corpus.models import audio, causal, common, image, masked, multimodal, pictures, sequences, several, vision

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (
    *causal.CASES,
    *common.CASES,
    *masked.CASES,
    *sequences.CASES,
    *audio.CASES,
    *pictures.CASES,
    *several.CASES,
    *multimodal.CASES,
    *vision.CASES,
    *image.CASES,
)

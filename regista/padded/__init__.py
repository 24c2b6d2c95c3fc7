"""Batches that do not divide: when a program is padded, what a Plan records of it, and what is told of its samples."""

from regista.padded.text import SAMPLES, batch_norm_text, padding_text

__all__ = ["SAMPLES", "batch_norm_text", "padding_text"]

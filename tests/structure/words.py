"""Words that the code once used for things that the field has a word for, and what stands there now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["COINED", "count_words"]

COINED: Mapping[str, str] = MappingProxyType(
    {
        r"(?i:nurser(?:y|ies))": "fork server",
        r"(?i:crews?|crew_of)": "worker group; peers of a task",
        r"(?i:takes? (?:it |them )?into its hands?)|Hands": "operand bindings",
        r"(?i:grips?)": "operand bindings of one act",
        r"Reach": "operand bindings",
        r"(?i:pulses?|beating)": "heartbeat",
        r"(?i:news)": "log relay; progress text",
        r"Words": "channel; messages; cycle text",
        r"(?i:wish(?:es)?)": "request; option",
        r"(?i:slopes?)": "gradients",
        r"(?i:moods?)": "mode",
        r"not the last word": "(said plainly)",
        r"hides? behind": "overlaps with",
        r"an instance per part of a block": "one unshard per pass of a block",
        r"[Tt]urns within": "order within one instant",
        r"memory aside": "without a memory limit",
        r"Less than the least": "below the lower bound",
        r"what the bound is about": "what the bound covers",
        r"stands for the order": "tie-break",
        r"nothing of the step's passes waits": "off the critical path",
        r"(?i:rehears\w*)": "dry run",
    }
)
"""Pattern (whole words) -> the standard words."""


def count_words(root: Path, files: tuple[Path, ...]) -> dict[str, int]:
    """How often each pattern stands in these files."""
    texts = [(root / path).read_text(encoding="utf-8") for path in files]
    return {pattern: sum(len(re.findall(rf"\b(?:{pattern})\b", text)) for text in texts) for pattern in COINED}

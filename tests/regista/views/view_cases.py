"""The plan and the traces that pictures and exports are made of."""

from __future__ import annotations

import re
from dataclasses import replace

from stories import TableCost, pipeline

from planner.ir.traces.trace import Source
from simulator import simulate

PLAN = pipeline(2, 4)
SIM = simulate(PLAN, TableCost({"F0": 0.5}, latency_s=0.1), steps=3)
RUN = replace(simulate(PLAN, TableCost({"F0": 0.75}, latency_s=0.2), steps=5), source=Source.RUN, performer="story")


def svg_texts(path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())

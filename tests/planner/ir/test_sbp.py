"""A layout is one value wherever it was made."""

from __future__ import annotations

import pickle
import subprocess
import sys

from planner.ir.sbp import NdSbp


def test_a_layout_from_another_process_hashes_as_one_made_here() -> None:
    layout = NdSbp.parse("S(0),P(max),B")
    code = "import pickle, sys; from planner.ir.sbp import NdSbp; sys.stdout.buffer.write(pickle.dumps(NdSbp.parse('S(0),P(max),B')))"
    sent = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert {layout: 1}[pickle.loads(sent)] == 1

"""The load of a server at its small size."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from experiments.server.load import main


@pytest.mark.processes
def test_no_request_is_lost_or_mixed_up_and_memory_stays(tmp_path: Path):
    said = main(["--requests", "60", "--clients", "16", "--alone", "0", "--out", str(tmp_path / "load.csv")])
    assert (said["lost"], said["mixed"]) == (0, 0)
    first, _, last = said["memory_MiB"]
    assert last < first + 10
    assert len((tmp_path / "load.csv").read_text().splitlines()) == 1 + 20

"""What verbs leave and print with ``--server`` is what they leave and print without it, to the last byte."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from regista.cli import main
from tests.regista.server.serving import serving

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

JOB = '[model]\nfamily="llama3-8b"\n[cluster]\nname="dgx-h100:2"\n[layout]\ntp=2\npp=4\nglobal_batch=128\n'
TYPED = (
    "clusters",
    "plan zoo:mlp?batch=8 --cluster local:2 --stages 2 --micro-batches 2 -o p.json",
    "simulate p.json --steps 3 -o s.json",
    "run p.json --performer reference --steps 3 --init philox:1",
    "explain p.json --full",
    "whatif p.json --set cluster.links.node.bandwidth_GBps=2.0 -o w.json",
    "diff p.json w.json",
    "quotas p.json --full-throughput -o q.json",
    "loading p.json --data synthetic:float32[256],int64[]:16 -o l.json",
    "sensitivity p.json -o rows.csv",
    "export s.json -o e.json",
    "gantt s.json -o g.png",
    "predict j.toml -o j.csv",
    "advise j.toml --tries 1 -o better.toml",
    "whatif p.json --set cluster.nothing=1",
    "plan zoo:nothing --cluster local:2 -o n.json",
)
TIMED = ("run", "verify", "plan", "whatif", "quotas", "sensitivity", "advise")
"""Verbs whose screen has seconds of this run."""


def test_files_exit_codes_and_screens_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    left: dict[str, dict[str, object]] = {"near": {}, "far": {}}
    with serving(tmp_path / "server") as server:
        for side, found in left.items():
            (tmp_path / side).mkdir()
            monkeypatch.chdir(tmp_path / side)
            Path("j.toml").write_text(JOB)
            for typed in TYPED:
                verb, *argv = typed.split()
                found[typed] = main([*(["--server", server.url] if side == "far" else []), verb, *argv])
                printed = capsys.readouterr()
                found[f"{typed}: screen"] = printed.out if verb not in TIMED else len(printed.out.splitlines())
                found[f"{typed}: errors"] = printed.err if found[typed] else ""
            found |= {path.name: path.read_bytes() for path in Path().iterdir()}
    assert left["far"].keys() == left["near"].keys()
    assert [name for name in left["near"] if left["far"][name] != left["near"][name]] == []
    assert [name for name in TYPED if left["near"][name] != 0] == list(TYPED[-2:])

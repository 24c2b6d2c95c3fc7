"""The command line about values of state: begin, save, go on, look, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.checkpoint import verify
from backend.checkpoint.folder import steps_of
from regista.cli import main

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*ranks on .* cores")]

MODEL = "zoo:gpt?layers=1&width=16&heads=2&vocab=32&batch=8&seq=8"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("plan") / "plan.json")
    assert main(["plan", MODEL, "--cluster", "local:2", "--seconds", "20", "-o", path]) == 0
    return path


def printed_document(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*argv, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_a_run_saves_and_goes_on_where_it_ended(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "saved")
    whole = printed_document(capsys, "run", plan, "--steps", "6", "--init", "philox:3", "--timeout", "120")
    first = printed_document(
        capsys, "run", plan, "--steps", "4", "--init", "philox:3", "--checkpoint", folder, "--save-every", "1", "--timeout", "120"
    )
    rest = printed_document(capsys, "run", plan, "--steps", "6", "--checkpoint", folder, "--resume", "--keep", "2", "--timeout", "120")
    assert first["losses"] + rest["losses"] == whole["losses"] and rest["first_step"] == 4
    assert steps_of(Path(folder)) == (4, 6)
    over = printed_document(capsys, "run", plan, "--steps", "6", "--checkpoint", folder, "--resume", code=2)
    assert "is at step 6 already, 6 were asked for" in over["error"]["message"]
    again = printed_document(capsys, "run", plan, "--steps", "6", "--checkpoint", folder, code=2)
    assert "resume from it (--resume)" in again["error"]["message"]


def test_a_checkpoint_is_shown_verified_and_exported(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = str(tmp_path / "saved"), str(tmp_path / "w.pt")
    run = printed_document(capsys, "run", plan, "--steps", "2", "--checkpoint", folder, "--timeout", "120")
    shown = printed_document(capsys, "checkpoint", "show", folder)
    assert (shown["step"], shown["num_ranks"], shown["plan_id"], shown["model"]) == (2, 2, run["plan_id"], MODEL)
    assert shown["size_bytes"] == sum(shown["files"].values())
    assert printed_document(capsys, "checkpoint", "verify", folder) == shown
    exported = printed_document(capsys, "checkpoint", "export", folder, "--optimizer", "-o", out)
    held = torch.load(out, weights_only=True)
    assert exported["size_bytes"] == Path(out).stat().st_size and held["step"] == 2
    assert {"wte.weight", "ln_f.bias"} <= set(held["model"]) and held["optimizer"]["param_groups"][0]["params"]
    from_file = printed_document(capsys, "run", plan, "--steps", "1", "--init", f"weights:{out}", "--timeout", "120")
    from_checkpoint = printed_document(capsys, "run", plan, "--steps", "1", "--init", f"checkpoint:{folder}", "--timeout", "120")
    assert from_file["losses"] == from_checkpoint["losses"] != run["losses"][:1]


@pytest.mark.thorough
def test_a_damaged_checkpoint_is_refused_by_every_verb(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "saved"
    printed_document(capsys, "run", plan, "--steps", "1", "--checkpoint", str(folder), "--timeout", "120")
    path = folder / "step-00000001" / verify(folder / "step-00000001").files[0].name
    path.write_bytes(path.read_bytes()[:-1])
    for argv in (
        ("checkpoint", "verify", str(folder)),
        ("checkpoint", "export", str(folder), "-o", str(tmp_path / "x.pt")),
        ("run", plan, "--steps", "2", "--checkpoint", str(folder), "--resume"),
        ("run", plan, "--steps", "2", "--init", f"checkpoint:{folder}"),
    ):
        error = printed_document(capsys, *argv, code=2)["error"]
        assert error["type"] == "InvalidFile" and f"{path.name} has" in error["message"], argv
    assert not (tmp_path / "x.pt").exists()

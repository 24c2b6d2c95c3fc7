"""A saved checkpoint, and a copy of it to be damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.checkpoint.checkpoint_cases import drawn_state, save


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 1 saved by four ranks: two stages, ZeRO 3 in each."""
    made = tmp_path_factory.mktemp("checkpoints")
    save(made, "zero3_pipeline2", drawn_state(1), 1)
    return made


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    target = tmp_path / "step-00000001"
    target.mkdir()
    for path in (folder / "step-00000001").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target

"""Files that were made to do more than a file should: none runs code, none leads out of its folder, none writes markup into a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from stories import TableCost, pipeline

from backend.checkpoint.manifest import Manifest, SavedFile, SavedPiece
from backend.checkpoint.saved import check_size
from backend.initial.weights import Weights
from planner.ir.errors import InvalidFile
from regista.verbs.running.run import _save_outputs


class Command:
    """When it is unpickled, a file appears."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.proof,)


def test_weights_that_hold_a_command_are_refused_and_it_is_not_run(tmp_path: Path) -> None:
    proof, path = tmp_path / "proof", tmp_path / "weights.pt"
    torch.save({"w": torch.ones(2), "x": Command(proof)}, path)
    with pytest.raises(InvalidFile, match="cannot be mapped"):
        Weights(str(path)).type_of("w")
    assert not proof.exists()


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a/b.pt", "..", "", "rank0000.pt\0"])
def test_a_manifest_that_names_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidFile, match="is no name of a file"):
        SavedFile(name=name, size_bytes=1, crc32=0)
    with pytest.raises(InvalidFile, match="is no name of a file"):
        SavedPiece(file=name, box=())


def test_a_file_of_a_checkpoint_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"1234")
    (tmp_path / "rank0000.pt").symlink_to(tmp_path / "elsewhere")
    listed = SavedFile(name="rank0000.pt", size_bytes=4, crc32=0)
    manifest = Manifest(plan_id="p", model="m", step=1, next_batch=1, num_ranks=1, states=(), groups=(), files=(listed,))
    with pytest.raises(InvalidFile, match="is a link"):
        check_size(tmp_path / "rank0000.pt", manifest)


def test_outputs_are_not_written_through_a_link_under_a_name_that_could_be_foreseen(tmp_path: Path) -> None:
    bait, out = tmp_path / "bait", tmp_path / "out.pt"
    bait.write_text("mine")
    (tmp_path / "out.pt.tmp").symlink_to(bait)
    _save_outputs(SimpleNamespace(outputs=[{"y": torch.ones(2)}], losses=[1.0]), str(out))  # type: ignore[arg-type]
    assert bait.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bait", "out.pt", "out.pt.tmp"]
    assert torch.load(out, weights_only=True)["loss"].tolist() == [1.0]


@pytest.mark.thorough
def test_markup_in_the_name_of_a_model_is_text_on_a_page(tmp_path: Path) -> None:
    from regista.views.timeline import save_timeline  # loads a drawing library
    from simulator import simulate

    plan, path = replace(pipeline(2, 4), model="</script><script>alert(1)</script>"), tmp_path / "t.html"
    save_timeline(plan, [simulate(plan, TableCost({}, default_s=1e-3), steps=1)], path)
    assert "<script>alert(1)" not in path.read_text()

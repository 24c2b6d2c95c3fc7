"""The verb 'checkpoint': what a folder of checkpoints holds, whether it is whole, and one file of it for plain torch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from planner.ir.graph import InputKind
from planner.ir.text import check_target
from planner.ir.units import show_bytes
from regista.verbs.screen import Json, show

if TYPE_CHECKING:
    from backend.checkpoint.manifest import Manifest

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="what", required=True, metavar="WHAT", help="what to do with them")
    for name, text in (
        ("show", "what the newest checkpoint holds"),
        ("verify", "read every byte of it and compare the checksums"),
        ("export", "write it as one file for plain torch"),
    ):
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        action.add_argument("folder", metavar="DIR", help="the folder of 'regista run --checkpoint', or a step-NUMBER in it")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object instead of tables")
        action.add_argument("--full", action="store_true", default=argparse.SUPPRESS, help="print all rows")
        if name == "export":
            action.add_argument("--optimizer", action="store_true", help="also the optimizer's state, as torch.optim loads it")
            action.add_argument("-o", "--out", required=True, metavar="FILE", help="the state_dict (.pt)")


def perform(args: argparse.Namespace) -> Json:
    """Perform args.what (show, verify or export) on args.folder; returns the figures for --json.

    Raises:
        InvalidFile: there is no checkpoint, it is damaged, or the file cannot be written.   Unsupported: see backend.checkpoint.export.
    """
    from backend.checkpoint import export, find, verify
    from backend.checkpoint.manifest import read_manifest

    path = find(args.folder)
    if args.what == "export":
        check_target(args.out)
        size_bytes = export(path, args.out, optimizer=args.optimizer)
        show(args, f"wrote {args.out}: {show_bytes(size_bytes)}, for torch.load(..., weights_only=True)")
        return {"checkpoint": str(path), "out": args.out, "size_bytes": size_bytes}
    manifest = verify(path) if args.what == "verify" else read_manifest(path)
    if args.what == "verify":
        show(args, f"{path} is whole: {len(manifest.files)} files, {show_bytes(_size_bytes(manifest))}, every checksum is right")
    else:
        _show(args, path, manifest)
    return _facts(path, manifest)


def _size_bytes(manifest: Manifest) -> int:
    return sum(file.size_bytes for file in manifest.files)


def _kinds(manifest: Manifest) -> Mapping[InputKind, tuple[int, int]]:
    """Kind of state -> (tensors, bytes)."""
    totals: dict[InputKind, tuple[int, int]] = {}
    for state in manifest.states:
        count, size_bytes = totals.get(state.kind, (0, 0))
        totals[state.kind] = count + 1, size_bytes + prod(state.shape) * state.dtype.size_bytes
    return totals


def _facts(path: Path, manifest: Manifest) -> Json:
    return {
        "checkpoint": str(path),
        "plan_id": manifest.plan_id,
        "model": manifest.model,
        "step": manifest.step,
        "next_batch": manifest.next_batch,
        "num_ranks": manifest.num_ranks,
        "size_bytes": _size_bytes(manifest),
        "states": {kind.value: {"tensors": count, "bytes": size} for kind, (count, size) in _kinds(manifest).items()},
        "files": {file.name: file.size_bytes for file in manifest.files},
    }


def _show(args: argparse.Namespace, path: Path, manifest: Manifest) -> None:
    from backend.checkpoint.folder import steps_of

    steps = steps_of(path.parent)
    first = f"{path}: step {manifest.step} of {manifest.model}, saved by {manifest.num_ranks} ranks under plan {manifest.plan_id}"
    older = [f"older ones beside it: {', '.join(map(str, steps[:-1]))}"] if len(steps) > 1 else []
    table = Table(box=None, pad_edge=False)
    for name in ("state", "tensors", "bytes"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for kind, (count, size_bytes) in _kinds(manifest).items():
        table.add_row(kind.value, str(count), show_bytes(size_bytes))
    for file in manifest.files:
        table.add_row(
            escape(file.name), str(sum(p.file == file.name for s in manifest.states for p in s.pieces)), show_bytes(file.size_bytes)
        )
    show(args, first, *older, table)

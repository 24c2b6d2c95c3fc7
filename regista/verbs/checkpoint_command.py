"""The verb 'checkpoint': what a folder of checkpoints holds, whether it is whole, and one file of it for plain torch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backend.checkpoint import export, find, verify
from backend.checkpoint.folder import steps_of
from backend.checkpoint.manifest import Manifest, read_manifest
from planner.ir.graph import InputKind
from planner.ir.text import check_target
from planner.ir.units import show_bytes

__all__ = ["checkpoint"]

Json = dict[str, object]


def checkpoint(args: argparse.Namespace) -> Json:
    """Perform args.what (show, verify or export) on args.folder; returns the figures for --json.

    Raises:
        InvalidFile: there is no checkpoint, it is damaged, or the file cannot be written.   Unsupported: see backend.checkpoint.export.
    """
    path = find(args.folder)
    if args.what == "export":
        check_target(args.out)
        size_bytes = export(path, args.out, optimizer=args.optimizer)
        _say(args, f"wrote {args.out}: {show_bytes(size_bytes)}, for torch.load(..., weights_only=True)")
        return {"checkpoint": str(path), "out": args.out, "size_bytes": size_bytes}
    manifest = verify(path) if args.what == "verify" else read_manifest(path)
    if args.what == "verify":
        _say(args, f"{path} is whole: {len(manifest.files)} files, {show_bytes(_size_bytes(manifest))}, every checksum is right")
    else:
        _show(args, path, manifest)
    return _facts(path, manifest)


def _size_bytes(manifest: Manifest) -> int:
    return sum(file.size_bytes for file in manifest.files)


def _kinds(manifest: Manifest) -> Mapping[InputKind, tuple[int, int]]:
    """Kind of state -> (tensors, bytes)."""
    found: dict[InputKind, tuple[int, int]] = {}
    for state in manifest.states:
        numel = 1
        for extent in state.shape:
            numel *= extent
        count, size_bytes = found.get(state.kind, (0, 0))
        found[state.kind] = count + 1, size_bytes + numel * state.dtype.size_bytes
    return found


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
    steps = steps_of(path.parent)
    _say(args, f"{path}: step {manifest.step} of {manifest.model}, saved by {manifest.num_ranks} ranks under plan {manifest.plan_id}")
    if len(steps) > 1:
        _say(args, f"older ones beside it: {', '.join(map(str, steps[:-1]))}")
    if args.json:
        return
    table = Table(box=None, pad_edge=False)
    for name in ("state", "tensors", "bytes"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for kind, (count, size_bytes) in _kinds(manifest).items():
        table.add_row(kind.value, str(count), show_bytes(size_bytes))
    for file in manifest.files:
        table.add_row(
            escape(file.name), str(sum(p.file == file.name for s in manifest.states for p in s.pieces)), show_bytes(file.size_bytes)
        )
    Console().print(table)


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        Console().print(text, markup=False, highlight=False, soft_wrap=True)

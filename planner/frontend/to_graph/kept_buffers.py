"""A buffer that forward updates while backward reads it, as it was or as it became: backward reads a copy (spectral norm's vectors).

    buffer --> clone --> all that read the old value             in front of its first reader
       '<--- new value --> clone --> all that read the new one   behind the op that computes it

The state has one block.  Were backward to read it, forward could not write the new value before backward has ended, and would wait for ever.
Of what reads it in its own pass, nothing may stand behind the op that makes the new value, for the same reason (OwnValues).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.ir.graph import Op, Ref, Role
from planner.opset import readers_with_views

__all__ = ["KeptBuffers", "OwnValues", "kept_buffers"]

_CLONE = "aten.clone.default"


class KeptBuffers:
    """Ops with the copies that backward reads.

    ops: in trace order.   original_of: copy -> the value that it copies.   beside: id of a copy's op -> id of the op that it stands beside.
    """

    def __init__(self, ops: Sequence[Op], copied: Sequence[str]) -> None:
        self.original_of: dict[str, str] = {f"{value}.kept": value for value in copied}
        self.beside: dict[str, str] = {}
        self.ops: list[Op] = []
        renamed = {value: copy for copy, value in self.original_of.items()}
        waiting = dict(renamed)
        for op in ops:
            for value in [v for v in dict.fromkeys(op.inputs) if v in waiting]:
                self._copy(value, waiting.pop(value), op)
            self.ops.append(op.renamed(renamed))
            for value in [v for v in op.outputs if v in waiting]:
                assert value is not None
                self._copy(value, waiting.pop(value), op)

    def _copy(self, value: str, copy: str, beside: Op) -> None:
        self.beside[copy] = beside.id
        self.ops.append(Op(id=copy, target=_CLONE, args=(Ref(value),), outputs=(copy,), role=Role.FORWARD, module=beside.module))


def kept_buffers(ops: Sequence[Op], updates: Mapping[str, str]) -> KeptBuffers:
    """Copies of buffers that forward updates: of old values that backward reads, and of new values that any op of any stage reads.

    Args:
        updates: value of a buffer -> the value that replaces it.
    """
    role_of = {value: op.role for op in ops for value in op.outputs if value is not None}
    updated = {buffer: new for buffer, new in updates.items() if role_of.get(new) is Role.FORWARD}
    readers = _readers_of_each(ops)
    copied = [
        value
        for buffer, new in updated.items()
        for value, roles in ((buffer, {Role.BACKWARD}), (new, {Role.BACKWARD, Role.FORWARD}))
        if any(op.role in roles for op in readers_with_views(readers, value))
    ]
    return KeptBuffers(ops, list(dict.fromkeys(copied)))


def _readers_of_each(ops: Sequence[Op]) -> dict[str, list[Op]]:
    readers: dict[str, list[Op]] = {}
    for op in ops:
        for value in dict.fromkeys(op.inputs):
            readers.setdefault(value, []).append(op)
    return readers


class OwnValues:
    """Every state gets a value that an op has made for it alone, behind all that read the old one: no two states share one, none is an input.

        previous.copy_(x)                         buffer:previous <- copy of batch:input.0
        target.data.copy_(online.data)            buffer:target <- copy of parameter:online
        low.copy_(m); high.copy_(m)               buffer:low <- m, buffer:high <- copy of m
        m = x.mean(0); y = x - old; old.copy_(m)  buffer:old <- copy of m, behind y

    ops: with the copies.   updates: by the copies.   original_of: copy -> the value that it copies.
    behind: id of a copy's op -> id of the op that it stands behind; absent: in front of all.
    """

    def __init__(self, ops: Sequence[Op], updates: Mapping[str, str]) -> None:
        makers = {value: op for op in ops for value in op.outputs if value is not None}
        place = {op.id: number for number, op in enumerate(ops)}
        readers = _readers_of_each(ops)
        self.updates: dict[str, str] = {}
        self.original_of: dict[str, str] = {}
        self.behind: dict[str, str] = {}
        copies: dict[str, list[Op]] = {}
        taken: set[str] = set()
        for state, new in updates.items():
            maker = makers.get(new)
            role = Role.FORWARD if maker is None else maker.role
            read = [op for op in readers_with_views(readers, state) if op.role is role]
            last = max([*read, *([] if maker is None else [maker])], key=lambda op: place[op.id], default=None)
            if maker is not None and maker is last and new not in taken:
                taken.add(new)
                self.updates[state] = new
                continue
            copy = self.updates[state] = f"{state}.next"
            self.original_of[copy] = new
            module = "" if last is None else last.module
            copies.setdefault("" if last is None else last.id, []).append(
                Op(id=copy, target=_CLONE, args=(Ref(new),), outputs=(copy,), role=role, module=module)
            )
            if last is not None:
                self.behind[copy] = last.id
        self.ops = copies.get("", [])
        for op in ops:
            self.ops += [op, *copies.get(op.id, ())]

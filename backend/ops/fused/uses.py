"""Who makes and who reads the values of a fragment, as the rules that put ops together ask it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from planner.ir.graph import Op, Ref

__all__ = ["Fusion", "Uses", "uses_of"]

Fusion = tuple[Op, tuple[Op, ...]] | None
"""The whole op, and the parts that it replaces; it stands where the last of them stood."""


@dataclass(frozen=True, slots=True)
class Uses:
    """The op that makes each value, the ops that read it, and how often it is read; leaving the fragment counts as one more read.

    places: op id -> place in the fragment.
    """

    makers: Mapping[str, Op]
    readers: Mapping[str, Sequence[Op]]
    reads: Mapping[str, int]
    places: Mapping[str, int]

    def made_by(self, value: object, target: str) -> Op | None:
        """The op that makes the value, if it has this target, one output and no kwargs."""
        op = self.makers.get(value.value) if isinstance(value, Ref) else None
        return op if op is not None and op.target == target and not op.kwargs and len(op.outputs) == 1 else None

    def part(self, value: object, target: str, reads: int = 1) -> Op | None:
        """The same, if the value is read exactly ``reads`` times."""
        op = self.made_by(value, target)
        return op if op is not None and isinstance(value, Ref) and self.reads[value.value] == reads else None

    def only_reader(self, op: Op, target: str) -> Op | None:
        """The op that alone reads, once, what ``op`` makes, if it has this target and no kwargs."""
        value = op.outputs[0]
        if value is None or self.reads[value] != 1 or len(self.readers[value]) != 1:
            return None
        (reader,) = self.readers[value]
        return reader if reader.target == target and not reader.kwargs else None

    def inside(self, op: Op, parts: Collection[str]) -> bool:
        """Whether only ops whose ids are in ``parts`` read what ``op`` makes."""
        return all(
            value is None or (self.reads[value] == len(self.readers[value]) and all(reader.id in parts for reader in self.readers[value]))
            for value in op.outputs
        )

    def whole(self, target: str, args: tuple[Ref | float | None, ...], results: Sequence[object], parts: Sequence[Op]) -> Fusion:
        """One op in the place of ``parts``.

        Args:
            results: the values that it makes, Refs; those that only parts read are dropped.

        Returns:
            None where something that is read outside of the parts is no result, or is read before the last part.
        """
        ids = {part.id for part in parts}
        last = max(parts, key=lambda part: self.places[part.id])
        kept = [_read_outside(self, result, ids) for result in results]
        for part in parts:
            for value in part.outputs:
                if value is not None and value in kept:
                    if any(reader.id not in ids and self.places[reader.id] < self.places[last.id] for reader in self.readers[value]):
                        return None
                elif not self.inside(part, ids):
                    return None
        outputs = tuple(kept)
        whole = Op(id=last.id, target=target, args=args, outputs=outputs, role=last.role, module=last.module, forward_of=last.forward_of)
        return whole, tuple(parts)


def _read_outside(uses: Uses, result: object, ids: Collection[str]) -> str | None:
    if not isinstance(result, Ref):
        return None
    maker = uses.makers[result.value]
    return None if uses.inside(maker, ids) else result.value


def uses_of(ops: Sequence[Op], leaving: frozenset[str]) -> Uses:
    """Of a fragment whose values ``leaving`` are read outside."""
    readers: defaultdict[str, list[Op]] = defaultdict(list)
    for op in ops:
        for value in op.inputs:
            readers[value].append(op)
    return Uses(
        {value: op for op in ops for value in op.outputs if value is not None},
        readers,
        Counter(value for op in ops for value in op.inputs) + Counter(leaving),
        {op.id: place for place, op in enumerate(ops)},
    )

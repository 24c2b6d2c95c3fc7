"""What is wrong on a GPU and right by luck on a stub that does all work at once: the rules of streams, watched at every op of torch.

Work of a stream is done in order; between streams only events order it.  Each stream has a clock, an event carries the clock of its stream, and
a stream that waits for the event takes it over (vector clocks).  Every op is seen by the dispatcher, with the memory that it reads and writes:

    RACE      it reads memory that a stream wrote, or writes what one has read or written, without having waited for it
    FREED     memory goes back to the pool of the stream that made it while another stream may still use it, without record_stream

A capture keeps ops instead of doing them: what they have written is put back at its end, and a replay does them again on the same memory.
What would make the host wait in a capture raises, as torch does.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["HOST", "Clock", "StreamRules"]

Clock = dict[object, int]
"""Stream -> how much of its work is done."""

HOST = "host"

_MAKES_HOST_WAIT = frozenset({"aten::_local_scalar_dense", "aten::nonzero"})

_Use = tuple[int, int, object, int]
"""(first byte, end, stream, its count then)"""


@dataclass(slots=True)
class _Memory:
    """One storage.   pool: the stream whose pool it came from; None: made where nobody watched."""

    writes: list[_Use] = field(default_factory=list)
    reads: list[_Use] = field(default_factory=list)
    last: dict[object, int] = field(default_factory=dict)
    pool: object = None
    recorded: set[object] = field(default_factory=set)


@dataclass(slots=True)
class _Recorded:
    """One op of a graph."""

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any

    def again(self) -> None:
        """Do it, and leave what it makes where it was made when it was recorded."""
        made = self.function(*self.arguments, **self.options)
        for old, new in zip(tree_leaves(self.result), tree_leaves(made), strict=True):
            if isinstance(old, Tensor) and isinstance(new, Tensor) and old.data_ptr() != new.data_ptr():
                old.copy_(new)


class _Capture:
    def __init__(self) -> None:
        self.ops: list[_Recorded] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def put_back(self) -> None:
        for tensor, value in reversed(self.before):
            tensor.copy_(value)
        self.before = []

    def replay(self) -> None:
        for op in self.ops:
            op.again()


class StreamRules:
    """See the module's text.   broken: what was found, in words.   ops: seen so far."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.ops = 0
        self.clocks: defaultdict[object, Clock] = defaultdict(dict)
        self.capture_of: dict[object, _Capture] = {}
        self._memory: weakref.WeakKeyDictionary[Any, _Memory] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._stacks: defaultdict[int, list[_Watching]] = defaultdict(list)

    def tick(self, stream: object) -> Clock:
        """The clock of a stream behind all that was put there: what an event carries."""
        with self._lock:
            clock = self.clocks[stream]
            clock[stream] = clock.get(stream, 0) + 1
            return dict(clock)

    def joined(self, stream: object, clock: Clock) -> None:
        """What is put into the stream (or what the host does) from now on comes after an event."""
        with self._lock:
            mine = self.clocks[stream]
            for other, count in clock.items():
                mine[other] = max(mine.get(other, 0), count)

    def host_waits_for(self, stream: object) -> None:
        self.joined(HOST, self.tick(stream))

    @contextmanager
    def on(self, stream: object) -> Iterator[None]:
        """All ops of this thread are put into the stream; what the host has seen to its end is done by then."""
        self.joined(stream, dict(self.clocks[HOST]))
        watching, stack = _Watching(self, stream), self._stacks[threading.get_ident()]
        stack.append(watching)
        try:
            with watching:
                yield
        finally:
            stack.pop()

    def is_current(self, watching: _Watching) -> bool:
        """Whether it is of the stream that this thread has chosen last."""
        return self._stacks[threading.get_ident()][-1] is watching

    @contextmanager
    def capturing(self, stream: object) -> Iterator[_Capture]:
        """All ops of the stream are recorded."""
        if self.capture_of:
            raise RuntimeError("another capture is underway in this process")
        capture = self.capture_of[stream] = _Capture()
        try:
            with self.on(stream):
                yield capture
        finally:
            del self.capture_of[stream]
            capture.put_back()

    def record_stream(self, tensor: Tensor, stream: object) -> None:
        with self._lock:
            self._of(tensor).recorded.add(stream)

    def see(self, stream: object, function: Any, operands: list[Tensor], written: list[Tensor], made: list[Tensor]) -> None:
        name = function._schema.name
        with self._lock:
            self.ops += 1
            self.tick(stream)
            for tensor in operands:
                self._touch(name, stream, tensor, writes=any(tensor is other for other in written))
            mine = {tensor.untyped_storage().data_ptr() for tensor in operands}
            for tensor in made:
                if tensor.untyped_storage().data_ptr() not in mine and tensor.untyped_storage() not in self._memory:
                    self._of(tensor).pool = stream
                    self._touch(name, stream, tensor, writes=True)

    def _of(self, tensor: Tensor) -> _Memory:
        storage = tensor.untyped_storage()
        memory = self._memory.get(storage)
        if memory is None:
            memory = self._memory[storage] = _Memory()
            weakref.finalize(storage, self._freed, memory).atexit = False
        return memory

    def _freed(self, memory: _Memory) -> None:
        with self._lock:
            if memory.pool is None:
                return
            for stream, count in memory.last.items():
                done = max(self.clocks[waiting].get(stream, 0) for waiting in (HOST, memory.pool))
                if stream not in (memory.pool, HOST) and stream not in memory.recorded and done < count:
                    self.broken.append(f"FREED memory of the pool of {memory.pool} that {stream} may still use")

    def _touch(self, name: str, stream: object, tensor: Tensor, *, writes: bool) -> None:
        if not tensor.numel():
            return
        memory, begin = self._of(tensor), tensor.data_ptr()
        end = begin + (sum((n - 1) * abs(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()
        mine = self.clocks[stream]
        for what, uses in (("wrote", memory.writes), ("read", memory.reads if writes else [])):
            for first, past, other, count in uses:
                if first < end and begin < past and other != stream and mine.get(other, 0) < count:
                    self.broken.append(f"RACE {name} on {stream}: {other} {what} it, and nothing waits for that")
        memory.last[stream] = mine[stream]
        inside = (memory.writes, memory.reads) if writes else (memory.reads,)
        for uses in inside:  # what is ordered before this use need not be kept beside it
            uses[:] = [
                use for use in uses if not (begin <= use[0] and use[1] <= end and (use[2] == stream or mine.get(use[2], 0) >= use[3]))
            ]
        (memory.writes if writes else memory.reads).append((begin, end, stream, mine[stream]))


def _written(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[Tensor]:
    """The operands that the op writes to, as its schema says."""
    found: list[Tensor] = []
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = options.get(argument.name) if argument.kwarg_only or place >= len(arguments) else arguments[place]
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


class _Watching(TorchDispatchMode):
    """The ops of one thread, while a stream is its current one."""

    def __init__(self, rules: StreamRules, stream: object) -> None:
        super().__init__()
        self._rules, self._stream = rules, stream

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if not self._rules.is_current(self):
            return function(*args, **(kwargs or {}))
        options, capture = kwargs or {}, self._rules.capture_of.get(self._stream)
        written = _written(function, args, options)
        if capture is None:
            result = function(*args, **options)
            self._rules.see(self._stream, function, _tensors((args, options)), written, _tensors(result))
            return result
        if function._schema.name in _MAKES_HOST_WAIT:
            raise RuntimeError(f"{function._schema.name}: operation not permitted when stream is capturing")
        capture.before += [(tensor, tensor.clone()) for tensor in written]
        result = function(*args, **options)
        capture.ops.append(_Recorded(function, args, options, result))
        return result

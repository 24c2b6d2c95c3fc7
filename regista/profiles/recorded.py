"""What a profile recorded: operators with the types of their tensors, and the seconds that each took on the device.

Kineto (torch.profiler, record_shapes=True)   operators are events of cat cpu_op; where there are events of cat kernel, an operator took what the
                                              kernels took that it or an operator inside of it launched (External id), else its own duration
Chakra (.et)                                  operators are nodes of compute; an operator took its duration

Operators lie inside of each other (linear in addmm); who asks says which it knows, and the outermost known one counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_json
from planner.ir.tensor import TensorType
from planner.ir.units import US
from regista.chakra import NodeKind, read_chakra
from regista.chakra.types import tensor_type

__all__ = ["Operator", "Profiled", "read_profile"]

_WAY_OUT = "give a profile of torch.profiler as export_chrome_trace wrote it, recorded with record_shapes=True, or a .et of Chakra"
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """arguments: in order, types of tensors and texts of the others.   inside: number of the operator around it; None: there is none.
    seconds: its own and those of the operators inside."""

    name: str
    arguments: tuple[TensorType | str, ...]
    seconds: float
    inside: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """launch_s: what the host takes to launch a kernel; None: nothing was launched.   copies: (to the device, bytes, seconds)."""

    device: str
    operators: tuple[Operator, ...]
    launch_s: float | None
    copies: tuple[tuple[bool, int, float], ...]


def read_profile(path: str | Path) -> Profiled:
    """The operators of a profile.

    Raises:
        InvalidFile: not readable, no profile, no shapes, or an event of negative duration.   RegistaError: a .et, and protobuf is not installed.
    """
    if Path(path).suffix == ".et":
        return _of_chakra(path)
    data = read_json(path, _WAY_OUT)
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(events, list):
        raise InvalidFile(f"{path}: no 'traceEvents', so it is no profile of Kineto; {_WAY_OUT}")
    spans = [_checked(path, event) for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    operators = [event for event in spans if event.get("cat") == "cpu_op"]
    if not operators:
        raise InvalidFile(f"{path}: none of its {len(events)} events is an operator (cat cpu_op); {_WAY_OUT}")
    if not any("Input Dims" in _args(event) for event in operators):
        raise InvalidFile(f"{path}: none of its {len(operators)} operators has shapes; {_WAY_OUT}")
    return Profiled(
        device=_device(data),
        operators=_operators(operators, [event for event in spans if event.get("cat") == "kernel"]),
        launch_s=_launch_s(spans),
        copies=tuple(_copies(spans)),
    )


def _checked(path: str | Path, event: Json) -> Json:
    for name in ("ts", "dur"):
        value = event.get(name, 0.0 if name == "dur" else None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or (name == "dur" and value < 0):
            raise InvalidFile(
                f"{path}: the event {str(event.get('name'))[:60]!r} has {name} {value!r}; times are numbers, durations not below 0: record it anew"
            )
    return event


def _operators(events: Sequence[Json], kernels: Sequence[Json]) -> tuple[Operator, ...]:
    """In order of time per thread; who lies inside of whom follows from times."""
    on_device: dict[object, float] = defaultdict(float)
    for kernel in kernels:
        on_device[_args(kernel).get("External id")] += _number(kernel, "dur") * US
    order = sorted(events, key=lambda e: (str(e.get("pid")), str(e.get("tid")), _number(e, "ts"), -_number(e, "dur")))
    inside: list[int | None] = []
    around: list[tuple[object, float, int]] = []
    for place, event in enumerate(order):
        thread, begin = (event.get("pid"), event.get("tid")), _number(event, "ts")
        while around and (around[-1][0] != thread or around[-1][1] <= begin):
            around.pop()
        inside.append(around[-1][2] if around else None)
        around.append((thread, begin + _number(event, "dur"), place))
    seconds = [on_device.get(_args(event).get("External id"), 0.0) if kernels else _number(event, "dur") * US for event in order]
    if kernels:
        for place in reversed(range(len(order))):
            outer = inside[place]
            if outer is not None:
                seconds[outer] += seconds[place]
    return tuple(
        Operator(
            name=str(event.get("name")),
            arguments=_arguments(_args(event)),
            seconds=took_s,
            inside=outer,
        )
        for event, took_s, outer in zip(order, seconds, inside, strict=True)
    )


def _of_chakra(path: str | Path) -> Profiled:
    _, nodes = read_chakra(path)
    found = [node for node in nodes if node.kind is NodeKind.COMPUTE]
    if not any(node.reads for node in found):
        raise InvalidFile(f"{path}: none of its {len(found)} nodes of compute has shapes; {_WAY_OUT}")
    operators = tuple(Operator(name=n.name, arguments=n.reads, seconds=n.duration_s, inside=None) for n in found)
    return Profiled(device="chakra", operators=operators, launch_s=None, copies=())


def _launch_s(spans: Sequence[Json]) -> float | None:
    times = sorted(_number(event, "dur") for event in spans if "LaunchKernel" in str(event.get("name")))
    return times[len(times) // 2] * US if times else None


def _copies(spans: Sequence[Json]) -> list[tuple[bool, int, float]]:
    found = []
    for event in spans:
        size, name = _args(event).get("bytes"), str(event.get("name"))
        if event.get("cat") == "gpu_memcpy" and isinstance(size, int) and size > 0 and ("HtoD" in name or "DtoH" in name):
            found.append(("HtoD" in name, size, _number(event, "dur") * US))
    return found


def _device(data: Json) -> str:
    devices = data.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return str(first.get("name", "cuda")) if isinstance(first, dict) else "cpu"


def _args(event: Json) -> Json:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _number(event: Json, name: str) -> float:
    value = event.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _arguments(args: Json) -> tuple[TensorType | str, ...]:
    shapes, types, concrete = (args.get(name) for name in ("Input Dims", "Input type", "Concrete Inputs"))
    if not (isinstance(shapes, list) and isinstance(types, list)):
        return ()
    texts = concrete if isinstance(concrete, list) else []
    texts = [*texts, *[""] * (len(shapes) - len(texts))]
    tensors = (tensor_type(shape, name) for shape, name in zip(shapes, types, strict=False))
    return tuple(str(text) if tensor is None else tensor for tensor, text in zip(tensors, texts, strict=False))

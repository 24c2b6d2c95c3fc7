"""GPT-2 124M and ResNet-50 on one device: a Plan, with graphs and without, beside eager PyTorch, torch.compile, and the whole step as a CUDA graph.

All train the same module on the same batch under bf16 autocast, with torch's fused optimizer, in one process and one run, one after the other; eager is
measured at the begin and at the end, so that a clock that changes shows.  A way that the device does not have (graphs on a CPU) is left out.
"""

from __future__ import annotations

import copy
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from statistics import median
from typing import Any

import torch

from backend.devices.options import DeviceOptions, numerics
from backend.inprocess import run
from experiments.gpu.bench import Bench, Fed, Row, row
from experiments.gpu.plans import listing_cluster
from planner.frontend import Program
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

__all__ = ["gpt2", "resnet50", "rivals"]

WARM = 6
"""Steps before the counted ones: first acts, workspace, captures, compilation."""

Step = Callable[[], object]


def gpt2(bench: Bench) -> Iterator[Row]:
    large = {"size": "117M", "batch": 8, "vocab": 50304, "attention": "fused"}
    small = {"size": "117M", "layers": 1, "width": 16, "heads": 2, "vocab": 32, "batch": 2, "seq": 8, "attention": "fused"}
    yield from rivals(bench, "gpt2", ZOO["gpt2"](**(large if bench.scale.is_large else small)))


def resnet50(bench: Bench) -> Iterator[Row]:
    small = {"batch": 2, "image": 32, "classes": 8, "layers": 26, "width": 4}
    yield from rivals(bench, "resnet50", ZOO["resnet50"](**({"batch": 64} if bench.scale.is_large else small)))


def rivals(bench: Bench, part: str, source: Program) -> Iterator[Row]:
    """Seconds per step of each way, and ratios as soon as both are known; what compiles comes last, as nobody knows how long it takes."""
    seconds: dict[str, float] = {}
    told: set[str] = set()
    with numerics(DeviceOptions()) if bench.is_gpu else nullcontext():
        for name, measured in _ways(bench, part, source).items():
            try:
                times = measured()
            except Exception as error:  # a way that fails leaves the others' rows
                first, *_ = str(error).splitlines() or [""]
                warnings.warn(f"{part}: {name} failed: {type(error).__name__}: {first[:200]}", stacklevel=1)
                continue
            finally:
                _free(bench)
            seconds[name] = median(times)
            yield row(part, name, "step", "s", None, times)
            yield from _ratios(part, seconds, told)


_OURS = ("regista, graphs", "regista")


def _ways(bench: Bench, part: str, source: Program) -> dict[str, Callable[[], tuple[float, ...]]]:
    """In the order in which they are measured."""
    mixed = source.in_formats("bf16-mixed", None)

    @cache
    def planned() -> tuple[Plan, Fed]:
        options = PlanOptions()
        plan = make_plan(mixed.graph(1), model=part, batch_size=source.batch_size, cluster=listing_cluster(1), options=options)
        return plan, Fed.of(mixed, 1)

    ways: dict[str, Callable[[], tuple[float, ...]]] = {"eager": lambda: _timed(bench, _eager(bench, source))}
    if bench.is_gpu:
        ways["CUDA graph"] = lambda: _timed(bench, _graphed(bench, source))
    if bench.name != "cpu":
        ways["regista, graphs"] = lambda: _ours(bench, *planned(), graphs=True)
    ways["regista"] = lambda: _ours(bench, *planned(), graphs=False)
    ways["eager again"] = lambda: _timed(bench, _eager(bench, source))
    ways["torch.compile"] = lambda: _timed(bench, _compiled(bench, source))
    return ways


def _ratios(part: str, seconds: Mapping[str, float], told: set[str]) -> Iterator[Row]:
    """How many times as long as our best way another one takes; of eager, by its quicker time."""
    ours = [name for name in _OURS if name in seconds]
    if len(ours) < len(_OURS) and "eager again" not in seconds:
        return  # the other way of ours is still to come
    best = min(ours, key=seconds.__getitem__, default=None)
    for name in ("eager", "CUDA graph", "torch.compile"):
        is_known = name in seconds and (name != "eager" or "eager again" in seconds)
        if best is not None and is_known and name not in told:
            told.add(name)
            theirs = min(seconds[name], seconds["eager again"]) if name == "eager" else seconds[name]
            yield row(part, f"{name} / {best}", "ratio", "of its step", None, (theirs / seconds[best],))


def _ours(bench: Bench, plan: Plan, fed: Fed, *, graphs: bool) -> tuple[float, ...]:
    with bench.devices({0: "device"}) as devices:
        options = DeviceOptions(graphs=graphs) if graphs else DeviceOptions()
        outcome = run(
            plan, fed.state, fed.batches, WARM + bench.scale.steps, devices=devices, options=options, timeout_s=60, allow_nan=True
        )
    return outcome.trace.step_times_s(plan)[WARM:]


def _timed(bench: Bench, step: Step) -> tuple[float, ...]:
    """Seconds per step, over five rounds: the host waits for the device at the end of each round only."""
    for _ in range(WARM):
        step()
    rounds, each = 5, max(bench.scale.steps // 5, 1)
    times = []
    for _ in range(rounds):
        _wait(bench)
        begin = time.perf_counter()
        for _ in range(each):
            step()
        _wait(bench)
        times.append((time.perf_counter() - begin) / each)
    return tuple(times)


def _wait(bench: Bench) -> None:
    if bench.is_gpu:
        torch.cuda.synchronize(torch.device(bench.name))


def _free(bench: Bench) -> None:
    gc.collect()
    if bench.is_gpu:
        torch.cuda.empty_cache()


def _autocast(bench: Bench) -> AbstractContextManager[object]:
    return torch.autocast("cuda" if bench.is_gpu else "cpu", dtype=torch.bfloat16)


def _parts(bench: Bench, source: Program) -> tuple[torch.nn.Module, list[torch.Tensor], torch.optim.Optimizer]:
    """The module, the batch and torch's optimizer, on the device."""
    where = torch.device(bench.name if bench.is_gpu else "cpu")
    module = copy.deepcopy(source.module).to(where).train()
    inputs = [tensor.to(where) for tensor in source.batch(0)]
    parameters = [p for p in module.parameters() if p.requires_grad]
    if "adam" in type(source.optimizer).__name__.lower():
        made: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True, **({"capturable": True} if bench.is_gpu else {}))  # type: ignore[arg-type]
    else:
        made = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True)
    return module, inputs, made


def _step_of(bench: Bench, source: Program, module: Any, inputs: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with _autocast(bench):
            loss = source.loss_of(module, inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _eager(bench: Bench, source: Program) -> Step:
    return _step_of(bench, source, *_parts(bench, source))


def _compiled(bench: Bench, source: Program) -> Step:
    """Inductor on a GPU; elsewhere, where the code is tried, the back end that compiles nothing."""
    module, inputs, optimizer = _parts(bench, source)
    torch._dynamo.reset()
    return _step_of(bench, source, torch.compile(module, backend="inductor" if bench.is_gpu else "aot_eager"), inputs, optimizer)


def _graphed(bench: Bench, source: Program) -> Step:
    """The whole step recorded, after warm-up on a stream of its own, as torch's notes on CUDA graphs say."""
    cuda: Any = torch.cuda
    step = _step_of(bench, source, *_parts(bench, source))
    aside = cuda.Stream()
    aside.wait_stream(cuda.current_stream())
    with cuda.stream(aside):
        for _ in range(3):
            step()
    cuda.current_stream().wait_stream(aside)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step()
    replay: Step = graph.replay
    return replay

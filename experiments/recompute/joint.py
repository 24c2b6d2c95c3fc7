"""Torch's joint graph of forward and backward pass as a problem of what is kept, and its two halves for any set of kept values.

A node of several results and the getitem nodes that pick them are one op.  Forward ops are those that no tangent reaches; those among them that the
results of the forward pass do not need are computed once wherever they stand, so to compute them "again" costs nothing (-> saving_problem).
A value lies in the storage of the op that allocated it: views of parameters and of kept values take no bytes (-> storage_bytes).

Only these modules import torch's partitioner, and only when they run: it is no public interface.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import thread_time
from typing import Any

import torch
from torch import fx, nn

from planner.frontend import Program
from planner.stages.recompute import ForwardOp, Keeping, SavingProblem

__all__ = ["Halves", "Joint", "trace_joint"]


class _Loss(nn.Module):
    def __init__(self, program: Program, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self._loss_of = inner, program.loss_of

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._loss_of(self.inner, inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """results: of the forward pass, then gradients.   kept_bytes: of the storages handed on, without those of the inputs."""

    duration_s: float
    kept_bytes: int
    results: tuple[torch.Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Halves:
    """forward, backward: modules.   num_results: of the forward pass, before what it keeps."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    num_results: int

    @property
    def kept(self) -> frozenset[str]:
        """Names of what the forward pass hands on."""
        (output,) = self.forward.graph.find_nodes(op="output")
        return frozenset(node.name for node in output.args[0][self.num_results :])

    def step(self, primals: Sequence[torch.Tensor]) -> Performed:
        """Forward and backward pass on these inputs; the loss is the only result that has a gradient."""
        began = thread_time()
        made = self.forward(*primals)
        given = {primal.untyped_storage().data_ptr() for primal in primals}
        storages = {v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in made[self.num_results :]}
        handed = list(made[self.num_results :])
        results = list(made[: self.num_results])
        del made
        gradients = self.backward(*handed, torch.ones(()))
        duration_s = thread_time() - began
        kept_bytes = sum(size for place, size in storages.items() if place not in given)
        values = tuple(v for v in (*results, *gradients) if isinstance(v, torch.Tensor))
        return Performed(duration_s=duration_s, kept_bytes=kept_bytes, results=values)


@dataclass(frozen=True, kw_only=True)
class Joint:
    """module: the joint graph.   num_results: of the forward pass.   primals: real values of its inputs."""

    module: fx.GraphModule
    num_results: int
    primals: tuple[torch.Tensor, ...]

    def measured_s(self, rounds: int) -> Mapping[str, float]:
        """Median processor seconds of each node, one by one on one core of this machine."""
        taken: dict[str, list[float]] = {}

        class Timed(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                began = thread_time()
                result = super().run_node(n)
                taken.setdefault(n.name, []).append(thread_time() - began)
                return result

        for _ in range(rounds + 1):
            Timed(self.module).run(*self.primals, torch.ones(()))
        return {name: 0.0 if _is_free(node) else median(taken[name][1:]) for name, node in self._nodes().items() if name in taken}

    def flop(self) -> Mapping[str, float]:
        """Torch's own default price of each node: its flop, at least 1; 0 for what only aliases."""
        from torch._functorch import config, partitioners

        with config.patch(activation_memory_budget_runtime_estimator="flops"):
            nodes = [node for node in self.module.graph.nodes if node.op == "call_function"]
            return {node.name: 0.0 if _is_free(node) else float(partitioners.estimate_runtime(node)) for node in nodes}

    def saving_problem(self, seconds: Mapping[str, float]) -> SavingProblem:
        """What may be kept; seconds: of each node."""
        forward = self._forward()
        (output,) = self.module.graph.find_nodes(op="output")
        results = [node for node in output.args[0][: self.num_results] if isinstance(node, fx.Node)]
        needed = _ancestors(results)
        ops, size_bytes = [], {}
        for node in forward:
            if node.op != "call_function" or node.target is operator.getitem:
                continue
            picks = [user for user in node.users if user.target is operator.getitem and user in forward]
            made = tuple(pick.name for pick in picks) or (node.name,)
            size_bytes |= {pick.name: _nbytes(pick) for pick in (picks or [node])}
            random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            keeping = Keeping.KEPT if random else Keeping.AGAIN if _is_free(node) else Keeping.CHOSEN
            again_s = seconds[node.name] if node in needed else 0.0
            ops.append(
                ForwardOp(
                    id=node.name, inputs=tuple(i.name for i in node.all_input_nodes), outputs=made, duration_s=again_s, keeping=keeping
                )
            )
        read = {i.name for node in self.module.graph.nodes if node not in forward and node.op != "output" for i in node.all_input_nodes}
        read |= {node.name for node in output.args[0][self.num_results :] if isinstance(node, fx.Node)}
        return SavingProblem(ops=tuple(ops), size_bytes=size_bytes, read=frozenset(read.intersection(size_bytes)))

    def again_of(self, problem: SavingProblem, kept: frozenset[str]) -> float:
        """Seconds that a backward pass computes again which is handed these values, by the problem's prices."""
        needed, duration_s = set(problem.read) - kept, 0.0
        for op in reversed(problem.ops):
            if needed.intersection(op.outputs):
                needed.update(set(op.inputs) - kept)
                duration_s += op.duration_s
        return duration_s

    def storage_bytes(self, kept: frozenset[str]) -> int:
        """Bytes of the storages of these values, each once, without those of parameters and the batch."""
        nodes = self._nodes()
        homes = {_home(nodes[name]) for name in kept}
        return sum(_nbytes(home) for home in homes if home.op != "placeholder")

    def halves(self, kept: frozenset[str]) -> Halves:
        """The two passes that hand on exactly these values and the inputs that the backward pass reads."""
        from torch._functorch import partitioners

        module = copy.deepcopy(self.module)
        forward = {node.name for node in self._forward()}
        nodes = {node.name: node for node in module.graph.nodes}
        needed, inputs = [n for n in nodes.values() if n.name not in forward], set()
        seen = set(needed)
        while needed:
            for node in needed.pop().all_input_nodes:
                if node in seen or node.name in kept or node.name not in forward:
                    continue
                seen.add(node)
                if node.op == "placeholder":
                    inputs.add(node.name)
                else:
                    needed.append(node)
        saved = [node for name, node in nodes.items() if name in kept or name in inputs]
        first, second = partitioners._extract_fwd_bwd_modules(module, saved, saved_sym_nodes=[], num_fwd_outputs=self.num_results)
        second = partitioners.reordering_to_mimic_autograd_engine(second)
        return self._made(partitioners.raise_getitems(first), partitioners.raise_getitems(second))

    def torch_halves(self, budget: float, seconds: Mapping[str, float] | None) -> Halves:
        """What torch's partitioner makes under a memory budget, 0 to 1, where an op takes these seconds; None: by its own count of flop."""
        from torch._functorch import config, partitioners
        from torch._inductor.custom_graph_pass import CustomRuntimeEstimator

        class Measured(CustomRuntimeEstimator):
            def __call__(self, node: fx.Node) -> float:
                return (seconds or {}).get(node.name, 0.0)

            def uuid(self) -> None:
                return None

        estimator = "flops" if seconds is None else Measured()
        with config.patch(activation_memory_budget=budget, activation_memory_budget_runtime_estimator=estimator):
            first, second = partitioners.min_cut_rematerialization_partition(
                copy.deepcopy(self.module), [], num_fwd_outputs=self.num_results
            )
        return self._made(first, second)

    def _made(self, first: fx.GraphModule, second: fx.GraphModule) -> Halves:
        return Halves(forward=first, backward=second, num_results=self.num_results)

    def _nodes(self) -> dict[str, fx.Node]:
        return {node.name: node for node in self.module.graph.nodes}

    def _forward(self) -> dict[fx.Node, None]:
        """Nodes that no tangent reaches, in order."""
        forward: dict[fx.Node, None] = {}
        for node in self.module.graph.nodes:
            tangent = node.op == "placeholder" and node.target.startswith("tangents")
            if node.op != "output" and not tangent and all(i in forward for i in node.all_input_nodes):
                forward[node] = None
        return forward


def trace_joint(program: Program) -> Joint:
    """The joint graph of one step of the program, traced by AOTAutograd, after the clean-up that torch's partitioner begins with."""
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.compile_utils import fx_graph_cse
    from torch._functorch.partitioners import default_partition

    module = _Loss(program, program.module)
    state = {f"inner.{name}": value for name, value in program.initial_state().items()}
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    values = [state[name].clone().requires_grad_(name in dict(module.named_parameters())) for name in names]
    batch = program.batch(0)
    primals = tuple(v.detach() for v in (*values, *batch))
    found: list[Joint] = []

    def loss_of(*inputs: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, inputs, strict=False))
        loss = torch.func.functional_call(module, given, inputs[len(names) :])
        assert isinstance(loss, torch.Tensor)
        return loss

    def take(
        joint: fx.GraphModule, given: Sequence[object], *, num_fwd_outputs: int, **others: object
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        kept = copy.deepcopy(joint)
        kept.graph.eliminate_dead_code()
        kept.graph = fx_graph_cse(kept.graph)
        kept.recompile()
        found.append(Joint(module=kept, num_results=num_fwd_outputs, primals=primals))
        return default_partition(joint, given, num_fwd_outputs=num_fwd_outputs)

    def as_it_is(module: fx.GraphModule, _: object) -> fx.GraphModule:
        return module

    aot: Callable[..., Any] = aot_function(loss_of, fw_compiler=as_it_is, bw_compiler=as_it_is, partition_fn=take)
    aot(*values, *batch)
    return found[0]


def _is_free(node: fx.Node) -> bool:
    """Whether the node aliases its input, or only picks a result."""
    return node.target is operator.getitem or getattr(node.target, "is_view", False)


def _home(node: fx.Node) -> fx.Node:
    """The node that allocated what this one gives."""
    while getattr(node.target, "is_view", False):
        node = node.all_input_nodes[0]
    return node


def _nbytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found, open_nodes = set(nodes), list(nodes)
    while open_nodes:
        for node in open_nodes.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                open_nodes.append(node)
    return found

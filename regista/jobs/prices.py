"""Seconds of kernels on a machine.

(1) product     measured or fitted seconds of the kernel alone (planner.cost.kernels) / f_p                                      -> product_s
                in 8 bits: g times quicker, in 4 bits g g_4 rate_4 / (2 rate_8) times, and a sweep that casts the operands (recipes.py)
(2) attention   the same / f_a, backward / f_b                                                                                   -> attention_s
(3) sweep       bytes / (memory f_s)                                                                                              -> sweep_s
(4) meeting     host(p) + seconds of NCCL on idle links (planner.cost.nccl) / f_n inside a domain, / f_c beyond; host = 0 in a graph   -> meeting_s
(5) pass        (device^4 + host^4)^(1/4);  device = (1) + (2) + (3) + what shows of (4); a ring shows what attention does not hide -> pass_s
(6) pass of many devices   (5) (1 + growth log2(devices / 8))

Symbols are constants of machines/machine.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from planner.cost.kernels import KernelModel
from planner.cost.nccl import CollectiveModel, Kind
from planner.ir.collective import Collective
from planner.ir.tensor import DType
from regista.jobs.job import Attention, Precision, Running
from regista.jobs.machines import Machine
from regista.jobs.recipes import casting
from regista.jobs.work.kernels import AttentionCore, Group, Kernel, Meeting, Product, Ring, Sweep

__all__ = ["Prices"]

SHARP = 4.0

EXCHANGE_UNITS = 24
"""Multiprocessors that an exchange of experts takes from computing beside it. [DeepEP's README: num_sms 24; HybridEP 16 to 32]"""


@lru_cache(maxsize=64)
def _nccl(interconnect: str, port_bytes_per_s: float) -> CollectiveModel:
    return CollectiveModel.for_interconnect(interconnect, net_bytes_per_s=port_bytes_per_s)


@lru_cache(maxsize=1 << 16)
def _seconds(interconnect: str, port_bytes_per_s: float, kind: Kind, size_bytes: float, ranks: int, per_node: int) -> float:
    return _nccl(interconnect, port_bytes_per_s).seconds(kind, size_bytes, ranks, per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices on one machine under one way of running.   devices: of the job, for equation (6)."""

    machine: Machine
    running: Running
    devices: int

    def _value(self, name: str) -> float:
        return self.machine.values[name]

    @property
    def kernels(self) -> KernelModel:
        """Seconds of kernels alone on the device."""
        return KernelModel.for_device(self.machine.name)

    @property
    def _dtype(self) -> DType:
        """Of products and attention that are not in 8 bits."""
        match self.running.precision:
            case Precision.FP32:
                return DType.FLOAT32
            case Precision.FP16:
                return DType.FLOAT16
            case Precision.BF16 | Precision.FP8 | Precision.NVFP4:
                return DType.BFLOAT16

    @property
    def _memory(self) -> float:
        return self.machine.memory_bytes_per_s * self._value("sweep_share")

    @property
    def _four_rate(self) -> float:
        """How much more than twice the rate of 8 bits the data sheet has for 4."""
        return self.machine.peak(Precision.NVFP4) / (2 * self.machine.peak(Precision.FP8))

    def product_s(self, p: Product) -> float:
        """Equation (1)."""
        run = self.running
        one_s = self.kernels.gemm_s(p.m, p.n, p.k, self._dtype, batch=p.batch) / self._value("product_share")
        cast_bytes = 0.0
        if run.precision.is_low and p.low:
            how = casting(run.recipe)
            one_s /= self._value("low_gain") * how.product_share
            if run.precision is Precision.NVFP4:
                one_s /= self._value("four_gain") * self._four_rate
            cast_bytes = 0.0 if run.jax else how.cast_bytes * p.casts
        if run.jax:
            one_s /= self._value("jax_gain")
        if p.expert:
            one_s /= self._value("expert_gain")
        return p.count * (one_s + cast_bytes / self._memory)

    def attention_s(self, a: AttentionCore) -> float:
        """Equation (2)."""
        share = self._value("attention_backward" if a.backward else "attention_share")
        if self.running.attention is Attention.FLASH:
            share *= self._value("flash_gain")
        whole_s = self.kernels.attention_s(
            a.batch, a.heads, a.seq, a.head_dim, kv_heads=a.kv_heads, causal=a.causal, dtype=self._dtype, backward=a.backward
        )
        return whole_s / (a.parts * share)

    def sweep_s(self, size_bytes: float) -> float:
        """Equation (3)."""
        return size_bytes / self._memory

    def host_s(self, group: Group) -> float:
        """What the members of a group wait for the slowest of their hosts; a CUDA graph and XLA have no host in between."""
        if self.running.graphs or self.running.jax:
            return 0.0
        return 1e-6 * self._value("meet_us") * max(1.0, log2(max(group.size, 2)))

    def meeting_s(self, collective: Collective, total_bytes: float, group: Group) -> float:
        """Equation (4), of one collective."""
        if group.size <= 1:
            return 0.0
        return self.host_s(group) + self.wire_s(collective, total_bytes, group)

    def wire_s(self, collective: Collective, total_bytes: float, group: Group) -> float:
        """Equation (4) without the hosts."""
        size_bytes = total_bytes / group.size if collective is Collective.ALL_TO_ALL else total_bytes
        return self._nccl_s(Kind.of(collective), size_bytes, group.size, group.members_per_node(self.machine.domain))

    def message_s(self, size_bytes: float, group: Group) -> float:
        """Equation (4) of a message to the next member of a group; the slowest of them decides."""
        inside = group.members_per_node(self.machine.domain) >= group.size
        return self._nccl_s(Kind.SEND_RECEIVE, size_bytes, 2, 2 if inside else 1)

    def _nccl_s(self, kind: Kind, size_bytes: float, ranks: int, per_node: int) -> float:
        share = self._value("node_share" if per_node >= ranks else "nic_share")
        wires = self.machine.wires
        if per_node >= ranks:
            size_bytes = size_bytes * wires.measured_bytes_per_s / self.machine.node_bytes_per_s
        return _seconds(wires.interconnect, self.machine.nic_bytes_per_s, kind, size_bytes, ranks, per_node) / share

    def pass_s(self, kernels: Iterable[Kernel], *, layers: int = 1) -> float:
        """Equations (5) and (6): one act of ``layers`` times these kernels."""
        device_s, host_s, attention_s, ring_s, exchange_s = 0.0, 0.0, 0.0, 0.0, 0.0
        launch_s = 0.0 if self.running.jax or self.running.graphs else 1e-6 * self._value("launch_us")
        for kernel in kernels:
            match kernel:
                case Product():
                    device_s += self.product_s(kernel)
                    host_s += launch_s * kernel.count
                case AttentionCore():
                    attention_s += self.attention_s(kernel)
                    host_s += launch_s
                case Sweep():
                    device_s += self.sweep_s(kernel.size_bytes)
                    host_s += launch_s * kernel.count
                case Meeting() if kernel.collective is Collective.ALL_TO_ALL:
                    sent_bytes = kernel.total_bytes * kernel.share_sent(self.machine.domain)
                    one_s = kernel.count * self.meeting_s(kernel.collective, sent_bytes, kernel.group)
                    if kernel.beside:
                        exchange_s += one_s
                    else:
                        device_s += one_s
                    host_s += launch_s * kernel.count
                case Meeting():
                    shown = self._value("beside_share") if kernel.beside else 1.0
                    device_s += kernel.count * shown * self.meeting_s(kernel.collective, kernel.total_bytes, kernel.group)
                    host_s += launch_s * kernel.count
                case Ring():
                    one_s = self.host_s(kernel.group) + self.message_s(kernel.size_bytes, kernel.group)
                    ring_s += kernel.rounds * one_s
                    host_s += launch_s * kernel.rounds
        device_s += attention_s + max(0.0, ring_s - attention_s)
        hidden_s = min(exchange_s, device_s)
        device_s += exchange_s - hidden_s + hidden_s * EXCHANGE_UNITS / self.machine.units
        both_s = (device_s**SHARP + host_s**SHARP) ** (1 / SHARP)
        return float(layers * both_s * self.grown)

    @property
    def grown(self) -> float:
        """Equation (6)."""
        return 1.0 + self._value("growth") * max(0.0, log2(max(self.devices, 1) / 8))

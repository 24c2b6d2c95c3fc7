"""Seconds of kernels on a machine.

(1) product     measured or fitted seconds of the kernel alone (planner.cost.kernels) / f_p                                      -> product_s
                in 8 bits: g times quicker, and a sweep that casts what is read (4 bytes per element: 2 in, two layouts out)
(2) attention   the same / f_a, backward / f_b                                                                                   -> attention_s
(3) sweep       bytes / (memory f_s)                                                                                              -> sweep_s
(4) meeting     latency(p) + sent bytes / link;  link = port f_n inside a domain, min(that, members per node x nic f_c) beyond    -> meeting_s
(5) pass        (device^4 + host^4)^(1/4);  device = (1) + (2) + (3) + what shows of (4); a ring shows what attention does not hide -> pass_s
(6) pass of many devices   (5) (1 + growth log2(devices / 8))

Symbols are constants of machines/machine.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

from planner.cost.kernels import KernelModel
from planner.ir.collective import Collective, sent_bytes
from planner.ir.tensor import DType
from regista.jobs.job import Attention, Precision, Running
from regista.jobs.machines import Machine
from regista.jobs.work.kernels import AttentionCore, Group, Kernel, Meeting, Product, Ring, Sweep

__all__ = ["Prices"]

SHARP = 4.0


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
            case Precision.BF16 | Precision.FP8:
                return DType.BFLOAT16

    @property
    def _memory(self) -> float:
        return self.machine.memory_bytes_per_s * self._value("sweep_share")

    def product_s(self, p: Product) -> float:
        """Equation (1)."""
        run = self.running
        one_s = self.kernels.gemm_s(p.m, p.n, p.k, self._dtype, batch=p.batch) / self._value("product_share")
        if run.precision is Precision.FP8 and p.low:
            one_s /= self._value("low_gain")
        if run.jax:
            one_s /= self._value("jax_gain")
        if p.expert:
            one_s /= self._value("expert_gain")
        casts = 4.0 * p.batch * p.m * p.k if run.precision is Precision.FP8 and p.low and not run.jax else 0.0
        return p.count * (one_s + casts / self._memory)

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

    def link(self, group: Group) -> float:
        """Bytes/s at which each device of a group sends: equation (4)."""
        inside = self.machine.node_bytes_per_s * self._value("node_share")
        per_node = group.members_per_node(self.machine.domain)
        if per_node >= group.size:
            return inside
        return min(inside, per_node * self.machine.nic_bytes_per_s * self._value("nic_share"))

    def latency_s(self, group: Group) -> float:
        return 1e-6 * self._value("meet_us") * max(1.0, log2(max(group.size, 2)))

    def meeting_s(self, collective: Collective, total_bytes: float, group: Group) -> float:
        """Equation (4), of one collective."""
        if group.size <= 1:
            return 0.0
        return self.latency_s(group) + self.wire_s(collective, total_bytes, group)

    def wire_s(self, collective: Collective, total_bytes: float, group: Group) -> float:
        """Equation (4) without latency."""
        return sent_bytes(collective, total_bytes, group.size) / self.link(group)

    def pass_s(self, kernels: Iterable[Kernel], *, layers: int = 1) -> float:
        """Equations (5) and (6): one act of ``layers`` times these kernels."""
        device_s, host_s, attention_s, ring_s = 0.0, 0.0, 0.0, 0.0
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
                case Meeting():
                    shown = self._value("beside_share") if kernel.beside else 1.0
                    device_s += kernel.count * shown * self.meeting_s(kernel.collective, kernel.total_bytes, kernel.group)
                    host_s += launch_s * kernel.count
                case Ring():
                    one_s = self.latency_s(kernel.group) + kernel.size_bytes / self.link(kernel.group)
                    ring_s += kernel.rounds * one_s
                    host_s += launch_s * kernel.rounds
        device_s += attention_s + max(0.0, ring_s - attention_s)
        both_s = (device_s**SHARP + host_s**SHARP) ** (1 / SHARP)
        return float(layers * both_s * self.grown)

    @property
    def grown(self) -> float:
        """Equation (6)."""
        return 1.0 + self._value("growth") * max(0.0, log2(max(self.devices, 1) / 8))

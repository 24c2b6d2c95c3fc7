"""Seconds of kernels on a machine.

(1) product     measured or fitted seconds of the kernel alone (planner.cost.kernels) / f_p                                      -> product_s
                in 8 bits: g times quicker, in 4 bits g g_4 rate_4 / (2 rate_8) times, and a sweep that casts the operands (recipes.py)
(2) attention   the same / f_a, backward / f_b                                                                                   -> attention_s
(3) sweep       bytes / (memory f_s)                                                                                              -> sweep_s
    scan, causal convolution   seconds of the kernel alone (planner.cost.scans) / f_p                                             -> scan_s
(4) meeting     host(p) + seconds of NCCL on idle links (planner.cost.nccl) / f_n inside a domain, / f_c beyond; host = 0 in a graph   -> meeting_s
(5) pass        (device^4 + host^4)^(1/4);  device = (1) + (2) + (3) + what shows of (4); a ring shows what attention does not hide -> pass_s
(6) pass of many devices   (5) (1 + growth log2(devices / 8))
(7) beside      max(computing, sent) + min(computing, sent) units / units of the device                                               -> beside_s
(8) experts     (5) of what lies behind the exchange of experts by itself, as the host waits there for how many tokens came; not beside
                an exchange that goes on beside computing, whose other micro-batch fills the wait

Symbols are constants of machines/machine.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from planner.cost.kernels import KernelModel
from planner.cost.nccl import CollectiveModel, Kind
from planner.cost.scans import scan_rates
from planner.ir.collective import Collective
from planner.ir.tensor import DType
from regista.jobs.job import Attention, Precision, Running
from regista.jobs.machines import Machine
from regista.jobs.recipes import casting
from regista.jobs.work.kernels import AttentionCore, CausalConvolution, Group, Kernel, Meeting, Product, Ring, Scan, Sweep

__all__ = ["COLLECTIVE_UNITS", "Prices"]

SHARP = 4.0

EXCHANGE_UNITS = 24
"""Multiprocessors that an exchange of experts takes from computing beside it. [DeepEP's README: num_sms 24; HybridEP 16 to 32]"""

SCAN_LAUNCHES = {False: 5, True: 13}
"""Kernels of a chunked scan, forward and backward. [mamba-ssm 2.2: ssd_combined.py]"""

COLLECTIVE_UNITS = 16
"""The same of an all-gather, a reduce-scatter or an all-reduce of NCCL. [NVIDIA's blog on NCCL 2.27, 2025: rings take 16 or more, SHARP 6 or fewer]"""


@lru_cache(maxsize=64)
def _nccl(interconnect: str, port_bytes_per_s: float) -> CollectiveModel:
    return CollectiveModel.for_interconnect(interconnect, net_bytes_per_s=port_bytes_per_s)


@lru_cache(maxsize=1 << 16)
def _seconds(interconnect: str, port_bytes_per_s: float, kind: Kind, size_bytes: float, ranks: int, per_node: int) -> float:
    return _nccl(interconnect, port_bytes_per_s).seconds(kind, size_bytes, ranks, per_node)


def _longer(device_s: float, host_s: float) -> float:
    """Device and host beside each other, equation (5)."""
    return float((device_s**SHARP + host_s**SHARP) ** (1 / SHARP))


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

    def scan_s(self, kernel: Scan | CausalConvolution) -> float:
        """Equation (3), second line."""
        rates = scan_rates(self.machine.name)
        match kernel:
            case Scan():
                alone_s = rates.scan_s(kernel.tokens, kernel.heads, kernel.width, backward=kernel.backward)
            case CausalConvolution():
                value_bytes = self.running.precision.value_bytes
                alone_s = rates.conv_s(kernel.tokens, kernel.channels, value_bytes, backward=kernel.backward)
        return alone_s / self._value("product_share")

    def host_s(self, group: Group, *, of_experts: bool = False) -> float:
        """What the members of a group wait for the slowest of their hosts; a CUDA graph and XLA have no host in between."""
        if self._is_without_host(of_experts=of_experts):
            return 0.0
        return 1e-6 * self._value("meet_us") * max(1.0, log2(max(group.size, 2)))

    def meeting_s(self, collective: Collective, total_bytes: float, group: Group) -> float:
        """Equation (4), of one collective."""
        if group.size <= 1:
            return 0.0
        return self.host_s(group, of_experts=collective is Collective.ALL_TO_ALL) + self.wire_s(collective, total_bytes, group)

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
        """Equations (5), (6) and (8): one act of ``layers`` times these kernels."""
        rest_s, experts_s, attention_s, ring_s, exchange_s = 0.0, 0.0, 0.0, 0.0, 0.0
        launches = {False: 0, True: 0}
        for kernel in kernels:
            launches[kernel.of_experts] += self.launches(kernel)
            match kernel:
                case Product() | Sweep():
                    one_s = self.product_s(kernel) if isinstance(kernel, Product) else self.sweep_s(kernel.size_bytes)
                    if kernel.expert:
                        experts_s += one_s
                    else:
                        rest_s += one_s
                case AttentionCore():
                    attention_s += self.attention_s(kernel)
                case Scan() | CausalConvolution():
                    rest_s += self.scan_s(kernel)
                case Meeting() if kernel.of_experts:
                    sent_bytes = kernel.total_bytes * kernel.share_sent(self.machine.domain)
                    one_s = kernel.count * self.meeting_s(kernel.collective, sent_bytes, kernel.group)
                    if kernel.beside:
                        exchange_s += one_s
                    else:
                        experts_s += one_s
                case Meeting():
                    shown = self._value("beside_share") if kernel.beside else 1.0
                    rest_s += kernel.count * shown * self.meeting_s(kernel.collective, kernel.total_bytes, kernel.group)
                case Ring():
                    one_s = self.host_s(kernel.group) + self.message_s(kernel.size_bytes, kernel.group)
                    ring_s += kernel.rounds * one_s
        rest_s += attention_s + max(0.0, ring_s - attention_s)
        rest_host_s, experts_host_s = (launches[part] * self._launch_s(of_experts=part) for part in (False, True))
        if exchange_s:
            device_s = self.beside_s(rest_s + experts_s, exchange_s, EXCHANGE_UNITS)
            both_s = _longer(device_s, rest_host_s + experts_host_s)
        else:
            both_s = _longer(rest_s, rest_host_s) + _longer(experts_s, experts_host_s)
        return float(layers * both_s * self.grown)

    def launches(self, kernel: Kernel) -> int:
        """Kernels that the host launches for one: in few bits a product's operand is cast by one of its own, and where products multiply scales, those
        of both operands are brought into the order that they want. [Transformer Engine: nvte_swizzle_scaling_factors in front of each product]"""
        match kernel:
            case Product() if kernel.low and self.running.precision.is_low:
                return kernel.count * (1 + (kernel.casts > 0) + 2 * self.running.recipe.scales_in_products)
            case Product() | Sweep() | Meeting():
                return kernel.count
            case Ring():
                return kernel.rounds
            case AttentionCore() | CausalConvolution():
                return 1
            case Scan():
                return SCAN_LAUNCHES[kernel.backward]

    def _launch_s(self, *, of_experts: bool) -> float:
        """Host time of one launch."""
        return 0.0 if self._is_without_host(of_experts=of_experts) else 1e-6 * self._value("launch_us")

    def _is_without_host(self, *, of_experts: bool) -> bool:
        """Whether XLA or a CUDA graph launches a part of a layer."""
        run = self.running
        return run.jax or (run.graphs and not (of_experts and run.host_experts))

    def beside_s(self, computing_s: float, sent_s: float, units: int) -> float:
        """Equation (7): computing and what is sent beside it, on so many multiprocessors."""
        return max(computing_s, sent_s) + self.taken_s(min(computing_s, sent_s), units)

    def taken_s(self, hidden_s: float, units: int) -> float:
        """What computing takes longer where so many seconds of communication on so many multiprocessors go on beside it."""
        return hidden_s * units / self.machine.units

    @property
    def grown(self) -> float:
        """Equation (6)."""
        return 1.0 + self._value("growth") * max(0.0, log2(max(self.devices, 1) / 8))

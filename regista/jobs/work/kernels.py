"""Kinds of work that have a price: matrix products, attention, scans, sweeps over memory, and meetings of devices."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.collective import Collective

__all__ = ["AttentionCore", "CausalConvolution", "Group", "Kernel", "Meeting", "Product", "Ring", "Scan", "Sweep"]


@dataclass(frozen=True, slots=True)
class Product:
    """``count`` kernels of ``batch`` products m x k by k x n.   low: may be computed in fewer bits; casts: elements that are brought into them before
    each product (operands that an earlier product has cast are not cast again).   expert: of an expert."""

    m: int
    n: int
    k: int
    batch: int = 1
    count: int = 1
    low: bool = True
    expert: bool = False
    casts: int = 0

    @property
    def of_experts(self) -> bool:
        """Whether it lies behind the exchange of experts."""
        return self.expert

    @property
    def flop(self) -> float:
        return 2.0 * self.count * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class AttentionCore:
    """Fused attention of one micro-batch on one device.   batch: sequences.   parts: devices that share its queries evenly."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    head_dim: int
    causal: bool
    parts: int = 1
    backward: bool = False

    @property
    def of_experts(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Scan:
    """Chunked scan of a Mamba-2 layer of one micro-batch on one device.   width: elements of a head."""

    tokens: int
    heads: int
    width: int
    backward: bool = False

    @property
    def of_experts(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class CausalConvolution:
    """Depthwise convolution of a few taps along a sequence, and its activation, in one kernel."""

    tokens: int
    channels: int
    backward: bool = False

    @property
    def of_experts(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Sweep:
    """Bytes read and written by ``count`` kernels that compute next to nothing.   expert: on tokens that are on their way to experts and back."""

    size_bytes: float
    count: int = 1
    expert: bool = False

    @property
    def of_experts(self) -> bool:
        return self.expert


@dataclass(frozen=True, slots=True)
class Group:
    """``size`` devices that stand ``stride`` apart."""

    size: int
    stride: int

    def members_per_node(self, domain: int) -> int:
        """How many of them share a node (a domain of the fast links) of ``domain`` devices."""
        return max(1, min(self.size, domain // self.stride))


@dataclass(frozen=True, slots=True)
class Meeting:
    """``count`` collectives of a group.  total_bytes: that the group holds together.   beside: goes on beside computing, all but a share.

    chosen: of an exchange of experts that sends a token once to each node (inside one, to each device) that has any of the ``chosen`` experts it goes
    to; 0: once to each expert.
    """

    collective: Collective
    total_bytes: float
    group: Group
    beside: bool = False
    count: int = 1
    chosen: int = 0

    @property
    def of_experts(self) -> bool:
        return self.collective is Collective.ALL_TO_ALL

    def share_sent(self, domain: int) -> float:
        """Bytes that this exchange sends, as a share of those of one that sends each token once to every expert it goes to.

        k experts at random on p places are on p (1 - (1 - 1/p)^k) different ones.
        """
        if not self.chosen:
            return 1.0
        inside = self.group.members_per_node(domain)
        places = self.group.size if inside >= self.group.size else -(-self.group.size // inside)
        return float(places * (1 - (1 - 1 / places) ** self.chosen) / self.chosen)


@dataclass(frozen=True, slots=True)
class Ring:
    """``rounds`` messages to the next device of a group, beside the attention of the same pass (context parallelism)."""

    size_bytes: float
    rounds: int
    group: Group

    @property
    def of_experts(self) -> bool:
        return False


Kernel = Product | AttentionCore | Scan | CausalConvolution | Sweep | Meeting | Ring

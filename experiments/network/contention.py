"""Who shares a link, and what it costs: two all-reduces at once, and tensor parallelism that leaves its node.

    python -m experiments.network.contention              simulate, fit, write results/contention_two.csv and contention_gpt.csv, draw
    python -m experiments.network.contention --redraw     draw from the CSVs

Two nodes of two devices: ring A of ranks 0 and 2, ring B of ranks 1 and 3, on the same nic.  With u = time of half the bytes over the nic
alone, A ends after 2u without sharing, 4u when fair, 3u when first come is first served; B after 2u, 4u, 4u.

GPT on 4 nodes of 8 V100 (DLPerf, 2021: one 100 Gb/s nic per node), OneFlow and Megatron-LM, 16 rows with more than one GPU:

    compute    96 s L h^2 (1 + s/6h + V/16Lh) flop per sequence (Narayanan et al. 2021, equation 3; recomputation included),
               at the rate of the row with one GPU of the same system                                                      [stated]
    tensor     6 L + 2 all-reduces of micro_batch s h fp16 numbers per micro-batch: 2 per layer and pass (forward, recomputation, backward),
    parallel   one for the embedding and one for the logits; in line with the compute
    data       one all-reduce of the fp16 gradients.  In line: after the backward.  Overlapped: layer by layer while the backward goes on
    parallel   (with recomputation 3/4 of the step, an even pace over the layers, the embedding last).  Both are tabled for both systems.
               In line are Megatron-LM of 2021, which reduced after the backward, and OneFlow with tensor parallelism, whose script then
               puts every collective on the stream that computes (experiments.fidelity.plans)
    pipeline   (m + p - 1) / m of the time of the micro-batches, equal stages; transfers between stages are hidden     -> column ``theory``

Every all-reduce is a ring simulated as flows, all groups at once, so that rings that leave a node share its nic.  Two constants per system:
bytes/s of a device inside its node, fitted on MP_1x8x1 (tensor parallel on 1 node), and of a nic, on MP_1x16x1 (on 2 nodes).
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure, SubFigure
from rich.console import Console
from rich.table import Table

from experiments.common.bisection import where_reached
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from simulator.network import Sharing, simulate_flows
from simulator.network.algorithms import ring_all_reduce
from simulator.network.collectives import collective_flows
from simulator.network.fabric import Machine
from simulator.network.links import Flow, Link, Route

__all__ = ["NIC_ROW", "NODE_ROW", "PER_NODE", "RATE_ROW", "main", "two_rings"]

HERE = Path(__file__).parents[1]
TWO, GPT, PICTURE = HERE / "results/contention_two.csv", HERE / "results/contention_gpt.csv", HERE / "figures/contention.png"
PAPER = HERE / "paper_numbers/oneflow_dlperf_gpt_v100.csv"
Spans = tuple[tuple[float, float, float], ...]
SYSTEMS, WAYS = ("oneflow", "megatron"), ("inline", "overlapped")
RATE_ROW, NODE_ROW, NIC_ROW = "DP_1x1x1_2_1536x16", "MP_1x8x1_16_1536x16", "MP_1x16x1_16_3072x16"
PER_NODE, FP16_BYTES, BACKWARD_SHARE = 8, 2, 3 / 4


def machine(num_nodes: int, per_node: int, node_bytes_per_s: float, nic_bytes_per_s: float) -> Machine:
    device = DeviceSpec(kind="gpu", memory_bytes=16 * 10**9, rate_flop_per_s=1e12, memory_bandwidth_bytes_per_s=1e12)
    node, nic = (LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=rate) for rate in (node_bytes_per_s, nic_bytes_per_s))
    return Machine(Cluster(name="v100", source="", num_nodes=num_nodes, devices_per_node=per_node, device=device, node=node, nic=nic))


def two_rings(sharing: Sharing, size_bytes: float = 1e9, nic_bytes_per_s: float = 1e9, later_s: float = 0.0) -> tuple[Spans, Spans]:
    """(from_s, until_s, bytes/s) at which A's and B's bytes leave node 0; B begins ``later_s`` after A."""
    fabric = machine(2, 2, 100 * nic_bytes_per_s, nic_bytes_per_s)
    a = collective_flows(ring_all_reduce(2), fabric, size_bytes, ranks=(0, 2), name="A")
    b = collective_flows(ring_all_reduce(2), fabric, size_bytes, ranks=(1, 3), name="B", not_before_s=later_s)
    times = simulate_flows((*a, *b), fabric.links, sharing).times
    spans = [tuple(piece for f in flows if "nic:out:0" in f.route.links for piece in times[f.name].pieces) for flows in (a, b)]
    return spans[0], spans[1]


@lru_cache(maxsize=4096)
def groups_all_reduce_s(num_nodes: int, extent: int, stride: int, groups: int, node: float, nic: float) -> float:
    """Seconds per byte of ring all-reduces of ``extent`` ranks, ``stride`` apart, in all ``groups`` groups at once."""
    fabric = machine(num_nodes, PER_NODE, node, nic)
    block = extent * stride
    firsts = [base + first for base in range(0, groups // stride * block, block) for first in range(stride)]
    flows = [
        flow
        for first in firsts
        for flow in collective_flows(ring_all_reduce(extent), fabric, 1.0, ranks=range(first, first + block, stride), name=f"group{first}")
    ]
    return simulate_flows(flows, fabric.links).end_s


def flop_per_sequence(row: pd.Series) -> float:
    s, layers, h, vocab = row.seq, row.layers, row.hidden, row.vocab
    return float(96 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h)))


def sequences_per_s(row: pd.Series, rate_flop_per_s: float, node: float, nic: float, overlap: bool) -> float:
    """The model of the docstring."""
    dp, tp, pp, micro = int(row.dp), int(row.tp), int(row.pp), int(row.accum_steps)
    gpus = dp * tp * pp
    compute_s = row.global_batch * flop_per_sequence(row) / gpus / rate_flop_per_s
    tensor_s = 0.0
    if tp > 1:
        per_byte_s = groups_all_reduce_s(int(row.nodes), tp, 1, dp * pp, node, nic)
        one_bytes = row.micro_batch * row.seq * row.hidden * FP16_BYTES
        tensor_s = micro * (6 * row.layers / pp + 2 / pp) * one_bytes * per_byte_s
    inner_s = (compute_s + tensor_s) * (micro + pp - 1) / micro
    if dp == 1:
        return float(row.global_batch / inner_s)
    per_byte_s = groups_all_reduce_s(int(row.nodes), dp, tp, tp * pp, node, nic)
    gradient_bytes = row.params_b * 1e9 * FP16_BYTES / (tp * pp)
    if not overlap:
        return float(row.global_batch / (inner_s + gradient_bytes * per_byte_s))
    last_s = inner_s / micro  # gradients are whole only in the last micro-batch's backward
    embedding_bytes = min(row.vocab * row.hidden * FP16_BYTES / tp, gradient_bytes)
    return float(
        row.global_batch
        / _overlapped_s(inner_s, last_s, int(row.layers / pp), gradient_bytes - embedding_bytes, embedding_bytes, per_byte_s)
    )


def _overlapped_s(inner_s: float, last_s: float, layers: int, layer_bytes: float, embedding_bytes: float, per_byte_s: float) -> float:
    """End of the step when each layer's gradients leave as they are ready, one all-reduce after another."""
    link = Link(name="group", bandwidth_bytes_per_s=1 / per_byte_s)
    flows: list[Flow] = []
    for number in range(layers + 1):
        ready_s = inner_s - last_s * BACKWARD_SHARE * (1 - min(number + 1, layers) / layers)
        size_bytes = layer_bytes / layers if number < layers else embedding_bytes
        flows.append(Flow(name=f"layer{number}", route=Route(links=("group",)), size_bytes=size_bytes, not_before_s=ready_s))
    return max(inner_s, simulate_flows(flows, [link], Sharing.FIFO).end_s)


def bandwidth(row: pd.Series, wanted: float, rate: float, node: float | None) -> float:
    """At which the row's throughput is the measured one: of a node's devices, or of a nic when ``node`` is given; bytes/s."""

    def reached(x: float) -> float:
        return sequences_per_s(row, rate, x if node is None else node, 1e9 if node is None else x, False)

    return where_reached(reached, wanted, 1e8, 1e12)


def measure_gpt() -> list[dict[str, object]]:
    table = pd.read_csv(PAPER).set_index("case", drop=False)
    rows: list[dict[str, object]] = []
    for system in SYSTEMS:
        measured = table[f"{system}_seq_per_s"]
        rate = float(measured[RATE_ROW]) * flop_per_sequence(table.loc[RATE_ROW])
        node = bandwidth(table.loc[NODE_ROW], float(measured[NODE_ROW]), rate, None)
        nic = bandwidth(table.loc[NIC_ROW], float(measured[NIC_ROW]), rate, node)
        for case, row in table.iterrows():
            gpus = row.dp * row.tp * row.pp
            if gpus == 1:
                continue
            role = {NODE_ROW: "fitted (node)", NIC_ROW: "fitted (nic)"}.get(str(case), "predicted")
            kind, wanted = "sim" if row.pp == 1 else "theory", float(measured[case])
            numbers: dict[str, object] = {"paper_seq_per_s": wanted, "theory_free_links_seq_per_s": gpus * rate / flop_per_sequence(row)}
            for way in WAYS:
                simulated = sequences_per_s(row, rate, node, nic, way == "overlapped")
                numbers |= {f"{kind}_{way}_seq_per_s": simulated, f"error_{way}": simulated / wanted - 1}
            constants = {"rate_flop_per_s": rate, "fitted_node_bytes_per_s": node, "fitted_nic_bytes_per_s": nic}
            about = {"system": system, "case": case, "nodes": row.nodes, "dp": row.dp, "tp": row.tp, "pp": row.pp, "role": role}
            rows.append(about | numbers | constants)
    return rows


def measure() -> None:
    TWO.parent.mkdir(exist_ok=True)
    two = [
        {"later_s": later_s, "sharing": sharing.value, "ring": ring, "sim_from_s": begin, "sim_until_s": until, "sim_bytes_per_s": rate}
        for later_s in (0.0, 0.25, 0.5)
        for sharing in Sharing
        for ring, spans in zip("AB", two_rings(sharing, later_s=later_s), strict=True)
        for begin, until, rate in spans
    ]
    pd.DataFrame(two).to_csv(TWO, index=False, float_format="%.6g")
    pd.DataFrame(measure_gpt()).to_csv(GPT, index=False, float_format="%.6g")


def _draw_two(figure: SubFigure, two: pd.DataFrame) -> None:
    """What leaves node 0 through its nic, A below and B on top, one panel per way of sharing."""
    panels = figure.subplots(1, len(Sharing), sharex=True, sharey=True)
    for panel, (sharing, here) in zip(panels, two.groupby("sharing", sort=False), strict=True):
        below = here[here.ring == "A"]
        for row in here.itertuples():
            cuts = sorted(
                {
                    row.sim_from_s,
                    row.sim_until_s,
                    *(t for t in (*below.sim_from_s, *below.sim_until_s) if row.sim_from_s < t < row.sim_until_s),
                }
            )
            for begin, until in zip(cuts, cuts[1:], strict=False):
                under = below[(below.sim_from_s <= begin) & (below.sim_until_s > begin)].sim_bytes_per_s.sum() if row.ring == "B" else 0.0
                colour = "#0072B2" if row.ring == "A" else "#E69F00"
                panel.bar(
                    begin,
                    row.sim_bytes_per_s / 1e9,
                    until - begin,
                    under / 1e9,
                    align="edge",
                    color=colour,
                    edgecolor="white",
                    linewidth=0.5,
                )
        panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        panel.set(title=f"sharing: {sharing} (sim)", xlabel="s")
    panels[0].set_ylabel("nic of node 0 [GB/s]\nring A blue, ring B orange", fontsize=8)


def _cell(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def draw() -> None:
    two, table = pd.read_csv(TWO), pd.read_csv(GPT)
    shown = Table(
        "B begins after A by", "sharing", "A ends (sim)", "B ends (sim)", title="two all-reduces of 1 GB over one nic of 1 GB/s, s"
    )
    for (later_s, sharing), here in two.groupby(["later_s", "sharing"], sort=False):
        ends = here.groupby("ring").sim_until_s.max()
        shown.add_row(f"{later_s:g}", sharing, f"{ends['A']:g}", f"{ends['B']:g}")
    Console().print(shown)
    columns = ("system", "case", "role", "paper", "sim in line", "error", "sim overlapped", "error", "theory in line", "theory overlapped")
    report = Table(*columns, title="GPT, sequences/s")
    for row in table.to_dict("records"):
        sim, theory = ([row[f"{kind}_{way}_seq_per_s"] for way in WAYS] for kind in ("sim", "theory"))
        errors = [f"{row[f'error_{way}']:+.1%}" for way in WAYS]
        shown_sim = [cell for value, error in zip(sim, errors, strict=True) for cell in (_cell(value), error)]
        report.add_row(row["system"], row["case"], row["role"], _cell(row["paper_seq_per_s"]), *shown_sim, *map(_cell, theory))
    Console().print(report)
    for system, here in table.groupby("system", sort=False):
        held = here[here.role == "predicted"]
        first, parts = here.iloc[0], {"without a pipeline": held[held.pp == 1], "with a pipeline": held[held.pp > 1]}
        means = "; ".join(
            f"{len(part)} {label}: " + ", ".join(f"{part[f'error_{way}'].abs().mean():.1%} {way}" for way in WAYS)
            for label, part in parts.items()
        )
        links = f"node {first.fitted_node_bytes_per_s / 1e9:.1f} GB/s, nic {first.fitted_nic_bytes_per_s / 1e9:.2f} GB/s"
        Console().print(f"{system}: fitted {links}; mean |error| of the predicted rows, {means}")
    figure = Figure(figsize=(12, 8), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(1, 2.2))
    _draw_two(upper, two[two.later_s == 0.25])
    panels = lower.subplots(1, 2, sharey=True)
    for panel, (system, here) in zip(panels, table.groupby("system", sort=False), strict=True):
        places = range(len(here))
        panel.plot(places, here.theory_free_links_seq_per_s, "_", color="grey", markersize=12, label="theory: links cost nothing")
        panel.plot(places, here.paper_seq_per_s, "ko", markerfacecolor="none", label="paper")
        for way, mark in zip(WAYS, ("x", "+"), strict=True):
            for kind, colour in (("sim", "#0072B2"), ("theory", "#009E73")):
                panel.plot(places, here[f"{kind}_{way}_seq_per_s"], mark, color=colour, label=f"{kind}, gradients {way}")
        fitted = [i for i, role in enumerate(here.role) if role != "predicted"]
        panel.plot(
            fitted, here.paper_seq_per_s.iloc[fitted], "s", color="#D55E00", markersize=11, markerfacecolor="none", label="fitted on"
        )
        panel.set_xticks(places, [f"{r.case.split('_')[0]} {r.dp}x{r.tp}x{r.pp}" for r in here.itertuples()], rotation=75, fontsize=8)
        panel.set(yscale="log", title=f"{system}: data x tensor x pipeline parallel", ylabel="sequences/s")
        panel.legend(frameon=False, fontsize=8)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    Console().print(f"-> {TWO}, {GPT}, {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSVs")
    if not parser.parse_args().redraw:
        measure()
    draw()


if __name__ == "__main__":
    main()

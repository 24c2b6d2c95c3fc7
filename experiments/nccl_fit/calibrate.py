"""The files of planner/cost/nccl/interconnects, made from the measured rows.

    python -m experiments.nccl_fit.calibrate [NAME...]     fit and write NAME.toml (all), write curves.csv

An interconnect's constants within a node are fitted to its rows within one node.  What happens between nodes was measured on H100 alone
(2 x 8, all-reduce), so the others take the numbers of H100; a port's rate is the data sheet's, times what ports reach.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from statistics import median
from typing import Any

from experiments.nccl_fit.laws import Point, fit_constants, points_of
from experiments.nccl_fit.rows import Row, measured_rows
from planner.cost.nccl.groups import Kind
from planner.ir.text import save_text

__all__ = ["INTERCONNECTS", "curve_lines", "fitted", "node_names", "start"]

FOLDER = Path(__file__).parent.parent.parent / "planner/cost/nccl/interconnects"
Data = dict[str, Any]

LOGS = "nccl-tests logs in public NCCL issues and in the documentation of the University of Sheffield"
DATABASE = "aiconfigurator's kernel database (Apache-2.0), NCCL 2.23 to 2.29"
VTRAIN = "vTrain's look-up tables (MIT), all-reduce of 1 MB to 1 GB"
INTERCONNECTS: dict[str, tuple[float, float, bool, str]] = {
    "a100-nvswitch": (300.0, 0.94 * 25.0, False, DATABASE),
    "a100-nvswitch-2022": (300.0, 0.94 * 25.0, False, VTRAIN),
    "h100-nvswitch": (450.0, 0.94 * 50.0, True, f"{DATABASE}; between nodes {LOGS}"),
    "h200-nvswitch": (450.0, 0.94 * 50.0, True, DATABASE),
    "b200-nvswitch": (900.0, 0.94 * 50.0, True, DATABASE),
    "b300-nvswitch": (900.0, 0.94 * 100.0, True, DATABASE),
    "gb200-nvl72": (900.0, 0.94 * 50.0, True, DATABASE),
    "gb300-nvl72": (900.0, 0.94 * 100.0, True, DATABASE),
    "l40s-pcie": (32.0, 0.94 * 25.0, False, DATABASE),
    "rtxpro6000-pcie": (64.0, 0.94 * 50.0, False, DATABASE),
    "v100-nvlink": (150.0, 0.94 * 12.5, False, VTRAIN),
    "v100-pcie": (16.0, 0.94 * 12.5, False, LOGS),
}
"""Name -> (GB/s of a device's port and of its network port by the data sheet, the latter times 0.94; adds in the switch; source)."""


def start(name: str) -> Data:
    """Where a fit begins: steps as in NCCL's tuning table, a port's rate by the data sheet."""
    port, net, switch, source = INTERCONNECTS[name]
    data: Data = {
        "source": source,
        "port_GBps": {"2": 0.7 * port, "4": 0.75 * port, "8": 0.8 * port},
        "protocols": {
            "ll": {
                "base_us": 4.6,
                "hop_us": 0.8,
                "net_hop_us": 2.7,
                "tree_hop_us": 0.6,
                "tree_net_hop_us": 5.0,
                "share": 0.15,
                "net_share": 0.05,
            }
            | {"net_fill_us": 4.0, "net_fill_MB": 0.0005},
            "ll128": {
                "base_us": 5.2,
                "hop_us": 1.1,
                "net_hop_us": 4.0,
                "tree_hop_us": 1.25,
                "tree_net_hop_us": 8.5,
                "share": 0.5,
                "net_share": 0.3,
            },
            "simple": {
                "base_us": 8.4,
                "hop_us": 3.4,
                "net_hop_us": 14.0,
                "tree_hop_us": 4.0,
                "tree_net_hop_us": 14.0,
                "share": 1.0,
                "net_share": 1.0,
            }
            | {"fill_us": 40.0, "fill_MB": 40.0, "net_fill_us": 80.0, "net_fill_MB": 30.0},
        },
        "exchange": {"base_us": 6.0, "post_us": 0.3, "fill_us": 20.0, "fill_MB": 20.0}
        | {"GBps": {"2": 0.6 * port, "4": 0.7 * port, "8": 0.7 * port}},
        "net": {"GBps": net, "post_us": 2.0},
    }
    if switch:
        data["switch"] = {"base_us": 20.0, "GBps": 0.6 * port, "fill_us": 60.0, "fill_MB": 16.0, "fewest_ranks": 4, "across_share": 0.93}
    if "nvl72" in name:
        data["domain"] = 72
    if "pcie" in name:
        del data["protocols"]["ll128"]  # NCCL takes it where NVLink connects all
    return data


def node_names(data: Data, points: Sequence[Point]) -> list[str]:
    """The constants that points within a node determine."""
    kinds, sizes = {p.kind for p in points}, {p.group.ranks for p in points}
    rings, exchange = kinds - {Kind.ALL_TO_ALL}, Kind.ALL_TO_ALL in kinds
    small = min(p.size_bytes for p in points) < 2**18
    names = [f"port_GBps.{size}" for size in data["port_GBps"] if rings and int(size) in sizes]
    for protocol, own in data["protocols"].items():
        if small or protocol == "simple":
            names += [f"protocols.{protocol}.{key}" for key in ("base_us", "hop_us")]
        if protocol == "simple":
            names += [f"protocols.simple.{key}" for key in ("fill_us", "fill_MB") if key in own]
        elif small:
            names.append(f"protocols.{protocol}.share")
    if "switch" in data and Kind.ALL_REDUCE in kinds:
        names += [f"switch.{key}" for key in ("base_us", "GBps", "fill_us", "fill_MB")]
    if exchange:
        names += [f"exchange.{key}" for key in ("base_us", "post_us", "fill_us", "fill_MB")]
        names += [f"exchange.GBps.{size}" for size in data["exchange"]["GBps"] if int(size) in sizes]
    return names


NET_NAMES = [
    *("protocols.ll.tree_net_hop_us", "protocols.ll.net_share", "protocols.ll128.tree_net_hop_us", "protocols.ll128.net_share"),
    *("protocols.ll.net_fill_us", "protocols.ll.net_fill_MB", "protocols.simple.net_fill_us", "protocols.simple.net_fill_MB"),
    *("protocols.simple.tree_net_hop_us", "switch.across_share"),
]


def fitted(name: str, rows: Sequence[Row], rounds: int = 25) -> Data:
    """The constants of an interconnect from some of its rows; those between nodes where rows have several."""
    data = start(name)
    sound = [row for row in rows if row.interconnect == name and row.sound]
    node = points_of([row for row in sound if row.ranks == row.per_node])
    groups = sorted({p.group.ranks for p in node})
    if (groups and not {"2", "4", "8"} <= set(map(str, groups))) or len(groups) > 3:
        data["port_GBps"] = {str(size): data["port_GBps"].get(str(size), data["port_GBps"]["4"]) for size in groups}
        data["exchange"]["GBps"] = {str(size): data["exchange"]["GBps"].get(str(size), data["exchange"]["GBps"]["4"]) for size in groups}
    if node:
        data = fit_constants(data, node, node_names(data, node), rounds)
    across = points_of([row for row in sound if row.ranks > row.per_node and "NVLS" in row.site])
    if across:
        data = fit_constants(data, across, NET_NAMES, rounds)
    return data


def curve_lines(rows: Sequence[Row]) -> list[str]:
    """The lines of curves.csv: medians of repeated rows within a node, at most two sizes per octave."""
    times: dict[tuple[str, str, int, int], dict[int, list[float]]] = {}
    for row in rows:
        if (row.sound and row.ranks == row.per_node and row.table != "nccl_tests_busbw") or row.interconnect == "v100-pcie":
            adds = row.in_switch or row.kind is not Kind.ALL_REDUCE
            key = (row.interconnect, row.kind.value, int(adds), row.ranks)
            times.setdefault(key, {}).setdefault(row.size_bytes, []).append(row.paper_s)
    lines = ["interconnect,kind,in_switch,ranks,bytes_us"]
    for (name, kind, adds, ranks), by_size in sorted(times.items()):
        kept = _thinned(sorted(by_size))
        points = " ".join(f"{size}:{1e6 * median(by_size[size]):.5g}" for size in kept)
        lines.append(f"{name},{kind},{adds},{ranks},{points}")
    return lines


def _thinned(sizes: Sequence[int]) -> list[int]:
    """First and last, and between them sizes at least half an octave apart."""
    kept = [sizes[0]]
    for size in sizes[1:-1]:
        if size >= math.sqrt(2) * kept[-1] * 0.999 and sizes[-1] >= math.sqrt(2) * size * 0.999:
            kept.append(size)
    return [*kept, sizes[-1]]


def toml(data: Data, points: int, error: str) -> str:
    """The text of an interconnect's file."""
    lines = [f"source = {json.dumps(data['source'])}", f"fitted = {json.dumps(f'{points} points; {error}')}"]
    lines += [f"{key} = {value}" for key, value in data.items() if isinstance(value, int)]
    tables: list[tuple[str, Data]] = [("", {k: v for k, v in data.items() if isinstance(v, dict)})]
    flat: dict[str, Data] = {}

    def walk(prefix: str, table: Data) -> None:
        plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
        if plain and prefix:
            flat[prefix] = plain
        for key, value in table.items():
            if isinstance(value, dict):
                walk(f"{prefix}.{key}" if prefix else key, value)

    walk(*tables[0])
    for prefix, plain in flat.items():
        lines += ["", f"[{prefix}]", *(f"{k} = {v if isinstance(v, int) else float(f'{v:.4g}')}" for k, v in plain.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="interconnects; none: all")
    names = parser.parse_args().names or list(INTERCONNECTS)
    rows = measured_rows()
    h100 = fitted("h100-nvswitch", rows)
    for name in names:
        data = deepcopy(h100) if name == "h100-nvswitch" else fitted(name, rows)
        if name != "h100-nvswitch":
            for protocol, own in data["protocols"].items():
                own |= {key: h100["protocols"][protocol][key] for key in own if "net" in key}
            if "switch" in data:
                data["switch"]["across_share"] = h100["switch"]["across_share"]
        points = points_of([row for row in rows if row.interconnect == name and row.sound])
        save_text(FOLDER / f"{name}.toml", toml(data, len(points), "see experiments/results/nccl_score.csv for the errors"))
    save_text(FOLDER / "curves.csv", "\n".join(curve_lines(rows)) + "\n")


if __name__ == "__main__":
    main()

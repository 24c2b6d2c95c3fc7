"""Famous configurations: published seconds of a step against what ``regista predict`` says of the machine as it is shipped.

    python -m experiments.fidelity.jobs.famous      predict, write results/famous.csv, print the table (1 minute)
                                                    after experiments.fidelity.jobs, whose rows and constants it takes

preset     no row of the source was fitted to: SC'21's table 1 and the sequence-parallel paper on A100 (whose shares are those of the H100),
           Llama 3's table 4, Megatron-Bridge
left out   dgxc-benchmarking, to which the H100's constants are fitted: predicted by constants that have seen no row of the model (results/jobs.csv)

Where a paper prints TFLOP/s, its seconds are its own count of flop over them; for Llama 3 that count is Model.flop_per_token, which its 43 % of
the peak at 430 TFLOP/s agree with.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from experiments.fidelity.points import Point, points
from regista.jobs.job import Job
from regista.jobs.predict import predict
from regista.jobs.readers.toml_job import toml_job

__all__ = ["LEFT_OUT", "famous", "main", "presets"]

HERE = Path(__file__).parents[2]
TABLE, JOBS, RESULT = HERE / "paper_numbers/famous_steps.csv", HERE / "results/jobs.csv", HERE / "results/famous.csv"

LEFT_OUT = (
    ("Llama 3.1 8b BF16", 8),
    ("Llama 3.1 8b BF16", 128),
    ("Llama 3.1 70b BF16", 64),
    ("Llama 3.1 70b BF16", 2048),
    ("Llama 3.1 405b BF16", 576),
    ("Llama 3.1 405b BF16", 2304),
    ("NeMo Megatron BF16", 512),
    ("Nemotron4 340b BF16", 128),
    ("Grok 1 314b BF16", 512),
)
"""Beginning of the title, and devices, of rows of results/jobs.csv."""


def _of_point(point: Point) -> dict[str, object]:
    """The data of a job's TOML.  Full recomputation, or selective with sequence parallelism; Megatron-LM of 2021: attention is not one kernel,
    dropout, one all-reduce of gradients behind the last pass."""
    size = point.size
    model = {
        "layers": size.layers,
        "hidden": size.hidden,
        "ffn": 4 * size.hidden,
        "heads": size.heads,
        "vocab": size.vocab,
        "seq": size.seq,
    }
    layout = {"tp": point.tp, "pp": point.pp, "dp": point.dp, "vp": point.interleave, "micro_batch": point.micro_batch}
    running = {
        "global_batch": point.batch,
        "sequence_parallel": point.sequence_parallel,
        "recompute": "selective" if point.sequence_parallel else "full",
        "precision": "fp16",
        "attention": "unfused",
        "dropout": True,
    }
    nodes = -(-point.devices // 8)
    return {
        "model": model | {"tied": True, "learned_positions": True},
        "cluster": {"name": f"dgx-a100:{nodes}"},
        "layout": layout | running,
    }


def _of_row(row: Mapping[str, str]) -> dict[str, object]:
    numbers = {key: int(value) for key, value in (pair.split("=") for pair in row["layout"].split())}
    flags = {"sequence_parallel": True, "overlap_tp": True, "overlap_grad": True, "overlap_param": True, "overlap_p2p": True}
    layout = numbers | flags | {"precision": row["precision"]}
    if row["model"] == "llama3.1-405b":
        chunks = numbers["pp"] * numbers["vp"]
        layout["layers_of_chunks"] = [0, *[1] * (chunks - 2), 0]
    return {"model": {"family": row["model"]}, "cluster": {"name": row["cluster"]}, "layout": layout}


def presets() -> Iterator[tuple[Job, float, str]]:
    """(job, published seconds, source)."""
    for data in ("sc21", "seqpar"):
        for point in points(data):
            yield toml_job(_of_point(point), f"{data}: {point.name}"), point.paper_s, data
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            job = toml_job(_of_row(row), row["name"])
            flop = job.layout.global_batch * job.model.seq * job.model.flop_per_token()
            paper_s = float(row["step_s"] or 0) or flop / (1e12 * float(row["tflops_per_gpu"]) * job.devices)
            yield job, paper_s, row["source"]


def famous() -> pd.DataFrame:
    """One row per configuration: sim and paper side by side, and the share of the data sheet's peak that the prediction says is used."""
    rows: list[dict[str, object]] = []
    for job, paper_s, source in presets():
        done = predict(job)
        rows.append(_row(job.name, job.machine, job.devices, "preset", source, paper_s, done.step_s) | {"sim_utilisation": done.mfu})
    kept = pd.read_csv(JOBS)
    for title, devices in LEFT_OUT:
        like = kept[(kept["data"] == "dgxc") & kept["job"].str.startswith(title) & (kept["devices"] == devices)].iloc[0]
        rows.append(_row(f"{title}, {devices:,} GPUs", str(like["machine"]), devices, "left out", "dgxc", like["paper_s"], like["held_s"]))
    return pd.DataFrame(rows)


def _row(name: str, machine: str, devices: int, how: str, source: str, paper_s: float, sim_s: float) -> dict[str, object]:
    about = {"configuration": name, "machine": machine, "devices": devices, "predicted_by": how, "source": source}
    return about | {"paper_s": paper_s, "sim_s": sim_s, "error": sim_s / paper_s - 1}


def main() -> None:
    rows = famous()
    rows.to_csv(RESULT, index=False, float_format="%.5g")
    print(rows.drop(columns="source").to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    error = rows["error"].abs()
    print(f"{len(rows)} configurations: mean {error.mean():.1%}, median {error.median():.1%}, worst {error.max():.1%}")


if __name__ == "__main__":
    main()

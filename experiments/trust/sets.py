"""All sets that the project scores, read from the committed rows of their experiments; nothing is predicted anew.

set                                        rows                              given
jobs: dgxc, golden (seconds, bytes)        jobs.csv                          paper
jobs: Megatron-Bridge, Sailor              unseen_jobs.csv                   paper
DLPerf's models, kernel by kernel          dlperf.csv, wide_deep.csv         paper
fidelity: vTrain, SC'21, ...               fidelity.csv                      paper
kernels: products, attention               kernel_points.csv                 paper
whole models on one device                 kernel_models.csv                 paper
NCCL's collectives                         nccl_score_rows.csv.gz            paper
presets: DLPerf's models, ZeRO             their sweeps                      paper
our own GPTs on this project's machine     own_gpt.csv                       run
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from experiments.trust.scored import ScoredSet, summarised_row
from planner.ir.errors import RegistaError
from regista.jobs import read_jobs

__all__ = ["UNSCORED", "scored_sets", "summarised_rows"]

HERE = Path(__file__).parents[1]
RESULTS, PAPER = HERE / "results", HERE / "paper_numbers"

UNSCORED = {
    "memory: sequence-parallel paper": "its activations per layout: no command holds our Plans' bytes against them yet",
    "jobs: ZeRO-3 of SC'21, table 2": "two constants of ZeRO-3's gathers were fitted to its six rows, so they are a test and no score",
}
"""Published sets that nothing is predicted for, and why."""
JOB_FILES = {
    "dgxc": "nvidia_dgxc_step_times.csv",
    "golden": "megatron_ci_golden_values.csv",
    "bridge": "megatron_bridge_performance_summary.csv",
    "sailor": "sailor_validation.csv",
}
JOB_HELD = {"dgxc": "each model under a framework", "golden": "test cases in 5 folds"}
PRESETS = {
    "bert_fp32": "BERT-base float32",
    "bert_amp": "BERT-base AMP",
    "resnet50_fp32": "ResNet-50 float32",
    "resnet50_amp": "ResNet-50 AMP",
    "insightface": "InsightFace",
    "gpt_dlperf": "GPT-2",
    "zero_paper": "GPT-2 small with ZeRO",
    "roofline": "DLPerf's models without a kernel table",
}


def scored_sets() -> list[ScoredSet]:
    """Every set whose rows are there."""
    return [
        scored
        for read in (_jobs, _unseen, _fidelity, _kernels, _models, _nccl, _dlperf, _presets, _own)
        for scored in read()
        if len(scored.points) > 0
    ]


def _table(name: str) -> pd.DataFrame | None:
    path = RESULTS / name
    return pd.read_csv(path) if path.is_file() else None


def _jobs() -> Iterator[ScoredSet]:
    rows, command = _table("jobs.csv"), "python -m experiments.fidelity.jobs"
    if rows is None:
        return
    for data, every in rows.groupby("data", sort=False):
        refused, published = _refused(str(data))
        seconds, held = every[every["paper_s"].notna()], JOB_HELD.get(str(data), "each group of rows")
        timed = seconds.assign(
            device=seconds["machine"] + " " + seconds["precision"],
            error=seconds["held_error"],
            half_width=seconds["held_high_s"] / seconds["held_s"] - 1,
        )
        yield ScoredSet(
            name=f"jobs: {data}",
            quantity="seconds per step",
            points=timed[["device", "group", "error", "inside", "half_width"]],
            predicted="sim",
            given="paper",
            left_out=held,
            command=command,
            published=published,
            missing=refused,
            split=True,
        )
        sized = every[every["paper_bytes"].notna() & every["sim_bytes"].notna()]
        if len(sized):
            yield ScoredSet(
                name=f"jobs: {data}",
                quantity="peak bytes",
                points=sized.assign(device=sized["machine"], error=sized["bytes_error"])[["device", "group", "error"]],
                predicted="sim",
                given="paper",
                left_out="everything: no constant is fitted to bytes, but a device's workspace",
                command=command,
                published=published,
                missing=refused,
                split=True,
            )


def _unseen() -> Iterator[ScoredSet]:
    rows = _table("unseen_jobs.csv")
    if rows is None:
        return
    command = "python -m experiments.fidelity.jobs.unseen"
    names = {"bridge": "jobs: Megatron-Bridge", "sailor": "jobs: Sailor"}
    held = {
        "bridge": "everything but the gain of 4 bits, which is fitted to 8 of its rows",
        "sailor": "a fifth of the points (one constant)",
    }
    for data, part in rows.groupby("data", sort=False):
        missing, published = _refused(str(data))
        made = part.assign(device=part["machine"] + " " + part["precision"], error=part["held_error"])
        yield ScoredSet(
            name=names[str(data)],
            quantity="seconds per step",
            points=made[["device", "group", "error", "inside", "half_width"]],
            predicted="sim",
            given="paper",
            left_out=held[str(data)],
            published=published,
            missing=missing,
            command=command,
            split=True,
        )
        sized = part[part["paper_bytes"].notna()]
        yield ScoredSet(
            name=names[str(data)],
            quantity="most bytes of a device",
            points=sized.assign(device=sized["machine"], error=sized["bytes_error"])[["device", "group", "error"]],
            predicted="sim",
            given="paper",
            left_out="everything: no constant is fitted to bytes",
            published=published,
            missing=missing,
            command=command,
        )


def _refused(data: str) -> tuple[str, int]:
    """(why rows of a table of jobs have no prediction, the table's rows)."""
    if data not in JOB_FILES:
        return "", 0
    from regista.jobs.checks import checked
    from regista.jobs.machines import load_machine

    reasons: Counter[str] = Counter()
    entries = list(read_jobs(PAPER / JOB_FILES[data]))
    for entry in entries:
        try:
            if isinstance(entry.job, RegistaError):
                raise entry.job
            checked(entry.job, load_machine(entry.job.machine))
        except RegistaError as error:
            reasons[_knob(str(error))] += 1
    return "; ".join(f"{count} refused: {reason}" for reason, count in reasons.most_common()), len(entries)


def _knob(message: str) -> str:
    """The clause of a refusal that says what is missing, without the row's name and numbers."""
    text = message.partition(": ")[2] if message.startswith("case ") else message
    return text.split(";")[0].split(":")[0].split(" = ")[0].strip()


def _fidelity() -> Iterator[ScoredSet]:
    rows = _table("fidelity.csv")
    if rows is None:
        return
    rows = rows.assign(
        device=rows["machine"],
        group=rows["layers"].astype(str) + "x" + rows["hidden"].astype(str),
        devices=rows["tp"] * rows["dp"] * rows["pp"],
        parameters=12 * rows["layers"] * rows["hidden"] ** 2,
        fold=rows["predicted_by"].str.startswith("fold"),
    )
    for data, part in rows.groupby("data", sort=False):
        fold = part["fold"].all()
        fitted_with_it = rows[rows["fold"] & rows["machine"].isin(part["machine"]) & (rows["data"] != data)]
        yield ScoredSet(
            name=f"fidelity: {data}",
            quantity="seconds per iteration",
            points=part[["device", "group", "error", "devices", "parameters"]],
            predicted="sim",
            given="paper",
            left_out="a fifth of the points" if fold else "the whole set",
            command="python -m experiments.fidelity",
            beside=fitted_with_it if fold and len(fitted_with_it) else None,
        )


def _kernels() -> Iterator[ScoredSet]:
    rows, summary = _table("kernel_points.csv"), _table("kernel_summary.csv")
    if rows is None or summary is None:
        return
    for kernel, part in rows.groupby("kernel", sort=False):
        scored = summary[(summary["kernel"] == kernel) & (summary["left_out"] == "a fifth") & (summary["device"] == "all")]["points"]
        yield ScoredSet(
            name=f"kernels: {kernel}",
            quantity="seconds of a kernel",
            points=part.assign(group=part["device"], error=part["predicted_s"] / part["measured_s"] - 1)
            .assign(device="all devices")[["device", "group", "error"]]
            .reset_index(drop=True),
            predicted="theory",
            given="paper",
            left_out="a fifth of the points",
            command="python -m experiments.kernel_database --score",
            published=int(scored.sum()),
            missing="of the points left out, 150 per device are committed and counted here",
        )


def _models() -> Iterator[ScoredSet]:
    rows = _table("kernel_models.csv")
    if rows is None:
        return
    published = len(pd.read_csv(PAPER / "neusight_model_latencies.csv"))
    for column, name, held in (
        ("left_out_s", "the device's data sheet alone", "the kind of device"),
        ("kernels_known_s", "the device's kernels measured", "the models"),
    ):
        part = rows[rows[column].notna()]
        yield ScoredSet(
            name=f"NeuSight: {name}",
            quantity="seconds of a float32 model",
            points=part.assign(group=part["device"], error=part[column] / part["paper_s"] - 1).assign(device="all devices")[
                ["device", "group", "error"]
            ],
            predicted="theory",
            given="paper",
            left_out=held,
            command="python -m experiments.kernel_database --score",
            published=published,
            missing="Switch models (their sizes are not published) and runs on 4 devices; devices without measured float32 products",
        )


def _nccl() -> Iterator[ScoredSet]:
    rows = _table("nccl_score_rows.csv.gz")
    if rows is None:
        return
    for (held, table), part in rows.groupby(["left_out", "table"], sort=False):
        yield ScoredSet(
            name=f"NCCL: {table}",
            quantity="seconds of a collective",
            points=part.assign(device=part["interconnect"], group=part["kind"] + " " + part["group"])[["device", "group", "error"]],
            predicted="theory",
            given="paper",
            left_out=str(held),
            command="python -m experiments.nccl_fit --score",
            missing="rows of L40S, which no bus explains, are left out" if table == "aic_nccl" else "",
        )


def summarised_rows() -> list[dict[str, object]]:
    """Rows of sets of which errors are committed, and no points."""
    rows = _table("nccl_experts.csv")
    if rows is None:
        return []
    share = rows["rows"] / rows["rows"].sum()
    return [
        summarised_row(
            name="DeepEP: dispatch and combine of experts",
            quantity="seconds of an exchange",
            predicted="theory",
            given="paper",
            left_out="a fifth of the shapes",
            points=int(rows["rows"].sum()),
            mean=float((share * rows["mean_error"]).sum()),
            bias=float((share * rows["mean_signed"]).sum()),
            missing="errors of single points are not committed: no quantiles, no interval",
            command="python -m experiments.nccl_fit.experts",
        )
    ]


def _dlperf() -> Iterator[ScoredSet]:
    for module, part, models, left_out in (
        (
            "fidelity.dlperf",
            "table",
            "ResNet-50, BERT-base, InsightFace",
            "all of OneFlow's rows: three constants of convolutions are fitted to three rows of MXNet",
        ),
        (
            "oneflow.wide_deep",
            "part",
            "Wide & Deep",
            "all rows but four (8 GPUs, 2 hidden layers, batches up to 4096), to which one constant is fitted",
        ),
    ):
        rows = _table(f"{module.partition('.')[2]}.csv")
        if rows is None:
            continue
        unseen = rows[rows["fitted"] == 0] if "fitted" in rows else rows
        seen = len(rows) - len(unseen)
        yield ScoredSet(
            name=f"DLPerf: {models}",
            quantity="seconds per step",
            points=unseen.assign(device=unseen[part], group=unseen[part])[["device", "group", "error"]],
            predicted="sim",
            given="paper",
            left_out=left_out,
            command=f"python -m experiments.{module}",
            published=len(rows),
            missing=f"{seen} are fitted to" if seen else "",
            split=True,
        )


def _presets() -> Iterator[ScoredSet]:
    for name, title in PRESETS.items():
        rows = _table(f"{name}.csv")
        if rows is None:
            continue
        done = rows[rows["status"] == "ok"]
        if "paper_step_s" in rows:
            error = done["sim_step_s"] / done["paper_step_s"] - 1
        else:
            error = done["paper_throughput_per_s"] / done["sim_throughput_per_s"] - 1
        yield ScoredSet(
            name=f"preset: {title}",
            quantity="seconds per step",
            points=pd.DataFrame({"device": "V100 of dlperf-v100", "group": done["label"], "error": error}).dropna(),
            predicted="sim",
            given="paper",
            left_out="everything: no constant is fitted to OneFlow's rows" + (", data-sheet rates" if name == "roofline" else ""),
            command=f"regista sweep experiments/manifests/{name}.toml",
            published=len(rows),
            missing="" if len(done) == len(rows) else f"{len(rows) - len(done)} are refused: they do not fit the device",
        )


def _own() -> Iterator[ScoredSet]:
    rows = _table("own_gpt.csv")
    if rows is None:
        return
    merged = rows.groupby("point_id", sort=False).last()
    done = merged[merged["run_step_s"].notna() & merged["sim_step_s"].notna()]
    for quantity, sim, run in (
        ("seconds per step", "sim_step_s", "run_step_s"),
        ("bytes held by a process", "sim_held_bytes", "run_held_bytes"),
    ):
        part = done[done[sim].notna() & done[run].notna()]
        yield ScoredSet(
            name="own: models on 2 CPU devices",
            quantity=quantity,
            points=pd.DataFrame({"device": part["cluster"], "group": _entries(part["label"]), "error": part[sim] / part[run] - 1}),
            predicted="sim",
            given="run",
            left_out="the step: acts are measured alone, one after the other",
            command="regista sweep experiments/manifests/own_gpt.toml",
            published=len(merged),
            missing="" if len(part) == len(merged) else f"{len(merged) - len(part)} points have no such number",
        )


def _entries(labels: pd.Series[str]) -> pd.Series[str]:
    """The manifest's entry of each point, a model in one kind of layout: its label without the numbers that are swept."""
    return labels.str.replace(r"[ ,]*\S+=\S+", "", regex=True)

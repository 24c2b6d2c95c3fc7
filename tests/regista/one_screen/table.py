"""Which screens show what a verb answers: a row per verb, its command lines by the name of their screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["MEASURED", "OF_THE_MACHINE", "REFUSED", "ROWS", "SCREENS", "Row"]

Commands = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """small, large: screens of a small Plan and of one for 1,024 devices.   note: why there is no large one, or what the large one is."""

    small: Commands
    large: Commands = field(default_factory=dict)
    note: str = ""

    @property
    def screens(self) -> Commands:
        return {**self.small, **self.large}


DATA = {"small": "synthetic:int64[1024]:50304,int64[1024]:50304", "large": "synthetic:int64[2048]:51200,int64[2048]:51200"}


def _both(verb: str, *more: str) -> Row:
    """The same command line on small.json and on large.json."""
    return Row(**{size: {f"{size}_{verb}": (verb, *(word.replace("SIZE", size) for word in more))} for size in ("small", "large")})


def _traces(verb: str, *more: str) -> Row:
    """The same command line on traces of small.json and of wide.json."""
    small, large = (
        {f"{name}_{verb}": (verb, *(word.replace("SIZE", size) for word in more))} for name, size in (("small", "small"), ("large", "wide"))
    )
    return Row(small=small, large=large, note="two stages of 512 ranks with few tasks")


NO_PLAN = "it is about no Plan"

ROWS: Mapping[str, Row] = {
    "demo": Row(small={"demo": ("demo", "--out", "demo", "--steps", "4", "--model", "zoo:mlp")}, note="it plans for 2 CPU devices"),
    "doctor": Row(small={"doctor": ("doctor",)}, note="it is about this machine"),
    "calibrate": Row(
        small={"small_calibrate": ("calibrate", "tiny.json", "-o", "cost.json")},
        large={"large_calibrate": ("calibrate", "wide.json", "-o", "no.json")},
        note="the large one is the refusal where memory does not hold a process per rank",
    ),
    "plan": Row(
        small={"small_plan": ("small.json",)},
        large={"large_plan": ("large.json",)},
    ),
    "explain": _both("explain", "SIZE.json", "--top", "3", "--seconds", "100"),
    "verify": _both("verify", "SIZE.json"),
    "diff": _both("diff", "SIZE.json", "SIZE-changed.json"),
    "predict": Row(small={"predict": ("predict", "job.toml")}, note="a job is one row, of 128 devices as of 1,024"),
    "advise": Row(
        small={"small_advise": ("advise", "job.toml", "--tries", "4", "--seconds", "600")},
        large={"large_advise": ("advise", "gpt3.sh", "--cluster", "dgx-h100:128", "--tries", "8", "--seconds", "600")},
    ),
    "whatif": Row(
        small={"small_whatif": ("small-changed.json",)},
        large={"large_whatif": ("large-changed.json",)},
    ),
    "sensitivity": _both("sensitivity", "SIZE.json"),
    "quotas": Row(
        small={
            "small_quotas": ("quotas", "small.json", "--full-throughput", "-o", "lean.json"),
            "small_quotas_pareto": ("quotas", "tiny.json", "--pareto"),
        },
        large={"large_quotas": ("quotas", "large.json", "--full-throughput", "--seconds", "5", "-o", "lean.json")},
    ),
    "loading": Row(
        **{
            size: {f"{size}_loading": ("loading", f"{size}.json", "--data", DATA[size], "-o", f"{size}-loading.json")}
            for size in ("small", "large")
        }
    ),
    "simulate": _both("simulate", "SIZE.json"),
    "run": Row(
        small={"small_run": ("tiny-run.json",)},
        large={"large_run": ("run", "wide.json", "--steps", "4")},
        note="the large one is the refusal where memory does not hold a process per rank",
    ),
    "train": Row(
        small={"small_train": ("train", "train.toml", "--out", "trained")},
        large={"large_train": ("train", "train-large.toml", "--out", "no")},
        note="the large one is the refusal where memory does not hold a process per rank",
    ),
    "checkpoint": Row(
        small={
            "small_checkpoint": ("checkpoint", "show", "saves"),
            "checkpoint_verify": ("checkpoint", "verify", "saves"),
            "checkpoint_export": ("checkpoint", "export", "saves", "-o", "model.pt"),
        },
        large={"large_checkpoint": ("checkpoint", "show", "wide-saves")},
        note="the large one is a manifest of 1,024 files",
    ),
    "deploy": Row(
        small={"small_deploy": ("deploy", "small.json", "--kind", "slurm", "-o", "job.sh")},
        large={
            "large_deploy": ("deploy", "large.json", "--kind", "slurm", "-o", "job.sh"),
            "deploy_sweep": ("deploy", "large-sweep.toml", "--sweep", "--kind", "slurm", "-o", "sweep.sh"),
        },
    ),
    "compare": _traces("compare", "SIZE-sim.json", "SIZE-run.json"),
    "gantt": _traces("gantt", "SIZE-sim.json", "-o", "gantt.png"),
    "timeline": _traces("timeline", "SIZE-sim.json", "-o", "timeline.html"),
    "report": _traces("report", "SIZE-sim.json", "SIZE-run.json", "--out", "page.html"),
    "ops": Row(
        small={"ops": ("ops",), "ops_core": ("ops", "--core"), "ops_of_a_model": ("ops", "--model", "zoo:gpt")},
        note="it is about operators, of whatever Plan",
    ),
    "search-time": Row(
        small={"search_time": ("search-time", "--layers", "1,2", "--methods", "greedy", "-o", "times.png")},
        note="a row per method and number of layers",
    ),
    "sweep": Row(
        small={"small_sweep": ("sweep", "small-sweep.toml", "--out", "swept")},
        large={"large_sweep": ("sweep", "large-sweep.toml", "--out", "swept")},
    ),
    "clusters": Row(small={"clusters": ("clusters",)}, note=NO_PLAN),
    "iopddl": Row(small={"iopddl": ("iopddl", "contest.json", "--seconds", "5", "-o", "choice.json")}, note=NO_PLAN),
    "export": Row(
        small={
            "small_export": ("export", "small-sim.json", "-o", "small.perfetto.json"),
            "export_to_dtensor": ("export", "small.json", "--to", "dtensor", "-o", "layouts.csv"),
        },
        large={"large_export": ("export", "wide-sim.json", "-o", "wide.perfetto.json")},
        note="two stages of 512 ranks with few tasks",
    ),
    "serve": Row(
        small={"serve": ("serve", "--folder", "served-unix"), "serve_tcp": ("serve", "--folder", "served", "--tcp", "127.0.0.1:0")},
        note=NO_PLAN,
    ),
}

SCREENS: Commands = {name: command for row in ROWS.values() for name, command in row.screens.items()}

OF_THE_MACHINE = frozenset({"doctor", "demo", "large_quotas"})
"""Their words, too, are another machine's elsewhere, or those of a search of so many seconds: such screens are counted, not compared."""

REFUSED = frozenset({"large_calibrate", "large_run", "large_train"})

MEASURED = frozenset(
    {
        "small_calibrate",
        "small_run",
        "small_train",
        "search_time",
        "small_checkpoint",
        "checkpoint_verify",
        "checkpoint_export",
    }
)
"""Their numbers are this machine's, of the moment: such screens are compared word by word, without numbers."""

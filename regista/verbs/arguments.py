"""Arguments that several verbs share: their types, with the words that argparse uses for them, and their help texts."""

from __future__ import annotations

import argparse

from planner.cost.routing import ExpertLoad, Routing
from planner.ir.errors import RegistaError, Unsupported

__all__ = [
    "CLUSTER_HELP",
    "DATA_HELP",
    "MODEL_HELP",
    "PLAN_HELP",
    "Usage",
    "add_cost",
    "add_kernels",
    "add_lr_schedule",
    "add_plan",
    "add_routing",
    "add_spread",
    "add_trust",
    "count",
    "count_or_auto",
    "counts",
    "positive",
    "rank_number",
    "routing_of",
    "share",
]

MODEL_HELP = (
    "zoo:NAME?key=value&..., file.py:factory (a function without arguments that returns a regista.Program), a .pt2, or StableHLO as .mlir"
)
DATA_HELP = "tokens:PATH?seq=128&dtype=uint16, arrays:x.npy,y.npy, images:DIR?size=64, or synthetic:float32[3,32,32],int64[]:10"
PLAN_HELP = "the file of 'regista plan'"
CLUSTER_HELP = "local:N (N CPU devices of this machine), a preset ('regista clusters' lists them; NAME:NODES), or a cluster TOML"


class Usage(RegistaError):
    """Arguments that the command line does not understand."""


def count(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1 is needed")
    return number


def rank_number(text: str) -> int:
    """A whole number of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number}: ranks count from 0")
    return number


def count_or_auto(text: str) -> int | None:
    """A whole number of at least 1; None for ``auto``."""
    return None if text == "auto" else count(text)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, separated by commas."""
    return tuple(count(part) for part in text.split(","))


def positive(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: a finite number above 0 is needed")
    return number


def share(text: str) -> float:
    """A number between 0 and 1."""
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number between 0 and 1 is needed")
    return number


# What argparse calls them in its messages.
count.__name__ = rank_number.__name__ = "whole number"
count_or_auto.__name__, counts.__name__, positive.__name__ = "whole number or auto", "list of whole numbers", "number"
share.__name__ = "number"


def add_plan(parser: argparse.ArgumentParser) -> None:
    """PLAN, the plan that a verb reads."""
    parser.add_argument("plan", metavar="PLAN", help=PLAN_HELP)


def add_trust(parser: argparse._ActionsContainer) -> None:
    """--trust, which regista.origin asks for."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the code of the file that the plan names as its model, though the plan was not made here by you",
    )


def add_spread(parser: argparse._ActionsContainer) -> None:
    """--spread, how far constants of the cluster may be off (regista.trust.constants)."""
    parser.add_argument(
        "--spread",
        action="append",
        default=[],
        metavar="[KEY=]SHARE",
        help="how far a constant of the cluster may be off, for example links.nic.bandwidth_GBps=30%%, or all of them, for example 20%% "
        "(default: what left-out points of it show, else 10%%); may be repeated",
    )


def add_lr_schedule(parser: argparse._ActionsContainer, remark: str = "") -> None:
    """--lr-schedule, the learning rate by step (regista.update_options)."""
    parser.add_argument(
        "--lr-schedule",
        metavar="RATES",
        help="learning rate by step: constant:RATE, linear:PEAK?warmup=W&steps=N&end=0, cosine:PEAK?warmup=W&steps=N&end=0, "
        f"step:RATE?every=K&factor=0.1, or FILE.py:FUNCTION of the step{remark}",
    )


def add_kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernels",
        choices=["eager", "compiled"],
        help="how fragments are performed: op by op (default); as code that torch's inductor compiles before the first step, to the same results up "
        "to rounding; what it cannot compile is performed op by op and named",
    )


def add_cost(parser: argparse.ArgumentParser, purpose: str = "") -> None:
    """--cost, the measured prices of a plan's acts."""
    parser.add_argument("--cost", metavar="FILE", help=f"cost table of 'calibrate PLAN'{purpose} (default: prices of the plan's cluster)")


def add_routing(group: argparse._ActionsContainer, effect: str) -> None:
    """How tokens are routed to experts.   effect: what the verb does with it, as the end of a sentence."""
    group.add_argument(
        "--routing",
        metavar="R",
        help=f"how tokens choose experts: uniform, zipf:EXPONENT or histogram:TOKENS,...; {effect} (default: every expert has the even load)",
    )
    group.add_argument("--routing-quantile", type=share, metavar="Q", help="of the busiest rank's load (default 0.9)")
    group.add_argument("--top-k", type=count, metavar="K", help="experts per token (default 2)")
    group.add_argument(
        "--capacity-factor",
        type=positive,
        metavar="F",
        help="room of an expert over its even load; tokens beyond are dropped (default: none are)",
    )


def routing_of(args: argparse.Namespace) -> ExpertLoad | None:
    """What ``add_routing`` was given.

    Raises:
        Unsupported: no routing of that name; a quantile, number of experts or capacity without one.
    """
    given = {"--routing-quantile": args.routing_quantile, "--top-k": args.top_k, "--capacity-factor": args.capacity_factor}
    if args.routing is None:
        if alone := [name for name, value in given.items() if value is not None]:
            raise Unsupported(f"{' and '.join(alone)} without --routing; add it, for example --routing zipf:1.2, or leave them out")
        return None
    return ExpertLoad(
        routing=Routing.parse(args.routing),
        top_k=args.top_k or 2,
        capacity_factor=args.capacity_factor,
        quantile=args.routing_quantile or 0.9,
    )

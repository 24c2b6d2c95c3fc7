"""Thousands of damaged plan files: each is simulated or refused in our own words; nothing else may happen.

    python -m experiments.fuzz_plans [--count 10000] [--first 0] [--keep FOLDER]

A file is damaged as data (values, edges, orders, counts), consistently (all acts times a number) or as text (cut, garbled, doubled).
Number n of a base plan is always damaged in the same way, so a finding is named by (base, n).  Counted are fates:

    simulated      loaded, verified and simulated; the trace keeps the six laws (SEMANTICS 5)
    <our error>    refused by planner.ir.errors, with a message
    FOUND          any other exception, a refusal without words, more acts than the plan says, or no end within DEADLINE_S of work
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import regista
from planner.cost import AnalyticCost
from planner.ir.errors import RegistaError
from planner.ir.files import load_plan, save_plan
from planner.ir.traces.trace import Act, check_trace
from simulator import simulate
from simulator.steady import check_live, steady_state

__all__ = ["Finding", "Text", "base_texts", "damaged", "fate", "fuzz"]

Text = bytes
DEADLINE_S = 60.0
"""Seconds of this process's own work.  A damaged file of these small plans is decided in milliseconds; a minute means that it never will be."""
MOST_ACTS = 100_000

TINY = "zoo:mlp?batch=8&width=16&hidden=16&depth=2"
BASES: Mapping[str, Mapping[str, Any]] = {
    "data-parallel": {"cluster": "local:2"},
    "pipeline": {"cluster": "local:2", "stages": 2, "micro_batches": 4},
    "hybrid": {"cluster": "local:4", "stages": 2, "micro_batches": 2, "schedule": "gpipe"},
}

NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    3,
    7,
    2**31,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    10**30,
    0.0,
    -0.0,
    0.5,
    1e-300,
    5e-324,
    1e18,
    1.7e308,
    -1e300,
)
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "x",
        "B",
        "S(0)",
        "S(-1)",
        "S(99)",
        "P",
        "P(max)",
        "S(0),B",
        "S(0),S(0)",
        "é",
        "state",
        "aten.mm.default",
        "../x",
    ),
    *([], [1], [[]], {}, {"is": "Fragment"}, {"is": "Nothing"}, {"float": "nan"}, {"float": "inf"}, {"ref": "x"}, {"dtype": "float99"}),
)


@dataclass(frozen=True)
class Finding:
    """A damaged file that was neither simulated nor refused."""

    base: str
    number: int
    what: str


class Endless(BaseException):
    """DEADLINE_S has passed; not an Exception, so that nothing on the way takes it for its own."""


def base_texts() -> dict[str, Text]:
    """Small plans as the planner writes them: two ranks data parallel, a pipeline, and both at once."""
    texts = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more devices than cores; nothing runs here
        for name, options in BASES.items():
            path = Path(folder) / "plan.json"
            save_plan(regista.plan(TINY, **options), str(path))
            texts[name] = path.read_bytes()
    return texts


def damaged(text: Text, number: int) -> Text:
    """Damage number ``number`` of a plan file: pure, the same for the same arguments."""
    rng = random.Random(number)
    if rng.random() < 0.15:
        return _garbled(text, rng)
    data = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(_SLIPS)(data, rng)
    return json.dumps(data).encode()


def fate(text: Text, folder: Path) -> str:
    """What becomes of a file: 'simulated' or the name of our error.

    Raises:
        Exception: anything that is not ours, or a law of the trace that does not hold.
    """
    path = folder / "plan.json"
    path.write_bytes(text)
    try:
        plan = load_plan(str(path))
    except RegistaError as error:
        return _named(error)
    check_live(plan)  # a plan that loads is live, so this must not refuse
    try:
        cost = AnalyticCost(plan.cluster)
        allowed = 2 * sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
        done = 0

        def count(_: Act) -> None:
            nonlocal done
            done += 1
            if done > allowed:
                raise AssertionError(f"more than the {allowed} acts that the plan says")

        trace = simulate(plan, cost, steps=2, max_acts=MOST_ACTS, on_act=count)
        period_s = steady_state(plan, cost).period_s
    except RegistaError as error:
        return _named(error)
    check_trace(plan, trace)
    assert period_s >= 0
    return "simulated"


def fuzz(texts: Mapping[str, Text], numbers: range, keep: Path | None = None) -> tuple[Counter[str], list[Finding]]:
    """The fates of damages ``numbers``, dealt to the base plans in turn.

    Args:
        keep: a folder for the files of findings.

    Returns:
        How often each fate was met, and the findings.
    """
    fates: Counter[str] = Counter()
    findings = []
    names = list(texts)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            base = names[number % len(names)]
            text = damaged(texts[base], number)
            try:
                with _deadline(DEADLINE_S):
                    met = fate(text, Path(folder))
            except (Exception, Endless) as error:
                met = "FOUND"
                findings.append(Finding(base, number, f"{type(error).__name__}: {str(error)[:300]}"))
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{base}-{number}.json").write_bytes(text)
            fates[met] += 1
    return fates, findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None)
    asked = parser.parse_args()
    begin = time.perf_counter()
    fates, findings = fuzz(base_texts(), range(asked.first, asked.first + asked.count), asked.keep)
    own_s = time.process_time()
    for met, times in fates.most_common():
        print(f"{times:>7}  {met}")
    print(
        f"{asked.count} files from number {asked.first} on in {time.perf_counter() - begin:.0f} s ({own_s:.0f} s of work); {len(findings)} findings"
    )
    for finding in findings[:50]:
        print(f"  {finding.base} {finding.number}: {finding.what}")
    raise SystemExit(1 if findings else 0)


def _named(error: RegistaError) -> str:
    if len(str(error)) < 20:
        raise AssertionError(f"a refusal without words: {error!r}")
    return type(error).__name__


@contextmanager
def _deadline(limit_s: float) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise Endless(f"no end within {limit_s:.0f} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


# --- damage as text ---------------------------------------------------------------------------------------------------


def _garbled(text: Text, rng: random.Random) -> Text:
    at = rng.randrange(len(text))
    match rng.randrange(7):
        case 0:
            return text[:at]
        case 1:
            return text[at:]
        case 2:
            return text[:at] + bytes([text[at] ^ (1 << rng.randrange(8))]) + text[at + 1 :]
        case 3:
            return text[:at] + rng.randbytes(rng.randint(1, 20)) + text[at:]
        case 4:
            return text + text
        case 5:  # one number becomes another, as text
            numbers = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", text))
            spot = rng.choice(numbers)
            return (
                text[: spot.start()]
                + rng.choice((b"1e999", b"-0", b"00", b"9" * 400, b"NaN", b"Infinity", b"1.", b"0x1"))
                + text[spot.end() :]
            )
        case _:
            until = min(len(text), at + rng.randint(1, 200))
            return text[:at] + text[until:]


# --- damage as data ---------------------------------------------------------------------------------------------------


def _places(data: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    keys: list[Any] = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    return [(data, key) for key in keys] + [inner for key in keys for inner in _places(data[key])]


def _any(data: Any, rng: random.Random) -> tuple[Any, Any]:
    """A place; half the time inside the part of the plan where actors and Regsts are."""
    plan = data.get("plan")
    if isinstance(plan, dict) and rng.random() < 0.5:
        places = [place for part in ("tasks", "regsts", "streams", "placements") for place in _places(plan.get(part))]
        if places:
            return rng.choice(places)
    return rng.choice(_places(data) or [({"": 0}, "")])


def _drop(data: Any, rng: random.Random) -> None:
    holder, key = _any(data, rng)
    del holder[key]


def _odd(data: Any, rng: random.Random) -> None:
    holder, key = _any(data, rng)
    holder[key] = deepcopy(rng.choice(ODD))


def _double(data: Any, rng: random.Random) -> None:
    holder, key = _any(data, rng)
    if isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), deepcopy(holder[key]))


def _swap(data: Any, rng: random.Random) -> None:
    (one, here), (other, there) = _any(data, rng), _any(data, rng)
    one[here] = deepcopy(other[there])


def _shuffle(data: Any, rng: random.Random) -> None:
    lists = [holder[key] for holder, key in _places(data) if isinstance(holder[key], list) and len(holder[key]) > 1]
    if lists:
        rng.shuffle(rng.choice(lists))


def _number(data: Any, rng: random.Random) -> None:
    numbers = [(h, k) for h, k in _places(data) if isinstance(h[k], int | float) and not isinstance(h[k], bool)]
    if numbers:
        holder, key = rng.choice(numbers)
        old = holder[key]
        holder[key] = rng.choice((old + 1, old - 1, -old, old * 2, old * 10**6, old // 2, rng.choice(NUMBERS), rng.choice(NUMBERS)))


def _word(data: Any, rng: random.Random) -> None:
    """A name becomes another name of the file, or nearly the same one: edges lead elsewhere."""
    words = [(h, k) for h, k in _places(data) if isinstance(h[k], str)]
    if words:
        holder, key = rng.choice(words)
        other, there = rng.choice(words)
        old = holder[key]
        holder[key] = rng.choice((other[there], other[there], old + "x", old[:-1], old.upper()))


def _rows(data: Any, part: str) -> list[Any]:
    plan = data.get("plan")
    rows = plan.get(part) if isinstance(plan, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _rewire(data: Any, rng: random.Random) -> None:
    """A task consumes a Regst more, one less, or another one."""
    tasks, regsts = _rows(data, "tasks"), [r.get("id") for r in _rows(data, "regsts")]
    if not tasks or not regsts:
        return
    ports = rng.choice(tasks).get(rng.choice(("consumes", "consumes", "produces")))
    if not isinstance(ports, list):
        return
    match rng.randrange(3):
        case 0:
            ports.append({"is": "Port", "regst": rng.choice(regsts), "acts_per_block": rng.choice((1, 1, 2, 4))})
        case 1 if ports:
            del ports[rng.randrange(len(ports))]
        case _ if ports and isinstance(ports[0], dict):
            rng.choice([p for p in ports if isinstance(p, dict)])["regst"] = rng.choice(regsts)


def _quota(data: Any, rng: random.Random) -> None:
    for regst in rng.sample(rows, rng.randint(1, len(rows))) if (rows := _rows(data, "regsts")) else []:
        if regst.get("kind") != "state":
            regst["quota"] = rng.choice((1, 2, 5, 1000, 10**6, 10**6 + 1, 10**18))


def _many_acts(data: Any, rng: random.Random) -> None:
    """All counts of acts times a number, so that rates still agree."""
    times = rng.choice((2, 3, 30, 10**6, 10**9))
    for task in _rows(data, "tasks"):
        if isinstance(task.get("acts"), int):
            task["acts"] *= times
    for stream in _rows(data, "streams"):
        if isinstance(stream.get("order"), list):
            stream["order"] = stream["order"] * (times if times < 10**4 else 1)


def _order(data: Any, rng: random.Random) -> None:
    """A stream gets an order of its tasks, drawn."""
    streams = _rows(data, "streams")
    if not streams:
        return
    stream = rng.choice(streams)
    acts = [t.get("id") for t in _rows(data, "tasks") if t.get("stream") == stream.get("id") for _ in range(_small(t.get("acts")))]
    rng.shuffle(acts)
    stream["order"] = acts


def _small(acts: Any) -> int:
    return acts if isinstance(acts, int) and not isinstance(acts, bool) and 0 < acts < 1000 else 1


def _merge_streams(data: Any, rng: random.Random) -> None:
    """Tasks of one stream move to another: more waits for turns."""
    streams = [s.get("id") for s in _rows(data, "streams")]
    if streams:
        old, new = rng.choice(streams), rng.choice(streams)
        for task in _rows(data, "tasks"):
            if task.get("stream") == old:
                task["stream"] = new


_SLIPS: tuple[Callable[[Any, random.Random], None], ...] = (
    *(_drop, _odd, _double, _swap, _shuffle, _number, _number, _number, _word, _word),
    *(_rewire, _rewire, _quota, _many_acts, _order, _merge_streams),
)


if __name__ == "__main__":
    main()

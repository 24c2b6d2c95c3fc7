"""Damage to plan files: as data (values, edges, orders, counts), consistently (all acts times a number) or as text (cut, garbled, doubled)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

__all__ = ["Text", "damaged"]

Text = bytes
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


def damaged(text: Text, number: int) -> Text:
    """Damage number ``number`` of a plan file: pure, the same for the same arguments."""
    rng = random.Random(number)
    if rng.random() < 0.15:
        return _garbled(text, rng)
    data = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(_SLIPS)(data, rng)
    return json.dumps(data).encode()


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
            spot = rng.choice(numbers or list(re.finditer(rb"^", text)))
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

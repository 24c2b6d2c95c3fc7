"""The plan, the traces, the rows and the claims that the tests of reports share, and a check of pages."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from stories import TableCost, pipeline

from planner.ir.traces.trace import Source
from regista.report.rows import Rows
from simulator import simulate

PLAN = pipeline(2, 4)
COST = TableCost({"load": 1e-4}, latency_s=1e-5, default_s=1e-3)
SIM = replace(simulate(PLAN, COST, steps=3), message_s={"0->1": COST.latency_s, "1->0": COST.latency_s})
RUN = replace(simulate(PLAN, TableCost({"F0": 2e-3}, default_s=1e-3), steps=6), source=Source.RUN, performer="story")

VOID = {"meta", "link", "img", "br", "hr", "input", "line", "rect", "circle", "polygon"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.feed(re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", text, flags=re.DOTALL))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value_of = dict(attrs)
        self.fetched += [str(value_of[key]) for key in ("src", "srcset", "poster") if key in value_of]
        if "href" in value_of:
            (self.links if tag == "a" else self.fetched).append(str(value_of["href"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)


def checked(path: Path) -> Page:
    text = path.read_text()
    page = Page(text)
    assert page.wrong == []
    assert page.open == []
    assert [source for source in page.fetched if not source.startswith("data:")] == []
    assert "@import" not in text.split("<script")[0]
    return page


SWEPT = (
    "point_id,phase,label,model,cluster,layers,micro_batches,plan_id,status,sim_step_s,sim_forward_s,theory_device_bytes,"
    "run_step_s,run_again_step_s,run_forward_s,run_process_base_bytes,theory_process_bytes,run_isolated_kept_bytes,"
    "run_process_peak_bytes,error_process_peak_share,error_register_bytes",
    "p,predicted,two,zoo:gpt,local:2,2,1,x,ok,9.0,1.0,50,,,,,,,,,",
    "p,performed,two,zoo:gpt,local:2,2,1,x,ok,1.92,1.0,50,2.0,2.2,0.8,100,40,10,200,-0.25,0",
    "q,performed,two in four,zoo:gpt,local:2,2,4,y,ok,1.8,1.0,50,2.5,2.5,1.0,100,,,125,0.2,8",
    "r,performed,four,zoo:gpt,local:2,4,1,z,ok,4.0,3.0,60,4.0,3.6,3.0,100,,,160,0.0,0",
    "s,predicted,not run,zoo:gpt,local:2,4,4,z,ok,3.0,3.0,60,,,,,,,,,",
    "t,performed,ended badly,zoo:gpt,local:2,4,8,z,WorkerFailed,3.0,3.0,60,,,,,,,,,",
    "p,predicted,two,zoo:gpt,local:2,2,1,x,ok,7.0,1.0,50,,,,,,,,,",
)


CLAIMS = """
[[table]]
section = "Pipelines"
[table.headings]
claim = "claim"
command = "command"
status = "status"
[[table.claim]]
claim = "a second block <helps>"
command = "`make a | b`"
status = "**held**, [picture](figures/f.png), [CSV](results/r.csv): {r: sim_step_s / run_step_s - 1 | .1%} more"
[[table.claim]]
claim = "another"
module = "x"
status = "not run"
[paragraph]
said = "{r: sim_step_s[model == 'a'] | .1f} s"
"""
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")


def rows_of(*lines: str) -> Rows:
    head, *rest = (line.split(",") for line in lines)
    return Rows(name="t", columns=tuple(head), rows=tuple(dict(zip(head, cells, strict=True)) for cells in rest))

"""Requests as values: what a server takes from anybody, and what it refuses before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.ir.errors import InvalidFile, RegistaError, Unsupported, Untrusted
from regista.remote.asked import asked_of
from regista.verbs.parsing import arguments_of, argv_of, typed_of, verb_parser
from regista.wire import SERVED, parse_request
from regista.wire.result import error_of

PLAN = {"wire": 1, "verb": "plan", "arguments": {"model": "zoo:gpt", "cluster": "local:2", "out": "plan.json"}}
DIGEST = "ab" * 32


def asked(**changes: object) -> dict[str, object]:
    return {**PLAN, "arguments": {**PLAN["arguments"], **changes}}  # type: ignore[dict-item]


@pytest.mark.parametrize("verb", SERVED)
def test_every_argument_of_a_served_verb_has_a_role(verb: str):
    assert {action.dest for action in arguments_of(verb_parser(verb))} == set(SERVED[verb])


def test_what_was_typed_comes_back_from_named_arguments():
    typed = ["zoo:gpt", "--cluster", "local:2", "-o", "p.json", "--pin", "a=S(0)", "--pin=-b=B", "--mesh", "2,2", "--robust"]
    named = typed_of("plan", typed)
    assert named["pin"] == ["a=S(0)", "-b=B"] and named["mesh"] == "2,2" and named["robust"] is True and "stages" not in named
    parser = verb_parser("plan")
    assert parser.parse_args(argv_of("plan", named)) == parser.parse_args(typed)


def test_arguments_of_a_sub_command_come_back_too():
    typed = ["--json", "export", "weights", "--optimizer", "-o", "state.pt"]
    named = typed_of("checkpoint", typed)
    assert named == {"json": True, "what": "export", "folder": "weights", "optimizer": True, "out": "state.pt"}
    assert verb_parser("checkpoint").parse_args(argv_of("checkpoint", named)) == verb_parser("checkpoint").parse_args(typed)


@pytest.mark.parametrize(
    ("data", "kind", "law"),
    [
        ([], InvalidFile, "one JSON object"),
        ({**PLAN, "wire": 2}, Unsupported, "same regista on both sides"),
        ({**PLAN, "verb": "train"}, Unsupported, "performs no verb 'train'"),
        ({**PLAN, "more": 1}, InvalidFile, "one JSON object"),
        ({**PLAN, "columns": 10**6}, InvalidFile, "columns"),
        (asked(code="x"), Unsupported, "no argument 'code'"),
        (asked(out="../plan.json"), InvalidFile, "no name of a request's file"),
        (asked(out="/etc/plan.json"), InvalidFile, "no name of a request's file"),
        (asked(out="-rf"), InvalidFile, "no name of a request's file"),
        (asked(out="a\0b"), InvalidFile, "NUL"),
        (asked(model="evil.py:factory"), Untrusted, "runs no code of files"),
        (asked(model="os:system"), Untrusted, "runs no code of files"),
        (asked(model="stolen.pt2"), InvalidFile, "has not come with the request"),
        (asked(model="stolen.mlir"), InvalidFile, "has not come with the request"),
        (asked(cluster="/etc/shadow.toml"), InvalidFile, "has not come with the request"),
        (asked(schedule="../s.csv"), InvalidFile, "has not come with the request"),
        ({**PLAN, "verb": "advise", "arguments": {"job": "/etc/passwd"}}, InvalidFile, "has not come with the request, and no arguments"),
        (
            {**PLAN, "verb": "advise", "arguments": {"job": "config.py:llama3_8b"}},
            InvalidFile,
            "has not come with the request, and no arguments",
        ),
        (asked(lr_schedule="rates.py:f"), Untrusted, "code of a file"),
        ({**PLAN, "files": {"../../x.toml": DIGEST}}, InvalidFile, "no name of a request's file"),
        ({**PLAN, "files": {"x.toml": "../../etc"}}, InvalidFile, "SHA-256"),
        ({**PLAN, "files": {"a\0.pt2": DIGEST}}, InvalidFile, "no name of a program's file"),  # no path can hold it: a process was lost
        ({"wire": 1, "verb": "whatif", "arguments": {"trust": True}}, Untrusted, "runs no code"),
        ({"wire": 1, "verb": "run", "arguments": {"checkpoint": "../x"}}, InvalidFile, "no name of variables"),
        ({"wire": 1, "verb": "run", "arguments": {"checkpoint": "/root/x"}}, InvalidFile, "no name of variables"),
        ({"wire": 1, "verb": "run", "arguments": {"init": "weights:/x.pt"}}, Unsupported, "first values"),
        ({"wire": 1, "verb": "run", "arguments": {"init": "checkpoint:../x"}}, InvalidFile, "no name of variables"),
        ({"wire": 1, "verb": "run", "arguments": {"rdzv": "evil:1"}}, Untrusted, "not taken from a client"),
        ({"wire": 1, "verb": "loading", "arguments": {"data": "tokens:/etc/passwd"}}, Unsupported, "files of the client"),
    ],
)
def test_what_leads_out_of_a_request_is_refused_before_anything_happens(data: object, kind: type[RegistaError], law: str):
    with pytest.raises(kind, match=law):
        parse_request(data)


def test_names_that_lead_elsewhere_get_plain_ones_on_the_server_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "plan.json").write_text('{"model":"m.pt2"}')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here/m.pt2").write_bytes(b"PK")
    found = asked_of("whatif", ["../plan.json", "--set", "cluster.a=1", "-o", str(tmp_path / "new.json")])
    names = dict(found.request.arguments)
    assert names["plan"].startswith("given/") and names["out"].startswith("left/")  # type: ignore[union-attr]
    assert found.local_name(str(names["out"])) == str(tmp_path / "new.json")
    assert found.local_text(f"wrote {names['out']}") == f"wrote {tmp_path / 'new.json'}"
    assert set(found.request.files) == {names["plan"], "m.pt2"}  # the program that the Plan names comes along


@pytest.mark.parametrize("name", ["../p.json", "/root/.bashrc", "p.json/../.bashrc", ".bashrc", "p.jsonx", ""])
def test_a_server_writes_no_file_of_its_client_but_those_that_were_asked_for(name: str):
    found = asked_of("plan", ["zoo:mlp", "--cluster", "local:2", "-o", "p.json"])
    assert found.local_name("p.json") == "p.json" and found.local_name("p.json/part") == "p.json/part"
    with pytest.raises(InvalidFile, match="was not asked to write"):
        found.local_name(name)


def test_a_cluster_that_a_job_names_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text("")
    Path("job.toml").write_text('[cluster]\nname = "c.toml"\n')
    assert set(asked_of("predict", ["job.toml"]).request.files) == {"job.toml", "c.toml"}


def test_an_error_of_a_server_is_one_of_our_family_here():
    assert isinstance(error_of("Unsupported", "x"), Unsupported)
    assert isinstance(error_of("FileNotFoundError", "x"), InvalidFile)
    assert isinstance(error_of("__builtins__", "x"), InvalidFile)

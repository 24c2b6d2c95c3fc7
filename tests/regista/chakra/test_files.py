"""Files of Chakra: what is written is read again, in the schema's own fields; what is no trace is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from stories import TableCost, data_parallel, pipeline

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.files import save_plan
from regista.chakra import chakra_trace, read_chakra, save_chakra
from regista.cli import main

COST = TableCost({"F0": 0.5}, latency_s=0.125)


@pytest.fixture
def with_protobuf() -> None:
    pytest.importorskip("google.protobuf", reason="the extra 'chakra' is not installed")


@pytest.mark.usefixtures("with_protobuf")
@pytest.mark.parametrize("plan", [pipeline(3, 4), data_parallel(4)], ids=["pipeline", "data parallel"])
def test_a_trace_that_is_read_again_is_the_same(plan, tmp_path: Path) -> None:
    trace = chakra_trace(plan, COST)
    paths = save_chakra(trace, tmp_path / "et")
    assert [path.name for path in paths] == [*(f"trace.{rank}.et" for rank in range(plan.num_ranks)), "comm_groups.json"]
    assert json.loads(paths[-1].read_text()) == {name: list(ranks) for name, ranks in trace.groups.items()}
    for rank, path in enumerate(paths[:-1]):
        about, nodes = read_chakra(path)
        assert about == {"version": "0.0.4", **trace.about, "rank": rank}
        assert len(nodes) == len(trace.nodes[rank])
        for read, made in zip(nodes, trace.nodes[rank], strict=True):
            assert read.start_s == pytest.approx(made.start_s, abs=0.5e-6)
            for name in ("id", "name", "kind", "duration_s", "data_deps", "ctrl_deps", "reads", "writes"):
                assert getattr(read, name) == getattr(made, name)
            assert read.attributes == {**made.attributes, "duration_s": made.duration_s}


@pytest.mark.usefixtures("with_protobuf")
def test_fields_lie_where_readers_of_the_schema_look_for_them(tmp_path: Path) -> None:
    """The wire format by hand: field << 3 | type (0 a number, 1 eight bytes, 2 so many bytes), numbers in groups of 7 bits."""
    save_chakra(chakra_trace(data_parallel(2), COST), tmp_path / "et")
    data = (tmp_path / "et" / "trace.0.et").read_bytes()
    assert data[1:8] == b"\x0a\x050.0.4"  # after its length: GlobalMetadata.version
    assert b"\x12\x0call_reduce.0\x18\x07" in data  # Node.name, and Node.type COMM_COLL_NODE
    assert b"\x0a\x09comm_type\x48\x00" in data  # AttributeProto.int64_val = 9: ALL_REDUCE
    assert b"\x0a\x09comm_size\x48\x80\x08" in data  # 1024
    assert b"\x0a\x07pg_name\xea\x01\x011" in data  # string_val = 29
    assert b"\x0a\x09is_cpu_op\xd8\x01\x00" in data  # bool_val = 27


@pytest.mark.usefixtures("with_protobuf")
def test_what_is_no_trace_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save_chakra(chakra_trace(pipeline(2, 2), COST), tmp_path / "et")
    whole = (tmp_path / "et" / "trace.0.et").read_bytes()
    for name, content in (("cut", whole[:-3]), ("json", b'{"nodes": []}'), ("zeros", b"\x00\x05" + bytes(20)), ("half", whole[:40])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidFile, match=r"truncated, or no execution trace of Chakra: give one rank's trace"):
            read_chakra(tmp_path / name)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InvalidFile, match="it is empty"):
        read_chakra(tmp_path / "empty")
    with pytest.raises(InvalidFile, match="no such file"):
        read_chakra(tmp_path / "none")


def test_without_protobuf_the_extra_is_named_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regista.chakra.schema import messages

    messages.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(RegistaError, match=r"need the package 'protobuf'.*pip install 'regista\[chakra\]'"):
        save_chakra(chakra_trace(pipeline(2, 2), COST), tmp_path / "et")
    assert not (tmp_path / "et").exists()


@pytest.mark.usefixtures("with_protobuf")
def test_the_verb_writes_a_trace_per_rank_and_says_how_to_play_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(pipeline(2, 2), str(tmp_path / "plan.json"))
    out = tmp_path / "et"
    assert main(["export", str(tmp_path / "plan.json"), "--to", "chakra", "-o", str(out)]) == 0
    assert "--workload-configuration=" in capsys.readouterr().out.replace("\n", "")
    assert sorted(path.name for path in out.iterdir()) == ["comm_groups.json", "trace.0.et", "trace.1.et"]
    assert main(["export", str(tmp_path / "plan.json"), "--to", "chakra", "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"]["send"] == 4


def test_a_refused_export_writes_nothing_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(pipeline(2, 2), str(tmp_path / "plan.json"))
    plan, out = str(tmp_path / "plan.json"), str(tmp_path / "et")
    for typed in (
        [plan, plan, "--to", "chakra"],
        [plan, "--to", "chakra", "--model", "zoo:mlp"],
        [plan, "--to", "dtensor", "--cost", plan],
        [plan, "--to", "chakra", "--cost", plan],
        [str(tmp_path / "none.json"), "--to", "chakra"],
    ):
        assert main(["export", *typed, "-o", out]) == 2, typed
        assert len(capsys.readouterr().err.strip()) > 20
        assert not Path(out).exists()

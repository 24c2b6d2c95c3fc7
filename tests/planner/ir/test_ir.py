"""Laws of the shared vocabulary: SBP algebra, canonical text, plan files, routes, and what importing it costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import product
from math import prod
from pathlib import Path

import pytest
from fresh_interpreter import run_python
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_plans import live_dags
from stories import Story, TableCost, chain, data_parallel, pipeline, story_cluster

import planner.ir
from planner.ir.actors.routes import pieces
from planner.ir.actors.verify import verify
from planner.ir.cluster import Cluster, load_cluster, save_cluster
from planner.ir.errors import DeadLock, InvalidFile, InvalidPlan, OutOfMemory, RegistaError
from planner.ir.files import load_plan, save_plan
from planner.ir.plan import PlacedTensor, Placement, Plan, RegstKind, TaskKind
from planner.ir.sbp import Broadcast, NdSbp, Partial, ReduceOp, Sbp, Split, coordinates, part_of
from planner.ir.tensor import DType
from planner.ir.text import canonical, decode, encode
from planner.ir.traces.trace import Trace
from simulator import simulate

# --- SBP --------------------------------------------------------------------------------------------------------------

whole_sbps = st.one_of(st.integers(0, 2).map(Split), st.just(Broadcast()))
sbps: st.SearchStrategy[Sbp] = st.one_of(whole_sbps, st.sampled_from(ReduceOp).map(Partial))


@given(st.integers(1, 200), st.integers(1, 16))
def test_parts_tile_a_dim_and_the_first_ones_are_at_most_one_longer(extent: int, parts: int):
    cut = [part_of(extent, parts, i) for i in range(parts)]
    assert [offset for offset, _ in cut] == [sum(length for _, length in cut[:i]) for i in range(parts)]
    assert sum(length for _, length in cut) == extent
    lengths = [length for _, length in cut]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(st.lists(sbps, max_size=4).map(tuple).map(NdSbp))
def test_what_is_printed_parses_back(sbp: NdSbp):
    assert NdSbp.parse(str(sbp)) == sbp


@pytest.mark.parametrize("text", ["S", "S(-1)", "S(0)B", "Q", "P(prod)", "B,,B", "S(0),", "b"])
def test_other_texts_are_refused_with_the_notation_to_write(text: str):
    with pytest.raises(InvalidPlan, match=r"is not an SBP; write S\(0\), B, P, P\(max\) or P\(min\)"):
        NdSbp.parse(text)


def cells(region: tuple[tuple[int, int], ...]) -> list[tuple[int, ...]]:
    return list(product(*(range(offset, offset + length) for offset, length in region)))


@st.composite
def layouts(draw: st.DrawFn, entries: st.SearchStrategy[Sbp]) -> tuple[NdSbp, tuple[int, ...], tuple[int, ...]]:
    """(sbp, shape, mesh) that are legal together, uneven dims included."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=3, max_size=3)))
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    sbp = NdSbp(tuple(draw(entries) for _ in mesh))
    try:
        for coordinate in coordinates(mesh):
            sbp.region(shape, mesh, coordinate)
    except InvalidPlan:
        assume(False)
    return sbp, shape, mesh


@given(layouts(sbps))
def test_the_regions_of_all_devices_hold_every_element_as_often_as_there_are_copies(layout):
    sbp, shape, mesh = layout
    held = Counter(cell for at in coordinates(mesh) for cell in cells(sbp.region(shape, mesh, at)))
    assert len(held) == prod(shape)
    assert set(held.values()) == {sbp.num_copies(mesh)}


@given(layouts(sbps))
def test_coordinate_zero_holds_the_largest_part(layout):
    sbp, shape, mesh = layout
    sizes = [prod(sbp.local_shape(shape, mesh, at)) for at in coordinates(mesh)]
    assert prod(sbp.local_shape(shape, mesh)) == max(sizes)
    assert sbp.splits_evenly(shape, mesh) == (len({sbp.local_shape(shape, mesh, at) for at in coordinates(mesh)}) == 1)


def test_a_dim_too_small_for_its_axes_is_refused_by_name():
    with pytest.raises(InvalidPlan, match=r"S\(0\),S\(0\) cannot lie on mesh \(2, 2\) for shape \(3,\): axis 1 .* \(SEMANTICS 1.2\)"):
        NdSbp.parse("S(0),S(0)").region((3,), (2, 2), (1, 0))


# --- routes -----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.data())
def test_the_pieces_of_a_transfer_tile_every_receiver_and_carry_the_right_elements(data: st.DataObject):
    src_sbp, shape, src_mesh = data.draw(layouts(whole_sbps))
    dst_sbp, _, dst_mesh = data.draw(layouts(whole_sbps))
    src = Placement(id="a", ranks=tuple(range(prod(src_mesh))), mesh=src_mesh)
    dst = Placement(id="b", ranks=tuple(range(prod(src_mesh), prod(src_mesh) + prod(dst_mesh))), mesh=dst_mesh)
    both = [PlacedTensor(name="x", shape=shape, dtype=DType.INT8, sbp=sbp) for sbp in (src_sbp, dst_sbp)]
    try:
        dst_regions = {rank: dst_sbp.region(shape, dst_mesh, dst.coordinate(rank)) for rank in dst.ranks}
    except InvalidPlan:
        assume(False)
    arrived: dict[int, Counter[tuple[int, ...]]] = {rank: Counter() for rank in dst.ranks}
    for piece in pieces(both[0], src, both[1], dst):
        src_base = src_sbp.region(shape, src_mesh, src.coordinate(piece.src_rank))
        sent = [(o + base, n) for (o, n), (base, _) in zip(piece.src_spans, src_base, strict=True)]
        got = [(o + base, n) for (o, n), (base, _) in zip(piece.dst_spans, dst_regions[piece.dst_rank], strict=True)]
        assert sent == got
        assert set(cells(tuple(sent))) <= set(cells(src_base))
        arrived[piece.dst_rank].update(cells(tuple(got)))
    for rank, region in dst_regions.items():
        assert arrived[rank] == Counter(cells(region))


def test_partial_values_do_not_travel():
    placements = [Placement(id=name, ranks=(rank,), mesh=(1,)) for rank, name in enumerate("ab")]
    partial, whole = (PlacedTensor(name="x", shape=(2,), dtype=DType.INT8, sbp=NdSbp.parse(text)) for text in ("P", "B"))
    with pytest.raises(InvalidPlan, match="partial values are reduced before they travel"):
        pieces(partial, placements[0], whole, placements[1])


# --- canonical text ---------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(live_dags())
def test_plans_and_traces_come_back_equal_from_their_text(plan: Plan):
    assert decode(Plan, json.loads(canonical(plan))) == plan
    trace = simulate(plan, TableCost(), steps=1)
    assert decode(Trace, json.loads(canonical(trace))) == trace


@pytest.mark.parametrize("plan", [chain("ab", 1, 1), pipeline(2, 2), data_parallel(2)], ids=["chain", "pipeline", "data-parallel"])
def test_a_plan_file_comes_back_equal_with_the_same_id(plan: Plan, tmp_path):
    save_plan(plan, str(tmp_path / "p.json"))
    loaded = load_plan(str(tmp_path / "p.json"))
    assert (loaded, loaded.plan_id) == (plan, plan.plan_id)
    assert canonical(encode(loaded)) == canonical(plan)


def test_a_cluster_comes_back_equal_from_text_and_from_toml(tmp_path):
    cluster = story_cluster(4)
    assert decode(Cluster, json.loads(canonical(cluster))) == cluster
    save_cluster(cluster, tmp_path / "c.toml")
    assert load_cluster(tmp_path / "c.toml") == cluster


def test_another_quota_is_another_plan():
    plan = chain("ab", 1, 2)
    assert plan.with_quotas({"Regst_a": 2}).plan_id != plan.plan_id
    assert plan.with_quotas({"Regst_a": 1}).plan_id == plan.plan_id


def test_the_plan_id_is_the_same_in_every_process():
    plan = pipeline(3, 4)
    assert run_python("from stories import pipeline; print(pipeline(3, 4).plan_id)") == plan.plan_id


def test_floor_0_loads_the_standard_library_only():
    root = Path(planner.ir.__file__).parents[2]
    modules = sorted(".".join(file.relative_to(root).with_suffix("").parts) for file in (root / "planner/ir").rglob("[!_]*.py"))
    assert "planner.ir.actors.actor" in modules
    imports = "".join(f"import {module}\n" for module in modules)
    # No stories here: what the tests load would hide what floor 0 loads.
    loaded = run_python(f"{imports}print(*sorted({{name.split('.')[0] for name in sys.modules}}))").split()
    assert not set(loaded) & {"torch", "numpy", "pulp", "simpy", "rich", "matplotlib", "pandas", "networkx", "highspy"}


# --- plan files that are refused --------------------------------------------------------------------------------------

Data = dict[str, object]


def rewritten(tmp_path, change: Callable[[dict], object]) -> str:
    """A plan file whose JSON was changed by hand."""
    path = tmp_path / "plan.json"
    save_plan(chain("abc", 2, 4), str(path))
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return str(path)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda d: d.update(version=99), InvalidFile, r"schema version 99, but this regista reads plan version 2; write the file anew"),
        (lambda d: d.update(kind="trace"), InvalidFile, r"expected a regista plan file, found 'trace'"),
        (lambda d: d.pop("plan"), InvalidFile, r"plan: expected an object \(Plan\), found null"),
        (lambda d: d["plan"]["regsts"][0].update(quota=0), InvalidPlan, r"regst Regst_a has quota 0; .* set quota >= 1"),
        (lambda d: d["plan"]["regsts"][0].update(color="red"), InvalidFile, r"plan\.regsts\[0\]: .* unknown fields \['color'\]"),
        (lambda d: d["plan"]["regsts"][0].pop("quota"), InvalidFile, r"plan\.regsts\[0\]: .*missing fields \['quota'\]"),
        (lambda d: d["plan"]["regsts"][0].update(quota="2"), InvalidFile, r'plan\.regsts\[0\]\.quota: expected int, found "2"'),
        (lambda d: d["plan"]["regsts"][0].update(quota=2.0), InvalidFile, r"quota: expected int, found 2\.0"),
        (lambda d: d["plan"]["regsts"][0].update(quota=True), InvalidFile, r"quota: expected int, found true"),
        (
            lambda d: d["plan"]["tasks"][0].update(kind="dance"),
            InvalidFile,
            r"tasks\[0\]\.kind: expected one of \['source', .*found \"dance\"",
        ),
        (lambda d: d["plan"].update(tasks={}), InvalidFile, r"plan\.tasks: expected a list, found \{\}"),
        (lambda d: d["plan"]["tasks"][1]["body"].update({"is": "Sonata"}), InvalidFile, r"tasks\[1\]\.body: expected one of"),
        (lambda d: d["plan"]["tasks"][1].update(stream="nowhere"), InvalidPlan, r"task b runs on stream nowhere"),
        (
            lambda d: d["plan"]["tasks"][1].update(acts=3),
            InvalidPlan,
            r"regst Regst_a: a makes 4 blocks per step, b takes 3; rates must agree",
        ),
        (lambda d: d["plan"].update(tasks=[]), InvalidPlan, r"the plan has no task; there is nothing to perform"),
        (lambda d: d["plan"]["cluster"]["device"].update(memory_bytes=-1), InvalidFile, r"plan\.cluster: .*device\.memory_GB = -1"),
        (lambda d: d["plan"]["cluster"]["device"].update(memory_bytes=10), OutOfMemory, r"rank 0 needs 5\.0 KiB .* has 10 B"),
    ],
)
def test_a_plan_file_that_breaks_a_law_is_refused_with_the_place_and_the_reason(tmp_path, change, error, said: str):
    path = rewritten(tmp_path, change)
    with pytest.raises(error, match=said) as caught:
        load_plan(path)
    assert isinstance(caught.value, RegistaError)


def test_a_missing_or_truncated_plan_file_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match=r"nothing\.json: no such file"):
        load_plan(str(tmp_path / "nothing.json"))
    path = tmp_path / "plan.json"
    save_plan(chain("ab", 1, 1), str(path))
    whole = path.read_bytes()
    for keep in (0, 1, len(whole) // 3, len(whole) - 3):
        path.write_bytes(whole[:keep])
        with pytest.raises(InvalidFile, match="truncated or damaged"):
            load_plan(str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile, match="cannot be read as text"):
        load_plan(str(path))


def test_a_plan_file_whose_quotas_dead_lock_is_refused_with_the_way_out(tmp_path):
    story = Story()
    story.regst("each", "source", 1)
    story.regst("all", "gather")
    story.regst("out", "join")
    story.task("source", produces=["each"], acts=2, kind=TaskKind.SOURCE)
    story.task("gather", ["each"], {"all": 2}, acts=2)
    story.task("join", {"each": 1, "all": 2}, ["out"], acts=2)
    path = str(tmp_path / "plan.json")
    plan = story.freeze(micro_batches=2)
    save_plan(plan, path)
    with pytest.raises(DeadLock, match=r"SEMANTICS 4\.1.*raise the quota of regst each from 1 to 2"):
        load_plan(path)
    save_plan(plan.with_quotas({"each": 2}), path)
    verify(load_plan(path))


def test_a_failed_save_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    save_plan(chain("ab", 1, 1), str(path))
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("planner.ir.text.os.replace", fail)
    with pytest.raises(InvalidFile, match=r"cannot write .*plan\.json: No space left on device"):
        save_plan(chain("ab", 2, 1), str(path))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_cannot_be_saved_into_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InvalidFile, match="give a path in an existing, writable folder"):
        save_plan(chain("ab", 1, 1), str(tmp_path / "no" / "plan.json"))


def test_state_with_two_blocks_and_collectives_without_order_are_refused():
    story = Story()
    story.regst("w", None, 2, RegstKind.STATE)
    story.regst("out", "use")
    story.task("use", ["w"], ["out"])
    with pytest.raises(InvalidPlan, match="state regst w has quota 2; state is updated in place and has exactly 1 block"):
        verify(story.freeze())

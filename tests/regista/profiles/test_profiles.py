"""``regista calibrate --from-trace``: recorded operators as a kernel table; what is not matched is counted, what is damaged refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from planner.cost.kernels.table import load_kernels
from planner.ir.errors import InvalidFile
from planner.ir.graph import KernelKind
from planner.ir.tensor import DType, TensorType
from regista.cli import main
from regista.profiles import kernel_table, read_profile


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a small module on this CPU."""
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    module, x = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 48)), torch.randn(32, 64)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        for _ in range(2):
            module(x).sum().backward()
    recording.export_chrome_trace(str(path))
    return path


def event(
    name: str, begin_us: float, dur_us: float, number: int, *shapes: list[int], cat: str = "cpu_op", **more: object
) -> dict[str, object]:
    args: dict[str, object] = {"External id": number, **more}
    if shapes:
        args |= {"Input Dims": list(shapes), "Input type": ["float"] * len(shapes), "Concrete Inputs": [""] * len(shapes)}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": begin_us, "dur": dur_us, "args": args}


def written(path: Path, *events: dict[str, object], **more: object) -> Path:
    path.write_text(json.dumps({"traceEvents": list(events), **more}))
    return path


def test_operators_of_a_recorded_step_are_kernels_by_name_and_shapes(recorded: Path) -> None:
    found = kernel_table(read_profile(recorded), "profile.json")
    shapes = {time.work.shape: time for time in found.table.times if time.work.kind is KernelKind.PRODUCT}
    assert shapes[1, 32, 128, 64].target == "aten.addmm.default"
    assert shapes[1, 32, 128, 64].work.flop == 2 * 32 * 128 * 64
    assert shapes[1, 32, 128, 64].rounds == 2
    assert {time.target for time in found.table.times} >= {"aten.mm.default", "aten.gelu.default", "aten.gelu_backward.default"}
    assert found.views > 0
    assert not any("linear" in name or "addmm" in name for name in found.left_out)


def test_the_outermost_known_operator_counts_once_with_all_that_is_inside(tmp_path: Path) -> None:
    outer = event("aten::linear", 0, 100, 1, [4, 8], [16, 8])
    inner = event("aten::mm", 10, 50, 2, [4, 8], [8, 16])
    copy = event("aten::copy_", 20, 10, 3, [4, 16], [4, 16])
    found = kernel_table(read_profile(written(tmp_path / "p.json", outer, inner, copy)), "p")
    (time,) = found.table.times
    assert (time.target, time.seconds, found.left_out) == ("aten.mm.default", pytest.approx(50e-6), {})


def test_on_a_gpu_an_operator_takes_what_its_kernels_take(tmp_path: Path) -> None:
    events = [
        event("aten::mm", 0, 30, 1, [4, 8], [8, 16]),
        event("aten::helper", 5, 10, 2, [4, 16]),
        event("gemm", 40, 7, 1, cat="kernel"),
        event("reduce", 50, 2, 2, cat="kernel"),
        event("cudaLaunchKernel", 8, 3, 1, cat="cuda_runtime"),
        event("Memcpy HtoD (Pinned -> Device)", 60, 5, 9, cat="gpu_memcpy", bytes=4096),
    ]
    profiled = read_profile(written(tmp_path / "p.json", *events, deviceProperties=[{"id": 0, "name": "NVIDIA H100"}]))
    table = kernel_table(profiled, "p").table
    assert (table.device, table.launch_s) == ("NVIDIA H100", pytest.approx(3e-6))
    assert [time.seconds for time in table.times] == [pytest.approx(9e-6)]
    assert [(copy.to_device, copy.size_bytes) for copy in table.copies] == [(True, 4096)]


def test_an_attention_of_any_library_is_the_one_op_that_plans_have(tmp_path: Path) -> None:
    path, shape = tmp_path / "p.json", (2, 4, 16, 8)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    recording.export_chrome_trace(str(path))
    works = {time.target: time.work for time in kernel_table(read_profile(path), "p").table.times}
    assert works["regista.attention"].shape == works["regista.attention_backward"].shape == (2, 4, 4, 16, 16, 8, 1)
    heads = [
        event(f"aten::_scaled_dot_product_{name}", 10 * n, 5, n, *[[2, 4, 16, 8]] * 3)
        for n, name in enumerate(("flash_attention", "cudnn_attention"))
    ]
    (time,) = kernel_table(read_profile(written(path, *heads)), "p").table.times
    assert (time.rounds, time.work.kind, time.work.shape[-1]) == (2, KernelKind.ATTENTION, 0)


def test_what_is_not_matched_is_counted_and_named(tmp_path: Path) -> None:
    events = [event("aten::mm", 0, 5, 1, [4, 8], [8, 16]), *(event("aten::frobnicate", 10 * n, 5, n, [4]) for n in (1, 2))]
    found = kernel_table(read_profile(written(tmp_path / "p.json", *events)), "p")
    assert (found.matched, found.left_out) == (1, {"aten::frobnicate": 2})


def test_the_verb_writes_a_table_that_is_read_again_and_says_what_it_left_out(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "k.json"
    assert main(["calibrate", "--from-trace", str(recorded), "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    table = load_kernels(str(out))
    assert (said["kernels"], said["kernels_id"]) == (len(table.times), table.id)
    assert main(["calibrate", "--from-trace", str(recorded), "-o", str(out)]) == 0
    assert "views cost nothing" in capsys.readouterr().out.replace("\n", " ")


def test_damaged_profiles_are_refused_with_the_way_out_and_nothing_is_written(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cut.json").write_bytes(recorded.read_bytes()[:-200])
    (tmp_path / "text.json").write_text("no JSON")
    written(tmp_path / "none.json", event("gemm", 0, 1, 1, cat="kernel"))
    written(tmp_path / "shapeless.json", event("aten::mm", 0, 5, 1))
    written(tmp_path / "negative.json", event("aten::mm", 0, -5, 1, [4, 8], [8, 16]))
    written(tmp_path / "strange.json", event("aten::frobnicate", 0, 5, 1, [4]))
    (tmp_path / "plan.json").write_text('{"kind": "plan"}')
    for name, law in {
        "cut.json": "truncated",
        "text.json": "truncated or damaged",
        "none.json": "none of its 1 events is an operator",
        "shapeless.json": "none of its 1 operators has shapes.*record_shapes=True",
        "negative.json": "'aten::mm' has dur -5.*durations not below 0: record it anew",
        "strange.json": r"none of its 1 operators is an op with shapes that Regista knows \(aten::frobnicate\)",
        "plan.json": "no 'traceEvents'",
        "missing.json": "no such file; give a profile",
    }.items():
        with pytest.raises(InvalidFile, match=law):
            kernel_table(read_profile(tmp_path / name), name)
        assert main(["calibrate", "--from-trace", str(tmp_path / name), "-o", str(tmp_path / "k.json")]) == 2
        assert len(capsys.readouterr().err.strip()) > 20
        assert not (tmp_path / "k.json").exists()
    assert main(["calibrate", "--from-trace", str(recorded), "--device", "cpu", "-o", str(tmp_path / "k.json")]) == 2
    assert "--device beside --from-trace" in capsys.readouterr().err


def test_nodes_of_chakra_are_operators(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="the extra 'chakra' is not installed")
    from regista.chakra import ChakraTrace, Node, NodeKind, save_chakra

    reads = (TensorType((4, 8), DType.FLOAT32), TensorType((8, 16), DType.FLOAT32))
    node = Node(id=0, name="aten::mm", kind=NodeKind.COMPUTE, start_s=0.0, duration_s=5e-6, reads=reads)
    save_chakra(ChakraTrace(about={}, nodes={0: (node,)}), tmp_path / "et")
    (time,) = kernel_table(read_profile(tmp_path / "et" / "trace.0.et"), "p").table.times
    assert (time.target, time.seconds) == ("aten.mm.default", 5e-6)

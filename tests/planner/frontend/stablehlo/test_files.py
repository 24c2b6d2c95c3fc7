"""StableHLO in files: text, bytecode and exports of one function are one graph; what a file cannot say is refused with the way out."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, commands

from planner.frontend import AdamW, load_program
from planner.frontend.stablehlo.listing.reading import ShardingsLeftOut
from planner.ir.errors import RegistaError, Unsupported
from planner.ir.text import content_id
from tests.regista.refusals.refusal import assert_refused

TEXT = """
module @step {
  func.func public @main(%arg0: tensor<4xf32> loc("params['w']"), %arg1: tensor<2x4xf32> loc("batch")) -> tensor<f32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.multiply %0, %arg1 : tensor<2x4xf32>
    %cst = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
}
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process."""
    return commands(capsys)


def _jax() -> Any:
    return pytest.importorskip("jax", reason="the extra 'jax' is not installed")


def test_without_jaxlib_a_file_asks_for_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    monkeypatch.setitem(sys.modules, "jaxlib.mlir", None)
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    with pytest.raises(Unsupported, match=r"is StableHLO, which is read by jaxlib \(.*\); install it: pip install 'regista\[jax\]'"):
        load_program(str(path), {})


def test_a_missing_file_is_refused(tmp_path: Path, command: Command) -> None:
    assert_refused(
        command, tmp_path, "plan", tmp_path / "no.mlir", "--cluster", "local:1", "-o", tmp_path / "p.json", says="does not exist"
    )


def test_a_loss_in_text_is_a_program(tmp_path: Path) -> None:
    _jax()
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    program = load_program(str(path), {})
    assert program.batch_size == 2 and [name for name, _ in program.module.named_parameters()] == ["w"]


def _without_broadcast(text: str) -> str:
    kept = [line for line in text.splitlines() if "broadcast_in_dim" not in line and "multiply" not in line]
    return "\n".join(kept).replace("reduce(%1", "reduce(%arg1")


BROKEN = {
    "truncated": (lambda text: text[: len(text) // 2], "is no StableHLO module of this jaxlib: error:"),
    "no function": (lambda text: "module {}", "has no function 'main' but none"),
    "dynamic shapes": (
        lambda text: _without_broadcast(text).replace("2x4", "?x4"),
        r"has the dynamic shape tensor<\?x4xf32>; export it at one batch size",
    ),
    "names left out": (lambda text: text.replace("loc(\"params['w']\")", ""), "does not say which of its 2 inputs are parameters"),
    "no loss": (
        lambda text: text.replace("return %2 : tensor<f32>", "return %1 : tensor<2x4xf32>").replace(
            "-> tensor<f32> {", "-> tensor<2x4xf32> {"
        ),
        "the last must be the loss",
    ),
    "unknown call": (
        lambda text: text.replace(
            "stablehlo.multiply %0, %arg1 : tensor<2x4xf32>", "stablehlo.custom_call @secret(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32>"
        ),
        r"calls 'secret', code that StableHLO does not hold \(custom_call\)",
    ),
    "unknown operation": (
        lambda text: text.replace("stablehlo.multiply %0, %arg1 : tensor<2x4xf32>", "stablehlo.cbrt %0 : tensor<2x4xf32>"),
        "has cbrt, which has no translation",
    ),
}


SHARDED = "stablehlo.custom_call @Sharding(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32>"


def test_shardings_of_a_file_change_no_number_and_are_left_out_with_a_word(tmp_path: Path) -> None:
    _jax()
    plain, sharded = tmp_path / "plain.mlir", tmp_path / "sharded.mlir"
    plain.write_text(TEXT)
    lines = TEXT.splitlines()
    at = next(number for number, line in enumerate(lines) if "stablehlo.multiply %0" in line)
    lines[at : at + 1] = [f"    %s = {SHARDED}", lines[at].replace("stablehlo.multiply %0", "stablehlo.multiply %s")]
    sharded.write_text("\n".join(lines))
    with pytest.warns(
        ShardingsLeftOut, match="has 1 annotations of shardings, which are not kept: the layouts are searched; fix one with --pin"
    ):
        found = load_program(str(sharded), {})
    assert content_id(found.graph()) == content_id(load_program(str(plain), {}).graph())


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_planned_is_refused_by_name(kind: str, tmp_path: Path, command: Command) -> None:
    _jax()
    edit, says = BROKEN[kind]
    path = tmp_path / "model.mlir"
    path.write_text(edit(TEXT))
    assert_refused(command, tmp_path, "plan", path, "--cluster", "local:1", "-o", tmp_path / "p.json", says=says)


def test_micro_batches_of_a_file_are_refused_with_both_sizes(tmp_path: Path, command: Command) -> None:
    _jax()
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    says = r"is made for a batch of \[2, 4\], not \[1, 4\]: plan it in one micro-batch"
    arguments = ("plan", path, "--cluster", "local:1", "--micro-batches", 2, "-o", tmp_path / "p.json")
    assert_refused(command, tmp_path, *arguments, says=says)


@pytest.mark.thorough
def test_text_bytecode_and_export_of_a_step_are_one_graph(tmp_path: Path) -> None:
    jax = _jax()
    from jax import export

    from experiments.jax_twins.in_flax import step_of

    step, state, batch = step_of("mixer")
    leaves, form = jax.tree.flatten(state)
    flat_step = lambda flat, batch: (lambda made: (jax.tree.leaves(made[0]), made[1]))(step(jax.tree.unflatten(form, flat), batch))  # noqa: E731
    jitted = jax.jit(flat_step, keep_unused=True)
    lowered = jitted.lower(leaves, batch)
    bytecode = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(bytecode)
    exported = export.export(jitted)(leaves, batch)
    forms = {
        "plain": lowered.as_text().encode(),
        "bytecode": bytecode.getvalue(),
        "portable": exported.mlir_module_serialized,
        "export": bytes(exported.serialize()),
    }
    graphs = {}
    for name, data in forms.items():
        (tmp_path / f"{name}.mlir").write_bytes(data)
        program = load_program(str(tmp_path / f"{name}.mlir"), {})
        assert program.groups[0].rule == AdamW(lr=1e-3, eps=1e-6, weight_decay=0.01)
        graphs[name] = content_id(program.graph())
    assert len(set(graphs.values())) == 1, graphs


@pytest.mark.thorough
def test_an_export_of_a_dynamic_batch_is_refused(tmp_path: Path) -> None:
    jax = _jax()
    from jax import export

    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 4"), "float32")
    exported = export.export(jax.jit(lambda w, x: (x * w).mean()))(jax.ShapeDtypeStruct((4,), "float32"), shape)
    (tmp_path / "m.mlir").write_bytes(bytes(exported.serialize()))
    with pytest.raises(RegistaError, match=r"is exported with the dynamic shapes float32\[b,4\]; export it at one batch size"):
        load_program(str(tmp_path / "m.mlir"), {})

"""A JAX function as a Program: its loss and gradients are JAX's, its optimizer is recognised with all numbers, and the rest is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax", reason="the extra 'jax' is not installed")
optax = pytest.importorskip("optax", reason="the extra 'jax' is not installed")

import jax.numpy as jnp  # noqa: E402

import regista  # noqa: E402
from planner.frontend import SGD, AdamW, Program  # noqa: E402
from planner.ir.errors import InvalidProgram, RegistaError, Unsupported  # noqa: E402
from planner.ir.graph import Role  # noqa: E402

pytestmark = pytest.mark.thorough

WIDTH = 8
PARAMS = {
    "layers": [
        {"w": np.random.default_rng(i).standard_normal((WIDTH, WIDTH)).astype(np.float32) * 0.3, "b": np.zeros(WIDTH, np.float32)}
        for i in (0, 1)
    ]
}
BATCH = tuple(np.random.default_rng(9).standard_normal((4, WIDTH)).astype(np.float32) for _ in range(2))


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    for layer in params["layers"]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return ((x - y) ** 2).mean()


def stepping(tx: Any, of: Callable[..., Any] = loss) -> tuple[Callable[..., Any], Any]:
    def step(state: Any, batch: Any) -> Any:
        params, held = state
        value, gradients = jax.value_and_grad(of)(params, batch)
        updates, held = tx.update(gradients, held, params)
        return (optax.apply_updates(params, updates), held), value

    return step, (PARAMS, tx.init(PARAMS))


def trained_by_jax(step: Callable[..., Any], state: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        state, value = jax.jit(step)(state, BATCH)
        losses.append(float(value))
    return losses


def trained_by_plan(program: Program, steps: int, **options: Any) -> list[float]:
    plan = regista.plan(program, "local:2", **options)
    return list(regista.run(plan, program, steps=steps, performer=regista.Performer.REFERENCE).losses)


def test_loss_and_gradients_are_those_of_jax() -> None:
    program = regista.from_jax(loss, PARAMS, BATCH, optimizer="sgd")
    value = program.loss_of(program.module, program.example_inputs)
    value.backward()  # type: ignore[no-untyped-call]
    wanted, gradients = jax.value_and_grad(loss)(PARAMS, BATCH)
    assert value.item() == pytest.approx(float(wanted), rel=1e-6)
    mine = {name: parameter.grad for name, parameter in program.module.named_parameters()}
    for layer in (0, 1):
        for leaf in ("w", "b"):
            np.testing.assert_allclose(mine[f"layers.{layer}.{leaf}"], gradients["layers"][layer][leaf], atol=1e-6)


def test_forward_operations_know_their_layer() -> None:
    program = regista.from_jax(loss, PARAMS, BATCH)
    modules = [op.module for op in program.graph().ops if op.role is Role.FORWARD]
    assert list(dict.fromkeys(module for module in modules if module.startswith("layers"))) == ["layers.0", "layers", "layers.1"]


OPTIMIZERS = {
    "adamw": (lambda: optax.adamw(1e-3, weight_decay=0.01), AdamW(lr=1e-3, weight_decay=0.01), None),
    "adam": (lambda: optax.adam(3e-4, b1=0.8, b2=0.99, eps=1e-6), AdamW(lr=3e-4, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.0), None),
    "sgd": (lambda: optax.sgd(0.1), SGD(lr=0.1), None),
    "momentum": (lambda: optax.sgd(0.1, momentum=0.9), SGD(lr=0.1, momentum=0.9), None),
    "nesterov": (lambda: optax.sgd(0.1, momentum=0.9, nesterov=True), SGD(lr=0.1, momentum=0.9, nesterov=True), None),
    "decay": (lambda: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)), SGD(lr=0.1, weight_decay=0.1), None),
    "clipped": (lambda: optax.chain(optax.clip_by_global_norm(0.25), optax.adamw(1e-3)), AdamW(lr=1e-3, weight_decay=1e-4), 0.25),
    "clipped sgd": (lambda: optax.chain(optax.clip_by_global_norm(0.25), optax.sgd(0.1)), SGD(lr=0.1), 0.25),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_update_of_optax_is_recognised_with_its_numbers_and_trains_as_jax(kind: str) -> None:
    make, rule, max_norm = OPTIMIZERS[kind]
    step, state = stepping(make())
    program = regista.from_jax(step, state, BATCH)
    assert [group.rule for group in program.groups] == [rule]
    clipping = program._update.clip_norm
    assert (None if clipping is None else clipping.max_norm) == max_norm
    np.testing.assert_allclose(trained_by_plan(program, 4), trained_by_jax(step, state, 4), atol=1e-5)


def test_decay_in_the_loss_and_decay_in_the_update_are_told_apart() -> None:
    def decayed(params: Any, batch: Any) -> Any:
        return loss(params, batch) + 0.05 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    step, state = stepping(optax.sgd(0.1), decayed)
    program = regista.from_jax(step, state, BATCH)
    assert [group.rule for group in program.groups] == [SGD(lr=0.1)]
    np.testing.assert_allclose(trained_by_plan(program, 4), trained_by_jax(step, state, 4), atol=1e-5)


def test_a_schedule_of_optax_is_the_rate_by_step() -> None:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 4, 20)
    for tx in (optax.adamw(schedule, weight_decay=0.1), optax.sgd(schedule)):
        step, state = stepping(tx)
        program = regista.from_jax(step, state, BATCH)
        for number in (0, 1, 4, 11):
            assert program.step_numbers(number)["lr.0"] == pytest.approx(float(schedule(number)), rel=1e-5, abs=1e-9)


def test_parameters_without_decay_are_a_group_of_their_own() -> None:
    masked = optax.adamw(1e-3, weight_decay=0.1, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params))
    program = regista.from_jax(*stepping(masked), BATCH)
    assert {group.rule.weight_decay: len(group.parameters) for group in program.groups} == {0.1: 2, 0.0: 2}  # type: ignore[union-attr]


def test_a_state_that_has_taken_steps_goes_on_from_there() -> None:
    step, state = stepping(optax.adamw(optax.linear_schedule(1e-2, 1e-3, 10)))
    for _ in range(3):
        state, _ = jax.jit(step)(state, BATCH)
    program = regista.from_jax(step, state, BATCH)
    np.testing.assert_allclose(trained_by_plan(program, 3), trained_by_jax(step, state, 3), atol=1e-5)


def test_micro_batches_and_stages_train_as_the_whole_batch() -> None:
    step, state = stepping(optax.adamw(1e-2))
    program = regista.from_jax(step, state, BATCH)
    np.testing.assert_allclose(trained_by_plan(program, 3, micro_batches=2, stages=2), trained_by_jax(step, state, 3), atol=1e-5)


def test_shapes_alone_are_planned_as_values_are() -> None:
    step, state = stepping(optax.adamw(1e-3))
    shapes = jax.eval_shape(lambda: (state, BATCH))
    assert (
        regista.plan(regista.from_jax(step, *shapes), "local:2").plan_id
        == regista.plan(regista.from_jax(step, state, BATCH), "local:2").plan_id
    )


def test_a_loss_takes_the_options_of_a_program() -> None:
    program = regista.from_jax(loss, PARAMS, BATCH, optimizer=SGD(lr=0.5), clip_norm=1.0, name="tanh", data=lambda step: BATCH)
    assert program.name == "tanh" and program.groups[0].rule == SGD(lr=0.5) and torch.equal(program.batch(3)[0], torch.from_numpy(BATCH[0]))


def stopped(params: Any, batch: Any) -> Any:
    return loss(
        jax.tree.map(jax.lax.stop_gradient, {"layers": params["layers"][:1]})
        | {"layers": [jax.lax.stop_gradient(params["layers"][0]), params["layers"][1]]},
        batch,
    )


def looped(params: Any, batch: Any) -> Any:
    return jax.lax.fori_loop(0, batch[0].shape[0] + 3, lambda i, x: x * 1.01, loss(params, batch))


def drawn(params: Any, batch: Any) -> Any:
    return loss(params, (batch[0] * jax.random.uniform(jax.random.key(0), batch[0].shape), batch[1]))


def called(params: Any, batch: Any) -> Any:
    return loss(params, batch) + jax.pure_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32))


def sorted_loss(params: Any, batch: Any) -> Any:
    return loss(params, (jnp.sort(batch[0], axis=1), batch[1]))


REFUSED_LOSSES = {
    looped: r"looped has stablehlo.while in test_from_jax.py:\d+, a loop \(lax.scan, lax.fori_loop, lax.while_loop\): write it as a Python loop",
    drawn: r"random keys and their bits are not planned; take dropout out",
    called: r"calls 'xla_ffi_python_cpu_callback'.*, code that StableHLO does not hold \(custom_call\); write it in jax.numpy",
    sorted_loss: r"sorted_loss has sort in test_from_jax\.py:\d+, which has no translation \(so have not: sort\); write it with",
}


@pytest.mark.parametrize("function", REFUSED_LOSSES, ids=lambda function: str(function.__name__))
def test_what_cannot_be_translated_is_refused_with_its_line_and_a_way_out(function: Callable[..., Any]) -> None:
    with pytest.raises(RegistaError, match=REFUSED_LOSSES[function]):
        regista.from_jax(function, PARAMS, BATCH)


def test_a_gradient_that_is_not_the_losss_is_refused_by_parameter() -> None:
    with pytest.raises(Unsupported, match=r"takes another gradient of layers\.0\.\w than that of its loss \(stop_gradient, custom_vjp"):
        regista.from_jax(*stepping(optax.adamw(1e-3), stopped), BATCH)


def test_an_update_that_no_rule_computes_is_refused_by_parameter() -> None:
    with pytest.raises(Unsupported, match=r"updates parameter layers\.0\.b in a way that is no SGD"):
        regista.from_jax(*stepping(optax.lion(1e-4)), BATCH)


def test_another_result_than_a_loss_or_a_step_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=re.escape("give loss(params, batch) -> scalar, or step(state, batch) -> (new state")):
        regista.from_jax(lambda params, batch: batch, PARAMS, BATCH)
    with pytest.raises(InvalidProgram, match="is a step, which says its own optimizer"):
        regista.from_jax(*stepping(optax.sgd(0.1)), BATCH, optimizer="sgd")


def test_a_long_step_is_looked_at_with_two_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.frontend.stablehlo.step import gradients

    step, state = stepping(optax.adamw(1e-3))
    whole = regista.from_jax(step, state, BATCH)
    monkeypatch.setattr(gradients, "_MOST_WORK", 0.9 * gradients._work(_listing(step, state, BATCH)))
    assert regista.from_jax(step, state, BATCH).groups == whole.groups
    with pytest.raises(Unsupported, match="takes another gradient"):
        regista.from_jax(*stepping(optax.adamw(1e-3), stopped), BATCH)


def _listing(step: Callable[..., Any], state: Any, batch: Any) -> Any:
    from planner.frontend.stablehlo.listing import listing_of_text

    return listing_of_text(jax.jit(step).lower(state, batch).as_text(), "step")

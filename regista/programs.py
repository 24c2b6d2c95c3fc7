"""The program of a Plan: found by the name that the Plan keeps, put into the form that was planned, and compared with it before it is performed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from planner.frontend import Program, load_program
from planner.ir.errors import Mismatch
from planner.ir.graph import Mode
from planner.ir.plan import Plan
from planner.ir.text import content_id
from planner.validate import validate
from regista.origin import check_code, handed_file
from regista.padded.asked import as_padded
from regista.update_options import UpdateOptions, as_planned, own_rates
from zoo import ZOO

__all__ = ["check_program", "keeping_programs", "names_program", "planned_program", "program_for", "program_of"]

_Kept = MutableMapping[tuple[str, str | None], Program]
_KEPT: ContextVar[_Kept | None] = ContextVar("regista-kept-programs", default=None)


@contextmanager
def keeping_programs(kept: _Kept) -> Iterator[None]:
    """Within the block a Plan's program is loaded and traced once: by the Plan's id, and the path of the file that was handed over for it."""
    token = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(token)


def program_of(model: str) -> Program:
    """The Program named by ``zoo:NAME``, ``file.py:factory``, a ``.pt2`` or a ``.mlir``.

    Raises:
        InvalidFile, InvalidProgram: with the way out.
    """
    return load_program(handed_file(model) or model, ZOO)


def names_program(plan: Plan) -> bool:
    """Whether the Plan names a program that can be found again, and was not made from a value of Python."""
    return plan.model.startswith("zoo:") or plan.model.endswith((".pt2", ".mlir")) or ".py:" in plan.model


def planned_program(plan: Plan, model: str | None = None) -> Program:
    """The Program that the Plan names, or ``model``; its optimizer's own rates stand in where the Plan takes rates from outside and it has none.

    Raises:
        Mismatch: the Plan was made from a value, which only the caller has.   InvalidFile, InvalidProgram: see program_of.
        Untrusted: the Plan names code, and was not made here (regista.origin).
    """
    kept, key = _KEPT.get(), (plan.plan_id, handed_file(plan.model))
    if model is not None or kept is None:
        return _planned_program(plan, model)
    if key not in kept:
        kept[key] = _planned_program(plan, None)
    return kept[key]


def _planned_program(plan: Plan, model: str | None) -> Program:
    if model is None:
        check_code(plan)
    if model is None and not names_program(plan):
        raise Mismatch(
            f"plan {plan.plan_id} was made from a Program of Python named {plan.model!r}, which no file holds; "
            f"call regista.run(plan, program), or plan file.py:factory"
        )
    source = own_rates(plan, UpdateOptions.of(plan).applied(as_planned(plan, program_of(model or plan.model))), None, performs=False)
    dims = tuple(entry.batch_dim for entry in plan.batch_inputs if entry.whole_of is None)[: len(source.batch_dims.dims)]
    source = source if dims == source.batch_dims.dims or len(dims) != len(source.batch_dims.dims) else source.cut_along(dims)
    return program_for(plan, source)


def program_for(plan: Plan, program: Program | None) -> Program:
    """The program (None: the one that the Plan names) as the Plan has it: as an evaluation with its outputs, or as a training step."""
    source = program if program is not None else planned_program(plan)
    return as_padded(plan, source.evaluating([output.name for output in plan.outputs]) if plan.mode is Mode.EVAL else source)


def check_program(plan: Plan, program: Program, state: Mapping[str, Tensor]) -> None:
    """Refuse to perform a Plan with the values and data of another program.

    Args:
        state: ``program.initial_state(plan.micro_batches)``.

    Raises:
        Mismatch: other states, another batch, or another step.
        PlanDoesNotComputeProgram: the plan computes something else (planner.validate).
    """
    state_types = {name: (tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in state.items()}
    wrong = []
    for entry in plan.states:
        tensor = plan.regst[entry.regst].tensors[entry.index]
        wanted, actual = (tensor.shape, tensor.dtype.value), state_types.get(entry.given_as)
        if actual is not None and entry.copy_of is not None:
            actual = actual[0], wanted[1]
        if actual != wanted:
            wrong.append(
                f"{entry.name} is {actual[1]}{list(actual[0])}, not {wanted[1]}{list(wanted[0])}" if actual else f"no {entry.name}"
            )
    if program.batch_size != plan.batch_size:
        wrong.append(f"batch {program.batch_size}, not {plan.batch_size}")
    planned, given = plan.options.get("graph"), content_id(program.graph(plan.micro_batches))
    if not wrong and planned is not None and planned != given:
        wrong.append(f"its step is graph {given}, not {planned}: the ops, the optimizer's numbers or torch's version have changed")
    if wrong:
        raise Mismatch(
            f"plan {plan.plan_id} was made for another program than {program.name}: {'; '.join(wrong[:3])}"
            f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}; plan this program anew"
        )
    validate(plan, program)

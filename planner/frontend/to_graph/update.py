"""The ops after the backward pass: gradients are accumulated, clipped, and parameters updated.

gradient --accumulate--> gradient:FQN --[clip]--[negate]--.
parameter:FQN ---------------------------------------------+--> regista.sgd / regista.adamw / ... --> updated:FQN, updated:FQN:slot
optimizer_state:FQN:slot, step_input:lr.GROUP -------------'

scaled loss:    gradient:FQN --overflow--> overflow:FQN ..all gradients.. --join_norms--> overflow --kept_if--> state as it was, or as updated
sparse table:   row_gradient:FQN.K, rows:FQN.K --regista.rows_sgd / rows_adagrad / rows_adam--> updated:FQN, updated:FQN:slot
working copy:   updated:FQN --cast--> updated:FQN:bfloat16

clip by norm:   gradient:FQN --square_sum--> square:FQN ..all gradients.. --add_norms--> norm --clip_scale--> clip:scale
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.frontend.optim import Group, Optimizer
from planner.frontend.optim.clipping import ClipNorm, norm_dtype
from planner.frontend.optim.loss_scale import GOOD_STEPS, SCALE, LossScaling
from planner.frontend.optim.rules import SGD, Adagrad, LazyAdam, slot_type
from planner.ir.errors import Unsupported
from planner.ir.graph import ACCUMULATE, Arg, Dt, GraphInput, InputKind, Op, Ref, Role, step_input_value
from planner.ir.tensor import DType, TensorType

__all__ = ["MEAN_LOSS", "Appended", "Update", "average_of"]

MEAN_LOSS = "mean:loss"
_SCALE = "clip:scale"
_OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What happens to gradients once they are accumulated.

    groups: how parameters are trained; the gradients of all others are not computed.
    scheduled: the learning rate of each group is an input of the step instead of a constant.   cycled: its momentum, too.
    clip_norm, clip_value: gradients are clipped before.
    ema: decay of a moving average of each trained parameter, kept beside its optimizer state.
    grad_dtype: of accumulated and reduced gradients; None: as autograd gives them.
    loss_scaling: gradients are those of a scaled loss, and a step on which one overflows is skipped.
    """

    groups: Sequence[Group]
    scheduled: bool = False
    cycled: bool = False
    clip_norm: ClipNorm | None = None
    clip_value: float | None = None
    ema: float | None = None
    grad_dtype: DType | None = None
    loss_scaling: LossScaling | None = None

    @property
    def group_of(self) -> dict[str, int]:
        """Trained parameter -> number of its group."""
        return {name: number for number, group in enumerate(self.groups) for name in group.parameters}


def average_of(parameter: str) -> str:
    """The name of the state that is the moving average of a parameter."""
    return f"{parameter}:ema"


class Appended:
    """A builder: the ops of a micro-batch, to which those of the step's end are appended.

    updates: value of a state -> value that replaces it.
    """

    def __init__(self, update: Update, ops: Iterable[Op], inputs: Iterable[GraphInput], types: Mapping[str, TensorType]) -> None:
        self._update, self._group_of = update, update.group_of
        self.ops, self.inputs, self.types = list(ops), list(inputs), dict(types)
        self._copies: dict[str | None, list[GraphInput]] = {}  # parameter -> its working copies
        for given in self.inputs:
            self._copies.setdefault(given.copy_of, []).append(given)
        self.updates: dict[str, str] = {}
        self._gradients: dict[str, str] = {}  # parameter -> what was made of its gradient so far

    def accumulate(self, value: str, total: str, module: str) -> None:
        """The mean of a value over the micro-batches."""
        self._append(ACCUMULATE, (Ref(value),), {total: self.types[value]}, Role.ACCUMULATE, module)

    def update_all(self, names: Sequence[str], micro_batches: int, by_rows: Sequence[str] = ()) -> None:
        """Unscale and clip the accumulated gradients of these parameters and update the parameters.

        by_rows: parameters that ``update_rows`` will update: their rates are inputs of the step, too.

        Raises:
            Unsupported: momentum is cycled, and a rule has none, or a table is updated by rows.
        """
        taken = [self._rate_input(name) for name in (*names, *by_rows)] if self._update.scheduled else []
        if self._update.cycled:
            if by_rows:
                raise Unsupported(
                    f"a schedule that cycles momentum, and {by_rows[0]}, whose looked-up rows alone are updated: build the scheduler with "
                    "cycle_momentum=False, or the embedding with sparse=False"
                )
            taken += [self._momentum_input(name) for name in names]
        for number in dict.fromkeys(taken):
            self.inputs.append(GraphInput(value=step_input_value(number), kind=InputKind.STEP_INPUT, name=number))
            self.types[step_input_value(number)] = TensorType((), DType.FLOAT64)
        self._gradients = {name: f"gradient:{name}" for name in names}
        if self._update.loss_scaling is not None:
            self._unscale(names, micro_batches, self._update.loss_scaling)
        if self._update.clip_norm is not None:
            self._measure(names, self._update.clip_norm)
        for name in names:
            self._update_one(name, self._taken(name))

    def update_rows(self, name: str, slots: Op, slots_type: TensorType, extent: int, padding: tuple[int, ...]) -> None:
        """Update the rows of a table that were looked up, from their accumulated gradients and indices."""
        rule, module = self._rule(name), name.rpartition(".")[0]
        assert isinstance(rule, SGD | Adagrad | LazyAdam)
        made = f"slots:{name}"
        self._append(slots.target, slots.args, {made: slots_type}, Role.UPDATE, module, slots.kwargs)
        gradients = tuple(Ref(f"row_gradient:{name}.{k}") for k in range(len(padding)))
        if rule.maximize:
            for k, gradient in enumerate(gradients):
                up = {f"ascent:{name}.{k}": self.types[gradient.value]}
                self._append("aten.neg.default", (gradient,), up, Role.UPDATE, module)
            gradients = tuple(Ref(f"ascent:{name}.{k}") for k in range(len(padding)))
        indices = tuple(Ref(f"rows:{name}.{k}") for k in range(len(padding)))
        self._replace_state(name, rule.rows, (gradients, indices, Ref(made)), rule.row_numbers, (extent, padding))

    def count(self, state: str) -> None:
        """A state that is one more after every step."""
        made = f"updated:{state}"
        self._append("aten.add.Tensor", (Ref(state), 1), {made: self.types[state]}, Role.UPDATE, "")
        self.updates[state] = made

    def _rate_input(self, name: str) -> str:
        """The name of the input that holds the parameter's learning rate."""
        return f"lr.{self._group_of[name]}"

    def _momentum_input(self, name: str) -> str:
        """The name of the input that holds the parameter's momentum."""
        return f"momentum.{self._group_of[name]}"

    def _rule(self, name: str) -> Optimizer:
        return self._update.groups[self._group_of[name]].rule

    def _append(
        self,
        target: str,
        args: tuple[Arg, ...],
        outputs: Mapping[str, TensorType],
        role: Role,
        module: str,
        kwargs: tuple[tuple[str, Arg], ...] = (),
    ) -> None:
        op = Op(id=f"n{len(self.ops)}", target=target, args=args, kwargs=kwargs, outputs=tuple(outputs), role=role, module=module)
        self.ops.append(op)
        self.types.update(outputs)

    def _measure(self, names: Sequence[str], clip: ClipNorm) -> None:
        """The scale by which all gradients are multiplied."""
        measures: dict[str, TensorType] = {}
        for name in names:
            gradient, module = self._gradients[name], name.rpartition(".")[0]
            made = {f"measure:{name}": TensorType((), norm_dtype(self.types[gradient].dtype))}
            self._append(clip.of_gradient, (Ref(gradient),), made, Role.UPDATE, module)
            measures |= made
        widest = TensorType((), max((type_.dtype for type_ in measures.values()), key=lambda dtype: dtype.size_bytes))
        self._append(clip.of_all, tuple(map(Ref, measures)), {"clip:measure": widest}, Role.UPDATE, "")
        numbers = (clip.max_norm, clip.norm_type == 2, clip.error_if_nonfinite)
        self._append("regista.clip_scale", (Ref("clip:measure"), *numbers), {_SCALE: widest}, Role.UPDATE, "")

    def _taken(self, name: str) -> str:
        """What the update takes as the parameter's gradient."""
        module = name.rpartition(".")[0]
        type_, value = self.types[f"{InputKind.PARAMETER.value}:{name}"], self._update.clip_value
        gradient = self._in_format_of_parameter(name)
        if self._update.clip_norm is not None:
            self._append("aten.mul.Tensor", (Ref(gradient), Ref(_SCALE)), {f"clipped:{name}": type_}, Role.UPDATE, module)
            gradient = f"clipped:{name}"
        if value is not None:
            self._append("aten.clamp.default", (Ref(gradient), -value, value), {f"clamped:{name}": type_}, Role.UPDATE, module)
            gradient = f"clamped:{name}"
        if self._rule(name).maximize:
            self._append("aten.neg.default", (Ref(gradient),), {f"ascent:{name}": type_}, Role.UPDATE, module)
            gradient = f"ascent:{name}"
        return gradient

    def _in_format_of_parameter(self, name: str) -> str:
        gradient, type_ = self._gradients[name], self.types[f"{InputKind.PARAMETER.value}:{name}"]
        if self.types[gradient] != type_:
            cast = (("dtype", Dt(type_.dtype)),)
            self._append("aten._to_copy.default", (Ref(gradient),), {f"cast:{name}": type_}, Role.UPDATE, name.rpartition(".")[0], cast)
            self._gradients[name] = f"cast:{name}"
        return self._gradients[name]

    def _unscale(self, names: Sequence[str], micro_batches: int, scaling: LossScaling) -> None:
        """Gradients of the loss from those of the scaled loss; whether one of them is not finite; the next scale."""
        scalar, count = TensorType((), DType.FLOAT32), TensorType((), DType.INT32)
        self._append("regista.unscaling", (Ref(SCALE), micro_batches), {"unscaling": scalar}, Role.UPDATE, "")
        found: dict[str, TensorType] = {}
        for name in names:
            found[f"overflow:{name}"] = scalar
            self._append("regista.overflow", (Ref(f"gradient:{name}"),), {f"overflow:{name}": scalar}, Role.UPDATE, name.rpartition(".")[0])
        self._append("regista.join_norms", tuple(map(Ref, found)), {_OVERFLOW: scalar}, Role.UPDATE, "")
        for name in names:
            gradient, made = self._in_format_of_parameter(name), f"unscaled:{name}"
            args, type_ = (Ref(gradient), Ref("unscaling")), self.types[gradient]
            self._append("aten.mul.Tensor", args, {made: type_}, Role.UPDATE, name.rpartition(".")[0])
            self._gradients[name] = made
        self.inputs.append(GraphInput(value=GOOD_STEPS, kind=InputKind.LOSS_SCALE, name=GOOD_STEPS))
        self.types[GOOD_STEPS] = count
        self.updates |= {SCALE: f"updated:{SCALE}", GOOD_STEPS: f"updated:{GOOD_STEPS}"}
        numbers = (scaling.growth_factor, scaling.backoff_factor, scaling.growth_interval)
        outputs = {f"updated:{SCALE}": scalar, f"updated:{GOOD_STEPS}": count}
        self._append("regista.next_scale", (Ref(SCALE), Ref(GOOD_STEPS), Ref(_OVERFLOW), *numbers), outputs, Role.UPDATE, "")

    def _kept_where_skipped(self, new: Mapping[str, str], module: str) -> dict[str, str]:
        """State -> its old value where a gradient overflowed, else the new one."""
        kept = {}
        for old, made in new.items():
            kept[old] = f"{made}.kept"
            self._append("regista.kept_if", (Ref(old), Ref(made), Ref(_OVERFLOW)), {kept[old]: self.types[old]}, Role.UPDATE, module)
        return kept

    def _update_one(self, name: str, gradient: str) -> None:
        rule = self._rule(name)
        numbers: list[Arg] = list(rule.hyper_parameters)
        if self._update.cycled:
            if rule.momentum_at is None:
                raise Unsupported(
                    f"a schedule cycles momentum, and {type(rule).__name__} has none: build the scheduler with cycle_momentum=False"
                )
            numbers[rule.momentum_at] = Ref(step_input_value(self._momentum_input(name)))
        self._replace_state(name, rule.target, (Ref(gradient),), tuple(numbers[1:]))

    def _replace_state(
        self, name: str, target: str, gradient: tuple[Arg, ...], numbers: tuple[Arg, ...], table: tuple[Arg, ...] | None = None
    ) -> None:
        """The update op of a parameter, and what follows from its new value.

        table: numbers of a table whose rows are updated; such an op has no arguments for states that it does not keep.
        """
        rule, parameter = self._rule(name), f"{InputKind.PARAMETER.value}:{name}"
        slots = rule.slots(len(self.types[parameter].shape))
        states = {slot: f"{InputKind.OPTIMIZER_STATE.value}:{name}:{slot}" for slot in rule.all_slots if slot in slots}
        for slot, state in states.items():
            self.inputs.append(GraphInput(value=state, kind=InputKind.OPTIMIZER_STATE, name=f"{name}:{slot}"))
            self.types[state] = slot_type(slot, self.types[parameter])
        kept = rule.all_slots if table is None else tuple(states)
        held = (Ref(states[slot]) if slot in states else None for slot in kept)
        lr = rule.hyper_parameters[0]
        rate: Arg = Ref(step_input_value(self._rate_input(name))) if self._update.scheduled else lr
        new = {old: f"updated:{old.partition(':')[2]}" for old in (parameter, *states.values())}
        outputs = {made: self.types[old] for old, made in new.items()}
        args = (Ref(parameter), *gradient, *held, rate, *numbers, *(table or ()))
        self._append(target, args, outputs, Role.UPDATE, name.rpartition(".")[0])
        if self._update.loss_scaling is not None:
            new = self._kept_where_skipped(new, name.rpartition(".")[0])
        self.updates |= new
        for copy in self._copies.get(parameter, ()):
            made = f"updated:{copy.name}"
            cast = (("dtype", Dt(self.types[copy.value].dtype)),)
            self._append(
                "aten._to_copy.default", (Ref(new[parameter]),), {made: self.types[copy.value]}, Role.UPDATE, name.rpartition(".")[0], cast
            )
            self.updates[copy.value] = made
        if self._update.ema is not None:
            self._average(name, parameter, new[parameter], self._update.ema)

    def _average(self, name: str, parameter: str, updated: str, decay: float) -> None:
        state, made = f"{InputKind.OPTIMIZER_STATE.value}:{average_of(name)}", f"updated:{average_of(name)}"
        self.inputs.append(GraphInput(value=state, kind=InputKind.OPTIMIZER_STATE, name=average_of(name)))
        self.types[state] = self.types[parameter]
        args = (Ref(state), Ref(updated), decay)
        self._append("regista.moving_average", args, {made: self.types[parameter]}, Role.UPDATE, name.rpartition(".")[0])
        self.updates[state] = made

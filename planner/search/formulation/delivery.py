"""The delivery of a value to the ops of a stage that read it: the allowed modes, the memory that each holds, and what readers may box."""

from __future__ import annotations

from planner.ir.graph import InputKind, LogicalGraph, Role
from planner.search.formulation.options import FormulationOptions
from planner.search.formulation.readers import Readers
from planner.search.zero import DeliveryMode

__all__ = ["DeliveryRules"]


class DeliveryRules:
    """The rules that follow from a memory limit and from a ZeRO level."""

    def __init__(self, graph: LogicalGraph, readers: Readers, options: FormulationOptions) -> None:
        self._readers, self._options = readers, options
        self._states = frozenset(graph.updates)
        kinds = (InputKind.PARAMETER, InputKind.WORKING_COPY)
        trained = frozenset(i.value for i in graph.inputs if i.kind in kinds and i.value in graph.updates)
        self._parameters = trained - graph.masters
        self._new_states = frozenset(graph.updates.values())
        updates = [op for op in graph.ops if op.role is Role.UPDATE]
        self._read_on = self._new_states.intersection(v for op in updates for v in op.inputs)
        self._updated = frozenset(v for op in updates for v in op.outputs if v is not None and graph.values[v].ndim) | self._new_states

    def is_parameter(self, value: str) -> bool:
        """Whether the value is a parameter that is trained, or its working copy; not a parameter that updates alone read."""
        return value in self._parameters

    def modes(self, value: str, stage: int, source_stage: int) -> tuple[DeliveryMode, ...]:
        """The modes in which a value from ``source_stage`` may be delivered to ``stage``."""
        zero, is_own_parameter = self._options.zero, self.is_parameter(value) and source_stage == stage
        if is_own_parameter and zero is not None:
            return (DeliveryMode.IN_PLACE, DeliveryMode.REGATHERED) if zero == 3 else (DeliveryMode.IN_PLACE,)
        if (zero == 0 and value in self._new_states) or (value in self._read_on and source_stage == stage):
            return (DeliveryMode.IN_PLACE,)
        if not self._options.is_limited:
            return (DeliveryMode.ANY,)
        if is_own_parameter and ((value, stage) in self._readers.saved or self.regathers_per_step(value, stage) > 1):
            return (DeliveryMode.IN_PLACE, DeliveryMode.COPIED, DeliveryMode.REGATHERED)
        return (DeliveryMode.IN_PLACE, DeliveryMode.COPIED)

    def regathers_per_step(self, value: str, stage: int) -> int:
        """Deliveries per step of a value that is regathered for every pass of every micro-batch."""
        return self._options.pipeline_slots * self._readers.num_passes(value, stage)

    def saved_blocks(self, value: str, stage: int, source_stage: int, modes: tuple[DeliveryMode, ...]) -> tuple[int, ...]:
        """Per mode, the number of copies of a delivered value in memory at the end of the stage's forward part.

        A copy waits for the backward part, or for the next micro-batch.  If the value is regathered, only the copy of the last unit is in
        memory then, because the backward part begins with that unit.
        """
        if (value, stage) not in self._readers.saved and DeliveryMode.REGATHERED not in modes:
            return (0,) * len(modes)
        options = self._options
        copies = options.in_flight[stage] if options.in_flight and value not in self._states else 1
        is_last_unit = options.saved_elsewhere is None and self._readers.begins_backward(value, stage)
        blocks = {
            DeliveryMode.ANY: 0,
            DeliveryMode.IN_PLACE: copies - 1 if source_stage == stage else 0,
            DeliveryMode.COPIED: copies,
            DeliveryMode.REGATHERED: int(is_last_unit),
        }
        return tuple(blocks[mode] for mode in modes)

    def still_saved_blocks(self, value: str, stage: int, source_stage: int, modes: tuple[DeliveryMode, ...]) -> tuple[int, ...]:
        """Per mode, the copies of a delivered value that are left when the backward part is done with one of the micro-batches in flight.

        The copy of a state serves them all.
        """
        options = self._options
        left = options.in_flight[stage] - 1 if options.in_flight else 0
        if (value, stage) not in self._readers.saved or left <= 0 or (source_stage != stage and value not in self._states):
            return (0,) * len(modes)
        is_state = value in self._states
        blocks = {DeliveryMode.IN_PLACE: 0 if is_state else left, DeliveryMode.COPIED: 1 if is_state else left}
        return tuple(blocks.get(mode, 0) for mode in modes)

    def is_final(self, value: str, stage: int, mode: DeliveryMode, role: Role | None) -> bool:
        """Whether a reader of a value delivered in this mode may box it only without communication.

        Otherwise every micro-batch would communicate, a copy would not be counted, or the ZeRO level would be broken.

        Args:
            role: of the op that reads the value; None: the reader is a state or the user.
        """
        if role is Role.BACKWARD and (value, stage) in self._readers.saved:
            return True  # the reader's own copy would be in memory from the forward part on
        if role in (Role.FORWARD, Role.BACKWARD):
            is_counted = self._options.is_limited or (mode is DeliveryMode.IN_PLACE and self._options.zero is not None)
            return mode is DeliveryMode.REGATHERED or (is_counted and self.is_parameter(value))
        return self.is_final_update(value, role)

    def is_final_update(self, value: str, role: Role | None) -> bool:
        """Whether a reader of what an update makes may box it only without communication.

        Under ZeRO level 0 optimizer states have the layout of their parameters.  At any level an op that makes another state of a new state (a
        working copy, a moving average) has it from the fragment that makes it: what is boxed lies in the state's block already, and then nothing
        says which of the state's versions the op would read.
        """
        if role is Role.UPDATE and value in self._read_on:
            return True
        return self._options.zero == 0 and role in (None, Role.UPDATE) and value in self._updated

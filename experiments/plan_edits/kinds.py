"""The kinds of edits, and why an edit may leave the numbers as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random

from planner.ir.plan import Plan

__all__ = ["Edit", "EditKind", "Editor", "Reason"]


class EditKind(Enum):
    """What is changed.  Each edit keeps the rest of the Plan consistent, as far as that is possible: ports, rates, orders of streams."""

    COMMUNICATION_REMOVED = "a communication is removed, its readers take its source"
    COMMUNICATION_REMOVED_RELABELLED = "a communication is removed, and its source is said to have the layout of its result"
    COMMUNICATION_WITHOUT_EFFECT = "a boxing step hands on its source as it is"
    BOXING_REDUCTION = "a boxing step reduces by another operation"
    BOXING_DIM = "a boxing step splits another dim"
    BOXING_AXIS = "a boxing step goes along another mesh axis"
    PAIRS_EXCHANGED = "two of the pairs of a communication are exchanged"
    READS_EXCHANGED = "two names of what a task reads are exchanged"
    WRITES_EXCHANGED = "two names of what a task writes are exchanged"
    READ_REDIRECTED = "a task reads another tensor of the same type"
    TRANSFER_SOURCE = "a transfer sends another tensor of the same type"
    LOSS_REDIRECTED = "another number is fetched as the loss"
    GRADIENTS_EXCHANGED = "the places of two parameters' gradients are exchanged"
    GRADIENT_REDIRECTED = "a parameter's gradient is said to lie elsewhere"
    OUTPUTS_EXCHANGED = "the names of two outputs are exchanged"
    OUTPUT_DIM = "an output is put together along another dim"
    UPDATE_OPERANDS_EXCHANGED = "two updates exchange an operand"
    UPDATE_WRITES_NOTHING_NEW = "an update writes back what it read"
    UPDATE_REMOVED = "a task that updates state is removed"
    STATES_EXCHANGED = "two states of one shape exchange their names"
    STATE_DOUBLED = "a state takes the name of another of its shape"
    STATE_KIND = "a state is said to be of another kind"
    STATE_COPY = "a working copy is said to be of another parameter"
    STATE_IN_PLACE = "a value that is made once per step becomes state, which is read before it is written"
    TASK_KIND = "a task is said to be of another kind"
    TARGET = "an op has another target"
    OPERANDS_EXCHANGED = "two operands of an op are exchanged"
    OPERAND_REDIRECTED = "an op reads another value"
    LITERAL = "a literal of an op is another"
    FLAG = "a flag of an op is turned over"
    DTYPE_ARGUMENT = "an op computes in another format"
    OP_REMOVED = "an op is removed, its readers take its operand"
    RESULTS_EXCHANGED = "the results of an op exchange their names"
    OPS_REORDERED = "two neighbouring ops that do not read each other are exchanged"
    RENAMED = "a value inside of a fragment has another name"
    DRAW = "a random op draws another number"
    LOCAL_BOXING = "a boxing step inside of a fragment goes elsewhere"
    DATA_LAYOUT = "data is said to lie in another layout"
    STATE_LAYOUT = "state is said to lie in another layout"
    DATA_TYPE = "data is said to have another type"
    RANKS_PERMUTED = "the ranks of a placement stand in another order"
    ACCUMULATION_COUNT = "a port fills a block with another number of acts"
    MICRO_BATCHES = "the step has another number of micro-batches"
    BATCH_INPUTS_EXCHANGED = "two batch inputs exchange their values"
    BATCH_DIM = "micro-batches slice another dim of a batch input"
    SOURCE_LAYOUT = "a source writes a batch input in another layout than its reader takes"
    STREAM_ORDER = "two acts of a stream's order are exchanged"
    QUOTA = "a Regst has another number of blocks"
    PRIORITY = "a task has another priority"
    CONTROL_REMOVED = "a control Regst is removed"
    COUNTED_WORK = "the work of a fragment is counted otherwise"


class Reason(Enum):
    """Why an edited Plan may compute the same numbers."""

    ORDER = "only when acts happen is changed: orders, quotas and priorities move no number"
    COMMUTATIVE = "the op gives the same with its operands exchanged"
    NAME = "only a name is changed, wherever it stands"
    COUNTED = "only what is said about work is changed"
    RANKS = "all ranks of a placement have the same program, so which of them has which part is free"
    ONE_RANK = "the mesh axis has one rank"
    SAME_VALUE = "the two values are equal: copies of one, or one number in every element"
    UNREAD = "nothing that leaves the step reads the value"
    DECLARED = "the reference performer holds values as they come; what is said of their type serves allocation alone"
    BOTH_DRAWN = "the same on two draws of state and data; no law is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """words: what was changed in which task, op or Regst.   reason: why the numbers must stay, where the kind of the edit tells."""

    kind: EditKind
    words: str
    plan: Plan
    reason: Reason | None = None


Editor = Callable[[Plan, Random], Edit | None]
"""An edit of its kind at random; None where the draw gives none."""

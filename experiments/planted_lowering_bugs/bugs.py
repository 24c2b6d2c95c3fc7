"""The bugs: each replaces a piece of text, which stands once in its file, by another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BUGS", "Bug"]


@dataclass(frozen=True, slots=True)
class Bug:
    """module: below the repository.   breaks: what the lowering does wrong then."""

    module: str
    old: str
    new: str
    breaks: str

    def planted(self, source: str) -> str:
        """The module's text with the bug in it.

        Raises:
            ValueError: the old text does not stand there once; the lowering has changed since the bug was written down.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.module}: {self.old!r} stands there {source.count(self.old)} times, not once; write the bug anew")
        return source.replace(self.old, self.new)


_FRAGMENTS, _DRAFTS, _REGSTS = "planner/lower/fragments.py", "planner/lower/drafts.py", "planner/lower/regsts.py"
_MOVES, _BUILD, _INSTANCES = "planner/lower/moves.py", "planner/lower/build.py", "planner/lower/instances.py"
_NAMES = "planner/lower/names.py"

BUGS: Sequence[Bug] = (
    # Fragments
    Bug(
        _FRAGMENTS,
        "src, dst = step.src[step.axis], step.dst[step.axis]",
        "src, dst = step.src[0], step.dst[0]",
        "a local step takes the layouts of the mesh's first axis",
    ),
    Bug(
        _FRAGMENTS,
        "(Ref(source), str(src), str(dst), step.axis)",
        "(Ref(source), str(src), str(dst), 0)",
        "a local step goes along the mesh's first axis",
    ),
    Bug(
        _FRAGMENTS,
        "(Ref(source), str(src), str(dst), step.axis)",
        "(Ref(source), str(src), str(src), step.axis)",
        "a local step leaves its value as it is",
    ),
    Bug(
        _FRAGMENTS,
        "step.src.replace(step.axis, B).local_shape(logical.shape, drafts.mesh)[src.dim]",
        "logical.shape[src.dim] + 1",
        "a part is padded to one more than the whole",
    ),
    Bug(
        _FRAGMENTS,
        "names[value] = present[value, wanted]",
        "names[value] = next(name for (v, _), name in present.items() if v == value)",
        "an op takes an operand in the layout in which its fragment had it first",
    ),
    Bug(
        _FRAGMENTS,
        "ops.append(drafts.assignment.ops[op.id].op.renamed(names))",
        "ops.append(op.renamed(names))",
        "literals of sizes stay those of the whole tensor",
    ),
    Bug(
        _FRAGMENTS,
        "name = name_in_layout(value, last.sbp) if drafts.is_delivered(value) else last.name",
        "name = value",
        "a value that is read in two layouts has one name",
    ),
    Bug(
        _FRAGMENTS,
        "if not (inside and last is native):",
        "if not inside:",
        "a fragment reads a value that it makes without the communication that comes after",
    ),
    Bug(
        _FRAGMENTS,
        "last = drafts.follow(native, way.moves, scope)",
        "last = drafts.follow(native, way.moves[:1], scope)",
        "an operand comes after its first move",
    ),
    Bug(
        _FRAGMENTS,
        "last = drafts.follow(native, way.moves, scope)",
        "last = native",
        "an operand comes without any move",
    ),
    Bug(
        _FRAGMENTS,
        "    for step in way.local:\n        if (value, step.dst)",
        "    for step in ():\n        if (value, step.dst)",
        "an operand is not cut where its reader needs a part",
    ),
    Bug(
        _FRAGMENTS,
        "for step in way.local:  # a cut after a collective is a task of its own, since no fragment follows",
        "for step in ():",
        "a new state is not cut after its collective",
    ),
    Bug(
        _FRAGMENTS,
        "            for step in way.local:\n                last = Instance(",
        "            for step in ():\n                last = Instance(",
        "a new state is not cut in the fragment that makes it",
    ),
    Bug(
        _FRAGMENTS,
        "        drafts.stored[last] = old",
        "        drafts.stored[native] = old",
        "a new state is stored as it was made, without the moves to its layout",
    ),
    Bug(
        _FRAGMENTS,
        "for old, new in graph.updates.items():",
        "for old, new in zip(graph.updates, (*list(graph.updates.values())[2:], *list(graph.updates.values())[:2]), strict=True):",
        "each state is replaced by the new value of another one",
    ),
    # Drafts
    Bug(
        _DRAFTS,
        "sbp = self.assignment.ops[op.id].outputs[op.outputs.index(value)]",
        "sbp = NdSbp.broadcast(len(self.mesh))",
        "every value is said to lie whole on every rank",
    ),
    Bug(
        _DRAFTS,
        "sbp = self.assignment.ops[op.id].outputs[op.outputs.index(value)]",
        "sbp = self.assignment.ops[op.id].outputs[0]",
        "all results of an op are said to lie as its first one",
    ),
    Bug(
        _DRAFTS,
        "stored = self.instance(value, self.staged.state_stage(value), self.assignment.states[value])",
        "stored = self.instance(value, self.staged.state_stage(value), NdSbp.broadcast(len(self.mesh)))",
        "every state lies whole on every rank",
    ),
    Bug(
        _DRAFTS,
        "arrival(self.assignment.routes.get((value, stage, wanted), ()))",
        "arrival(self.assignment.routes.get((value, stage, wanted), ())[1:])",
        "the first move of every route is left out",
    ),
    Bug(
        _DRAFTS,
        "arrival(self.assignment.routes.get((value, stage, wanted), ()))",
        "arrival(self.assignment.routes.get((value, stage, wanted), ())[:-1])",
        "the last move of every route is left out",
    ),
    Bug(
        _DRAFTS,
        "arrival(self.assignment.routes.get((value, stage, wanted), ()))",
        "arrival(next((r for (v, s, _), r in self.assignment.routes.items() if (v, s) == (value, stage)), ()))",
        "every reader on a stage gets the route of the first one",
    ),
    Bug(
        _DRAFTS,
        "for move in moves:",
        "for move in reversed(moves):",
        "the moves of a route are taken in the reverse order",
    ),
    Bug(
        _DRAFTS,
        "key = (native.value, stage, move.dst, scope)",
        "key = (native.value, stage, native.sbp, scope)",
        "what a move makes is looked up by the layout that it starts from",
    ),
    Bug(
        _DRAFTS,
        "return self.assignment.ops[op.id].inputs[op.inputs.index(value)]",
        "return self.assignment.ops[op.id].inputs[0]",
        "every operand is brought in the layout of the first one",
    ),
    Bug(
        _DRAFTS,
        "return self.instance(value, stage, self.assignment.pinned.get(value, wanted))",
        "return self.instance(value, stage, NdSbp.broadcast(len(self.mesh)))",
        "a batch input comes whole to every rank",
    ),
    Bug(
        _DRAFTS,
        "return op is not None and op.role is Role.ACCUMULATE and self.micro_batches > 1",
        "return op is not None and op.role is Role.BACKWARD and self.micro_batches > 1",
        "what the backward pass hands on is accumulated, gradients are not",
    ),
    Bug(
        _DRAFTS,
        "return op.role in (Role.ACCUMULATE, Role.UPDATE)",
        "return op.role is not Role.UPDATE",
        "what is made per micro-batch moves once per step",
    ),
    # Regsts
    Bug(
        _REGSTS,
        "access[instance] = Access(name=tensor.name, regst=regst_id, index=index)",
        "access[instance] = Access(name=tensor.name, regst=regst_id, index=0)",
        "every tensor of a Regst is its first one",
    ),
    Bug(
        _REGSTS,
        "access[instance] = Access(name=tensor.name, regst=regst_id, index=index)",
        "access[instance] = Access(name=tensor.name, regst=regst_id, index=len(members) - 1 - index)",
        "the tensors of a Regst are counted from its end",
    ),
    Bug(
        _REGSTS,
        "enumerate(zip(members, tensors, strict=True))",
        "enumerate(zip(reversed(members), tensors, strict=True))",
        "the tensors of a Regst change their places",
    ),
    Bug(
        _REGSTS,
        "shape=logical.shape, dtype=logical.dtype, sbp=instance.sbp)",
        "shape=logical.shape, dtype=logical.dtype, sbp=instance.root.sbp)",
        "what a move makes is said to lie as its producer made it",
    ),
    Bug(
        _REGSTS,
        "access[instance] = replace(access[drafts.native(state)], name=instance.name)",
        "access[instance] = replace(access[drafts.native(next(reversed(drafts.assignment.states)))], name=instance.name)",
        "every new state goes where the last one lies",
    ),
    Bug(
        _REGSTS,
        "return self._drafts.micro_batches if accumulated else 1",
        "return 1",
        "gradients of micro-batches are not added up",
    ),
    Bug(
        _REGSTS,
        "accumulated = made.regst.kind is RegstKind.DATA and draft.kind.is_compute and self._drafts.is_accumulated(made.value)",
        "accumulated = made.regst.kind is RegstKind.DATA and draft.kind.is_compute and draft.acts > 1",
        "all that a task makes per micro-batch is added up",
    ),
    Bug(
        _REGSTS,
        "return 1 if read.regst.producer is None else draft.acts // self.blocks_per_step(read)",
        "return 1",
        "a block is given back after one act, whatever its rate",
    ),
    # Moves
    Bug(
        _MOVES,
        'last = drafts.follow(native, way.moves)\n    drafts.tasks["fetch"]',
        'last = native\n    drafts.tasks["fetch"]',
        "the loss is fetched before it is reduced",
    ),
    Bug(
        _MOVES,
        "native, way = drafts.arrival(loss, stage, NdSbp.broadcast(len(drafts.mesh)))",
        "native, way = drafts.arrival(drafts.staged.graph.loss, stage, NdSbp.broadcast(len(drafts.mesh)))",
        "the loss of a micro-batch is fetched, not their mean",
    ),
    Bug(
        _MOVES,
        "key = (made_by, root.stage, instance.moves, per_step,",
        "key = (made_by, root.stage, len(instance.moves), per_step,",
        "a bucket holds values that move in different ways",
    ),
    Bug(
        _MOVES,
        "reads = {i.parent: i.parent.name for i in members if i.parent is not None}",
        "reads = {i.parent: i.parent.name for i in reversed(members) if i.parent is not None}",
        "a bucket writes its values in the reverse order",
    ),
    Bug(
        _MOVES,
        "kind, body = TaskKind.BOXING, move",
        "kind, body = TaskKind.BOXING, Boxing(src=move.dst, dst=move.dst, axis=move.axis, collective=Collective.LOCAL)",
        "no boxing step does anything",
    ),
    Bug(
        _MOVES,
        "kind, body = TaskKind.BOXING, move",
        "kind, body = TaskKind.BOXING, Boxing(src=move.src, dst=move.dst, axis=0, collective=move.collective)",
        "every boxing step goes along the mesh's first axis",
    ),
    Bug(
        _MOVES,
        "assert move is not None\n",
        "move = members[-1].parent.via or move\n",
        "a task takes the step before its own",
    ),
    Bug(
        _MOVES,
        "acts = 1 if drafts.per_step(members[0].value) and members[0].scope is None else drafts.micro_batches",
        "acts = drafts.micro_batches",
        "gradients are reduced once per micro-batch",
    ),
    Bug(
        _MOVES,
        "wanted[kind, instance.stage][instance] = name_in_layout(instance.value, instance.sbp)",
        "wanted[kind, instance.stage][instance] = name_in_layout(next(v for v in drafts.inputs if drafts.is_fed(v)), instance.sbp)",
        "a source gives the first input for every one",
    ),
    Bug(
        _MOVES,
        "natives = dict.fromkeys(drafts.native(output.value) for output in drafts.staged.graph.outputs)",
        "natives = dict.fromkeys(drafts.native(output.value) for output in drafts.staged.graph.outputs[:1])",
        "the first output alone is handed over",
    ),
    # Building
    Bug(
        _BUILD,
        "reads = [_named(access[i], name) for i, name in draft.reads.items()]",
        "reads = [replace(access[i.root], name=name) for i, name in draft.reads.items()]",
        "every task reads what the producer made, before all moves",
    ),
    Bug(
        _BUILD,
        "reads = [_named(access[i], name) for i, name in draft.reads.items()]",
        "reads = [_named(access[i], name) for i, name in zip(draft.reads, reversed(draft.reads.values()), strict=True)]",
        "what a task reads has the names of other things that it reads",
    ),
    Bug(
        _BUILD,
        "writes = [_named(access[i], name) for i, name in draft.makes.items()]",
        "writes = [_named(access[i], name) for i, name in zip(draft.makes, reversed(draft.makes.values()), strict=True)]",
        "sources write their inputs to each other's places",
    ),
    Bug(
        _BUILD,
        "writes = [_named(where, instance.name) for instance, where in made]",
        'writes = [replace(where, name=instance.name.partition("@")[0]) for instance, where in made]',
        "a fragment writes values as they were before their cut",
    ),
    Bug(
        _BUILD,
        "writes = [_named(where, instance.name) for instance, where in made]",
        "writes = [replace(where, name=other.name) for (_, where), (other, _) in zip(made, reversed(made), strict=True)]",
        "a fragment writes its results to each other's places",
    ),
    Bug(
        _BUILD,
        "gradients = {name: access[drafts.native(value)] for name, value in staged.graph.gradients.items()}",
        "gradients = {name: access[drafts.native(value)] for name, value in "
        "zip(staged.graph.gradients, reversed(staged.graph.gradients.values()), strict=True)}",
        "a user is given other parameters' gradients",
    ),
    Bug(
        _BUILD,
        "State(name=i.name, kind=i.kind, regst=a.regst, index=a.index,",
        "State(name=i.name, kind=i.kind, regst=a.regst, index=0,",
        "every state is said to be the first tensor of its Regst",
    ),
    Bug(
        _BUILD,
        "for a in accesses.get(i.value, [])",
        "for a in accesses.get(i.value, [])[:1]",
        "a state that lies on several stages is given to the first one",
    ),
    Bug(
        _BUILD,
        "copy_of=None if i.copy_of is None else names[i.copy_of]",
        "copy_of=None if i.copy_of is None else next(iter(names.values()))",
        "every working copy is one of the first parameter",
    ),
    Bug(
        _BUILD,
        "BatchInput(name=i.name, value=i.value, batch_dim=i.batch_dim, whole_of=i.whole_of)",
        "BatchInput(name=i.name, value=i.value, batch_dim=1 if i.batch_dim == 0 else i.batch_dim, whole_of=i.whole_of)",
        "micro-batches slice another dim",
    ),
    Bug(
        _BUILD,
        "Output(name=output.name, regst=a.regst, index=a.index, batch_dim=output.batch_dim)",
        "Output(name=output.name, regst=a.regst, index=a.index, batch_dim=1 if output.batch_dim == 0 else output.batch_dim)",
        "outputs of micro-batches are put together along another dim",
    ),
    Bug(
        _BUILD,
        "ops=tuple(ops),",
        'ops=tuple(replace(op, target="aten.add.Tensor") if op.target == "aten.sub.Tensor" else op for op in ops),',
        "differences become sums",
    ),
    Bug(
        _BUILD,
        "ops=tuple(ops),",
        'ops=tuple(op if op.draw is None else replace(op, draw=op.draw + (op.role.value == "backward")) for op in ops),',
        "the backward pass draws another mask than the forward pass",
    ),
    # Instances
    Bug(
        _INSTANCES,
        "return self.value if self.parent is None else name_in_layout(self.value, self.sbp)",
        "return self.value",
        "a value has one name in all layouts",
    ),
    Bug(
        _INSTANCES,
        "return self if self.parent is None else self.parent.root",
        "return self if self.parent is None else self.parent",
        "after two moves the native instance is the one before the last",
    ),
    Bug(
        _INSTANCES,
        "isinstance(last := route[cut - 1], Boxing) and last.collective is Collective.LOCAL:",
        "isinstance(last := route[cut - 1], Boxing):",
        "collectives are performed inside of the reader's fragment",
    ),
    Bug(
        _INSTANCES,
        "return Arrival(tuple(route[:cut]), ",
        "return Arrival(tuple(route[: max(0, cut - 1)]), ",
        "the last collective of a route is left out",
    ),
    Bug(
        _NAMES,
        'return f"{value}{_LAYOUT}{sbp}"',
        'return f"{value}{_LAYOUT}{sbp.entries[-1]}"',
        "names of layouts that differ on the first axis are equal",
    ),
)

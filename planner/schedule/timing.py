"""The time of a schedule, by the max-plus recurrence over the orders of devices and the edges between stages.

    start(a) = max( end of the act before a on its device,
                    end of every act that a needs + T_comm if that act is on another device )            (1)  -> act_times()
    span of a device = end of its last act - start of its first                                          (2)  -> spans_s()
    bubble rate = (cost - work) / cost, cost = the longest span, work = what that device computes        (3)  -> bubble_rate()

Communication occupies no device; it only delays.  The span in (3) is from a device's own first act to its own last act: if the optimizer step
needs no global barrier, devices need not begin or end a step together (arXiv:2401.10241, section 5.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.ir.errors import DeadLock, Unsupported
from planner.schedule.actions import Action, Pass, PipelineSchedule

__all__ = ["PassTimes", "act_times", "bubble_rate", "makespan_s", "needs", "spans_of", "spans_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Seconds of one micro-batch's passes, per stage: T_F, T_B (input part), T_W (weight part); and T_comm between neighbours.

    A backward pass in one act takes T_B + T_W.
    """

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    comm_s: float = 0.0

    @classmethod
    def even(cls, num_stages: int, forward_s: float, backward_input_s: float, backward_weight_s: float, comm_s: float = 0.0) -> PassTimes:
        """The same times on every stage."""
        every = (1,) * num_stages
        return cls(
            forward_s=tuple(forward_s for _ in every),
            backward_input_s=tuple(backward_input_s for _ in every),
            backward_weight_s=tuple(backward_weight_s for _ in every),
            comm_s=comm_s,
        )

    def of(self, action: Action) -> float:
        """Seconds of one act."""
        stage = action.stage
        match action.kind:
            case Pass.FORWARD:
                return self.forward_s[stage]
            case Pass.BACKWARD_INPUT:
                return self.backward_input_s[stage]
            case Pass.BACKWARD_WEIGHT:
                return self.backward_weight_s[stage]
            case Pass.BACKWARD:
                return self.backward_input_s[stage] + self.backward_weight_s[stage]


def needs(action: Action, num_stages: int, backward_of: Mapping[tuple[int, int], Action]) -> tuple[Action, ...]:
    """The acts that must have ended before an act because of data edges, without the order of its device.

    Args:
        backward_of: (stage, micro-batch) -> the act that makes the gradient for the stage before (B or I).
    """
    stage, k = action.stage, action.micro_batch
    if action.kind is Pass.FORWARD:
        return (Action(stage - 1, Pass.FORWARD, k),) if stage else ()
    if action.kind is Pass.BACKWARD_WEIGHT:
        return (Action(stage, Pass.BACKWARD_INPUT, k),)
    own = (Action(stage, Pass.FORWARD, k),)
    return own if stage == num_stages - 1 else (*own, backward_of[stage + 1, k])


def act_times(schedule: PipelineSchedule, times: PassTimes) -> Mapping[Action, tuple[float, float]]:
    """(1): act -> (start, end) in seconds; the first device begins at 0.

    Raises:
        DeadLock: the orders of devices wait for each other in a cycle.
        Unsupported: an act needs one that the schedule does not have, or ``times`` has another number of stages.
    """
    if len(times.forward_s) != schedule.num_stages:
        raise Unsupported(f"times of {len(times.forward_s)} stages for a schedule of {schedule.num_stages} stages; give one per stage")
    backward_of = {(a.stage, a.micro_batch): a for a in schedule.actions() if a.kind.sends_gradient}
    done: dict[Action, tuple[float, float]] = {}
    waiting: dict[Action, list[int]] = defaultdict(list)
    position, free_s = [0] * schedule.num_devices, [0.0] * schedule.num_devices
    awake = list(range(schedule.num_devices))
    while awake:
        device = awake.pop()
        order = schedule.orders[device]
        while position[device] < len(order):
            action = order[position[device]]
            start_s = free_s[device]
            missing: Action | None = None
            try:
                edges = needs(action, schedule.num_stages, backward_of)
            except KeyError:
                raise Unsupported(f"{action} needs the gradient of stage {action.stage + 1}, which no act makes; add it") from None
            for source in edges:
                if source not in done:
                    missing = source
                    break
                away = schedule.device_of[source.stage] != device
                start_s = max(start_s, done[source][1] + times.comm_s * away)
            if missing is not None:
                waiting[missing].append(device)
                break
            free_s[device] = start_s + times.of(action)
            done[action] = (start_s, free_s[device])
            position[device] += 1
            awake += waiting.pop(action, ())
    if waiting:
        stuck = [f"device {d} waits with {schedule.orders[d][position[d]]} for {source}" for source, ds in waiting.items() for d in ds]
        raise DeadLock(f"schedule {schedule.name} is not live: {'; '.join(stuck)}; put each act after what it needs")
    return done


def spans_s(schedule: PipelineSchedule, times: PassTimes) -> tuple[float, ...]:
    """(2): per device, seconds from the start of its first act to the end of its last."""
    return spans_of(schedule, act_times(schedule, times))


def spans_of(schedule: PipelineSchedule, intervals: Mapping[Action, tuple[float, float]]) -> tuple[float, ...]:
    """(2), where ``act_times`` is known."""
    return tuple(intervals[order[-1]][1] - intervals[order[0]][0] for order in schedule.orders)


def makespan_s(schedule: PipelineSchedule, times: PassTimes) -> float:
    """Seconds from the first act of all devices to the last: the time of a step that ends with a barrier."""
    return max(end for _, end in act_times(schedule, times).values())


def bubble_rate(schedule: PipelineSchedule, times: PassTimes) -> float:
    """(3): the share of the longest span in which its device computes nothing.

    >>> from planner.schedule.classic import one_f_one_b
    >>> round(bubble_rate(one_f_one_b(4, 12), PassTimes.even(4, 1.0, 1.0, 1.0)), 4)
    0.2
    """
    spans = spans_s(schedule, times)
    device = max(range(schedule.num_devices), key=spans.__getitem__)
    return 1.0 - work_s(schedule.orders[device], times) / spans[device]


def work_s(order: Sequence[Action], times: PassTimes) -> float:
    """Seconds that a device computes in a step."""
    return sum(times.of(action) for action in order)

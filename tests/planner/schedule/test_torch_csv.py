"""torch's own parser reads what we write; we read what torch writes, and make the same orders for the same names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from planner.ir.errors import InvalidFile, InvalidPlan, Unsupported
from planner.schedule import PipelineSchedule, check_schedule, from_torch_csv
from planner.schedule.classic import gpipe, interleaved, one_f_one_b
from planner.schedule.torch_csv import to_torch_csv
from planner.schedule.zero_bubble import zb_h1, zb_h2

OURS = {
    "gpipe": gpipe(4, 8),
    "1f1b": one_f_one_b(4, 8),
    "interleaved": interleaved(4, 8, 2),
    "zb-h1": zb_h1(4, 8),
    "zb-h2": zb_h2(4, 8),
}


class _Reader(torch_schedules.PipelineScheduleMulti):
    """torch's parser and its validation, without processes."""

    def __init__(self, schedule: PipelineSchedule) -> None:
        self.pipeline_order = {}
        self.pp_group_size = schedule.num_devices
        self._num_stages = schedule.num_stages
        self._n_microbatches = schedule.micro_batches
        self._stages = []


def _torch_schedule(name: str, devices: int, stages_per_device: int, micro_batches: int) -> object:
    def stage(index: int) -> SimpleNamespace:
        count = devices * stages_per_device
        return SimpleNamespace(
            group_size=devices,
            group_rank=0,
            num_stages=count,
            stage_index=index,
            has_backward=True,
            is_first=index == 0,
            is_last=index == count - 1,
            stage_index_to_group_rank={},
            group=None,
            submod=None,
        )

    kind = getattr(torch_schedules, name)
    loss = lambda output, target: output  # noqa: E731
    if issubclass(kind, torch_schedules.PipelineScheduleSingle):
        return kind(stage(0), micro_batches, loss_fn=loss)
    return kind([stage(k * devices) for k in range(stages_per_device)], micro_batches, loss_fn=loss)


def _written_by_torch(schedule: object, file: Path) -> str:
    """In the compute-only form; the single-stage schedules have an order but no writer of their own."""
    order = schedule.pipeline_order if hasattr(schedule, "pipeline_order") else schedule._get_pipeline_order()  # type: ignore[attr-defined]
    writer = SimpleNamespace(pipeline_order=order)
    torch_schedules.PipelineScheduleMulti._dump_csv(writer, str(file))  # type: ignore[arg-type]
    return file.read_text()


@pytest.mark.parametrize("name", OURS)
def test_torchs_parser_reads_the_actions_that_we_write(name: str, tmp_path: Path) -> None:
    schedule, file = OURS[name], tmp_path / "schedule.csv"
    file.write_text(to_torch_csv(schedule))
    reader = _Reader(schedule)
    reader._load_csv(str(file))
    assert [[str(a) for a in reader.pipeline_order[d]] for d in range(4)] == [[str(a) for a in order] for order in schedule.orders]
    assert tuple(reader.stage_index_to_group_rank[s] for s in range(schedule.num_stages)) == schedule.device_of


@pytest.mark.parametrize("name", OURS)
def test_what_we_write_we_read_back(name: str) -> None:
    assert from_torch_csv(to_torch_csv(OURS[name]), OURS[name].name) == OURS[name]


@pytest.mark.parametrize(
    ("torchs", "stages_per_device", "ours"),
    [
        ("ScheduleGPipe", 1, gpipe(4, 8)),
        ("ScheduleInterleaved1F1B", 2, interleaved(4, 8, 2)),
        ("ScheduleInterleaved1F1B", 3, interleaved(4, 8, 3)),
        ("ScheduleInterleavedZeroBubble", 1, zb_h1(4, 8)),
    ],
)
def test_torchs_schedule_of_that_name_is_ours(torchs: str, stages_per_device: int, ours: PipelineSchedule, tmp_path: Path) -> None:
    text = _written_by_torch(_torch_schedule(torchs, 4, stages_per_device, 8), tmp_path / "torch.csv")
    assert from_torch_csv(text).orders == ours.orders


def test_torchs_1f1b_is_ours_but_for_the_last_rank_which_we_refuse(tmp_path: Path) -> None:
    """torch 2.13 counts the last rank's forward passes from 1 (no warm-up pass sets the counter), so its file lacks 3F0 and names a 3F8.

    Its runtime does not perform that list, so training is right; who reads the file must notice.
    """
    read = from_torch_csv(_written_by_torch(_torch_schedule("Schedule1F1B", 4, 1, 8), tmp_path / "torch.csv"))
    ours = one_f_one_b(4, 8)
    assert read.orders[:3] == ours.orders[:3]
    if read.orders[3] != ours.orders[3]:
        assert [str(action) for action in read.orders[3]][:2] == ["3F1", "3B0"]
        with pytest.raises(InvalidPlan, match="of micro-batch 8"):
            check_schedule(read)


@pytest.mark.parametrize("torchs", ["ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble"])
def test_torchs_split_backward_schedules_are_read_and_legal(torchs: str, tmp_path: Path) -> None:
    text = _written_by_torch(_torch_schedule(torchs, 4, 2, 8), tmp_path / "torch.csv")
    schedule = from_torch_csv(text, torchs)
    check_schedule(schedule)
    assert schedule.splits_backward and schedule.num_stages == 8


def test_acts_that_only_move_data_are_left_out() -> None:
    assert str(from_torch_csv("0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0I0,0W0,0REDUCE_GRAD\r\n")) == "0F0 0I0 0W0"


def test_overlapped_passes_are_refused() -> None:
    with pytest.raises(Unsupported, match="two passes as one act"):
        from_torch_csv("0F0,(0F1;0B0)OVERLAP_F_B\r\n")


@pytest.mark.parametrize("text", ["0X0\r\n", "F0\r\n", "\r\n", ""])
def test_a_cell_that_is_no_act_is_refused(text: str) -> None:
    with pytest.raises(InvalidFile):
        from_torch_csv(text)

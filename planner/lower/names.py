"""Names inside a Plan, of placements, streams and values in a layout: this module makes them, and reads those in a Plan's file.

s1                  the placement of stage 1
s1.compute          its compute stream;  s1.host, s1.axis0 (collectives along mesh axis 0), s1.link.s2 (transfers to stage 2)
weight@S(0),B       the value ``weight`` in the layout S(0),B, where that is not the layout in which its producer makes it
"""

from __future__ import annotations

from planner.ir.plan import Stream, StreamKind
from planner.ir.sbp import NdSbp

__all__ = ["axis_stream", "compute_stream", "host_stream", "layout_of", "link_stream", "name_in_layout", "placement_id", "value_of"]

_LAYOUT = "@"


def placement_id(stage: int) -> str:
    """The id of the placement on which a stage lies."""
    return f"s{stage}"


def compute_stream(stage: int) -> Stream:
    """The stream of the compute tasks of a stage."""
    return _stream(stage, "compute", StreamKind.COMPUTE)


def host_stream(stage: int) -> Stream:
    """The stream of the tasks that the host's processor performs for a stage."""
    return _stream(stage, "host", StreamKind.HOST)


def axis_stream(stage: int, axis: int) -> Stream:
    """The stream of the collectives of a stage along one mesh axis."""
    return _stream(stage, f"axis{axis}", StreamKind.COLLECTIVE)


def link_stream(src_stage: int, dst_stage: int) -> Stream:
    """The stream of the transfers from one stage to another, which the sender's ranks perform."""
    return _stream(src_stage, f"link.{placement_id(dst_stage)}", StreamKind.LINK)


def _stream(stage: int, what: str, kind: StreamKind) -> Stream:
    placement = placement_id(stage)
    return Stream(id=f"{placement}.{what}", kind=kind, placement=placement)


def name_in_layout(value: str, sbp: NdSbp) -> str:
    """The name of a value in another layout than its producer's.

    >>> name_in_layout("mm_3", NdSbp.parse("S(0)"))
    'mm_3@S(0)'
    """
    return f"{value}{_LAYOUT}{sbp}"


def value_of(name: str) -> str:
    """The value of a name in a Plan, without its layout.

    >>> value_of("mm_3@S(0)"), value_of("mm_3")
    ('mm_3', 'mm_3')
    """
    value, mark, _ = name.rpartition(_LAYOUT)
    return value if mark else name


def layout_of(name: str) -> NdSbp | None:
    """The layout that a name of a Plan says; None: the one in which the value is made.  What lies in a Regst has its layout there.

    >>> str(layout_of("mm_3@S(0),B")), layout_of("mm_3")
    ('S(0),B', None)
    """
    _, mark, layout = name.rpartition(_LAYOUT)
    return NdSbp.parse(layout) if mark else None

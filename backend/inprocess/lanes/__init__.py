"""Acts on devices with lanes: what each must wait for, those in flight, and their ends, which are seen later."""

from backend.inprocess.lanes.acts import LaneActs
from backend.inprocess.lanes.flights import LateError

__all__ = ["LaneActs", "LateError"]

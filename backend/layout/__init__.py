"""How a logical tensor lies on a mesh: its parts, and the boxing steps that need no communication."""

from backend.layout.sharding import join_parts, slice_part
from backend.layout.views import box_view

__all__ = ["box_view", "join_parts", "slice_part"]

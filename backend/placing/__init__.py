"""Where the ranks of a run lie: on which device, in whose memory, and what carries the bytes of their collectives."""

from backend.placing.arenas import by_memory, device_arena, lies_on_host
from backend.placing.owners import check_room, owned_bytes

__all__ = ["by_memory", "check_room", "device_arena", "lies_on_host", "owned_bytes"]

"""Streams of a GPU that nobody else has.

torch keeps 32 streams per device and priority and hands them out round robin: its 33rd is its first once more, and NCCL's own come from the
same 32.  Two lanes on one stream wait for each other, and a graph captured on it would record foreign kernels.  So each lane has a stream that
the CUDA driver made for it, and which goes back to this pool when its device is closed.

    lane --take--> [pool: free | cuStreamCreate]          device closed --give_back--> [pool]

They are non-blocking: work on the legacy default stream neither waits for them nor ends a capture on one of them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from planner.ir.errors import Unsupported

__all__ = ["StreamPool", "made_by_driver"]

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING [CUDA driver API, CUstream_flags]."""

MOST_STREAMS = 1024
"""A process that takes more has a loop that never gives any back."""


def made_by_driver() -> int:
    """A new stream in the current context, as the number by which torch.cuda.ExternalStream knows it.

    Raises:
        Unsupported: no driver, or it refuses.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unsupported(f"the CUDA driver cannot be loaded ({error}); install it, or use --device cpu") from error
    stream = ctypes.c_void_p()
    code = int(driver.cuStreamCreate(ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING)))
    if code or not stream.value:
        raise Unsupported(f"the CUDA driver refused another stream (cuStreamCreate gave {code}); use fewer ranks per GPU")
    return stream.value


class StreamPool:
    """The streams of one GPU in this process.

    Args:
        make: makes a stream; returns its number, which no other living stream has.
    """

    def __init__(self, make: Callable[[], int] = made_by_driver) -> None:
        self._make = make
        self._free: list[int] = []
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int:
        """A stream that nobody has until it is given back.

        Raises:
            Unsupported: too many are taken, or the driver refuses.
        """
        with self._lock:
            if len(self._taken) >= MOST_STREAMS:
                raise Unsupported(f"{MOST_STREAMS} streams of one GPU are taken; close devices that are no longer used")
            stream = self._free.pop() if self._free else self._make()
            assert stream not in self._taken
            self._taken.add(stream)
            return stream

    def give_back(self, stream: int) -> None:
        """All work on it is done."""
        with self._lock:
            self._taken.discard(stream)
            self._free.append(stream)

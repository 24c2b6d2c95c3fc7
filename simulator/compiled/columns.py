"""Types of the compiled engine's columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Ints", "Records"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Records = NDArray[np.void]

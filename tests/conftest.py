"""For every test: fixed seeds, one thread per process, and no deadline on a machine that others use too."""

from __future__ import annotations

import os
import random

# Before torch is imported: it reads them once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

settings.register_profile("regista", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("regista")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)
    torch.manual_seed(0)

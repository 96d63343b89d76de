"""Random streams that depend on numbers alone, equal on all ranks and after every restart."""

from __future__ import annotations

import numpy as np
import torch


def seeded(*numbers: int) -> torch.Generator:
    """Return a generator whose stream depends on all the numbers."""
    state = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) & (2**63 - 1)
    return torch.Generator().manual_seed(state)

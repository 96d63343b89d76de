"""Seeded splits into training and validation rows."""

from __future__ import annotations

from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.int64]]


def random_split(targets: np.ndarray[Any, Any], *, fraction: float, seed: int, stratified: bool) -> tuple[Rows, Rows]:
    """Split rows at random, by class where asked.

    Args:
        targets: [N] class ids, or any values if not `stratified`.
        fraction: Share of the rows that are held out, in (0, 1).
        seed: Seed of the split.
        stratified: Keep the share of each class in both parts.

    Returns:
        (training rows, held-out rows), both shuffled, disjoint, together all rows, neither empty.
    """
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(targets))
    if stratified:
        # Sorting the shuffled rows by class and taking each k-th one holds out every class in proportion.
        by_class = shuffled[np.argsort(targets[shuffled], kind="stable")]
        marks = np.floor((np.arange(len(targets)) + 1) * fraction) > np.floor(np.arange(len(targets)) * fraction)
        held_out = by_class[marks] if marks.any() else by_class[:1]
    else:
        held_out = shuffled[: max(1, round(fraction * len(targets)))]
    held_out = held_out[: len(targets) - 1]
    is_held_out = np.zeros(len(targets), dtype=bool)
    is_held_out[held_out] = True
    return shuffled[~is_held_out[shuffled]], shuffled[is_held_out[shuffled]]

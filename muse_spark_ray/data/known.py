"""What a data set tells of its samples before they are read, and the pairs that loaders yield."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from muse_spark_ray.errors import DataError


def known_targets(data: Any) -> Tensor | None:
    """Return the targets of a map-style data set where it holds them all.

    Args:
        data: A TensorDataset of two tensors, a Subset, or a data set with an attribute `targets` or `labels`.

    Returns:
        [N, ...], or None.
    """
    if isinstance(data, Subset):
        whole = known_targets(data.dataset)
        return None if whole is None else whole[torch.as_tensor(data.indices)]
    if isinstance(data, TensorDataset):
        return data.tensors[1] if len(data.tensors) == 2 else None
    for name in ("targets", "labels"):
        held = getattr(data, name, None)
        if held is None or not hasattr(held, "__len__") or len(held) != len(data):
            continue
        try:
            return torch.as_tensor(held)
        except (TypeError, ValueError, RuntimeError):  # names instead of numbers, ragged lists
            return None
    return None


def known_lengths(data: Any) -> Tensor | None:
    """Return the lengths of a data set's samples where it has an attribute `lengths`, [N] int64, else None."""
    if isinstance(data, Subset):
        whole = known_lengths(data.dataset)
        return None if whole is None else whole[torch.as_tensor(data.indices)]
    held = getattr(data, "lengths", None)
    return torch.as_tensor(held, dtype=torch.int64) if held is not None and len(held) == len(data) else None


def split_pair(raw: Any) -> tuple[Any, Any]:
    """Take (inputs, targets) from what a loader yields.

    Raises:
        DataError: If it is not a pair.
    """
    if isinstance(raw, list | tuple) and len(raw) == 2:
        return raw[0], raw[1]
    seen = f"{type(raw).__name__} of length {len(raw)}" if hasattr(raw, "__len__") else type(raw).__name__
    raise DataError(f"a loader yielded a {seen}; each batch must be a pair (inputs, targets). Wrap it in a collate_fn.")

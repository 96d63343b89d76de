"""Moving batches to where the model is."""

from __future__ import annotations

from typing import Any

import torch

from muse_spark_ray.strategy import Batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to the device; on a CPU it is there already."""
    if device.type == "cpu":
        return batch
    weights = None if batch.weights is None else batch.weights.to(device, non_blocking=True)
    return batch.with_(inputs=move(batch.inputs, device), targets=move(batch.targets, device), weights=weights)


def uuid_of(device: torch.device) -> str:
    """Return the unique id of a CUDA device as its driver calls it ("GPU-..." or "MIG-...")."""
    own = str(torch.cuda.get_device_properties(device).uuid)
    return own if own.startswith(("GPU-", "MIG-")) else f"GPU-{own}"


def move(value: Any, device: torch.device) -> Any:
    """Move tensors, also inside lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: move(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(move(part, device) for part in value)
    return value

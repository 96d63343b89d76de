"""Exchanges between ranks: what strategies that replace DDP's all-reduce have in common."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce_bytes(size: float, world: int) -> float:
    """Return what one rank sends in a ring all-reduce of `size` bytes.

    Source: Patarasuk and Yuan 2009, Bandwidth Optimal All-reduce Algorithms.
    """
    return 2.0 * (world - 1) / world * size


def all_gather(output: Tensor, own: Tensor) -> None:
    """Put each rank's tensor behind the other in `output`, under the name that this torch has for it."""
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(output, own)


def on_first_rank(own: Any, *, rank: int, world: int) -> list[Any]:
    """Return what each rank holds, on the first one, which writes checkpoints; elsewhere only what it holds itself."""
    if world == 1:
        return [own]
    parts: list[Any] | None = [None] * world if rank == 0 else None
    dist.gather_object(own, parts)
    return parts if parts is not None else [own]


def done(buffer: Tensor) -> torch.futures.Future[Tensor]:
    """Return a future that holds its result, as DDP asks of its hooks."""
    devices = [buffer.device] if buffer.device.type == "cuda" else None
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)  # type: ignore[arg-type]
    future.set_result(buffer)
    return future

"""Reads losses as Python numbers without making the device wait for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Glance:
    """A look at the losses of a window: `start` for each micro-batch, `total` at the end.

    On a CPU the number is read at once. On a GPU each loss is copied to pinned memory right after its forward pass;
    by the time the sum is asked for, the backward pass has been queued, so that waiting leaves the device busy.
    """

    __slots__ = ("start", "total")

    def __init__(self, device: torch.device) -> None:
        self.start: Any = _start_copy if device.type == "cuda" else Tensor.item
        self.total: Any = _sum_of_copies if device.type == "cuda" else sum


def _start_copy(loss: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    host = torch.empty((), dtype=loss.dtype, pin_memory=True)
    host.copy_(loss.detach(), non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()
    return host, copied


def _sum_of_copies(copies: list[tuple[Tensor, torch.cuda.Event]]) -> float:
    for _, copied in copies:
        copied.synchronize()
    return sum(host.item() for host, _ in copies)

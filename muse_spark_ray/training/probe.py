"""Reads a window's loss without making the device wait for it."""

from __future__ import annotations

import torch
from torch import Tensor


class LossProbe:
    """Collects the losses of a window's micro-batches as Python numbers.

    On a GPU each loss is copied to pinned memory right after its forward pass; by the time the number is asked for,
    the backward pass has been queued, so waiting for the copy leaves the device busy.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._losses: list[Tensor] = []
        self._event: torch.cuda.Event | None = None

    def restart(self) -> None:
        """Forget the last window."""
        self._losses.clear()

    def watch(self, loss: Tensor) -> None:
        """Take one micro-batch's share of the window's loss, a scalar tensor."""
        loss = loss.detach()
        if self._is_cuda:
            host = torch.empty((), dtype=loss.dtype, pin_memory=True)
            host.copy_(loss, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
            loss = host
        self._losses.append(loss)

    def total(self) -> float:
        """Return the window's mean loss, as this rank sees it."""
        if self._event is not None:
            self._event.synchronize()
        return sum(loss.item() for loss in self._losses)

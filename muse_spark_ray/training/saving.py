"""Writes checkpoints while the training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Saver:
    """Writes one checkpoint after the other, at once or in a thread of its own.

    In a thread, the state is first copied to the CPU, and only that copy is waited for. An error of the thread is
    raised by the next call.

    Args:
        in_background: Whether the training goes on while a checkpoint is written.
    """

    def __init__(self, *, in_background: bool) -> None:
        self._threads = ThreadPoolExecutor(1, "checkpoint") if in_background else None
        self._pending: Future[Path] | None = None

    def save(self, write: Callable[[dict[str, Any]], Path], state: dict[str, Any]) -> Path | None:
        """Write a state.

        Args:
            write: Writes it and returns where.
            state: Tensors and plain containers.

        Returns:
            The folder of the newest checkpoint that is whole: this one, or in the background the one before it.
        """
        if self._threads is None:
            return write(state)
        before = self.wait()
        self._pending = self._threads.submit(write, copied(state))
        return before

    def wait(self) -> Path | None:
        """Wait until what was begun is written; return where, None if nothing was."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        return pending.result()


def copied(value: Any) -> Any:
    """Return a copy of a state on the CPU, which training cannot change any more."""
    if isinstance(value, Tensor):
        copy = torch.empty_like(value, device="cpu")
        return copy.copy_(value.detach())
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(part) for part in value)
    return value

"""What to do when memory runs out: smaller micro-batches that mean the same, and a search for the largest that fits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from muse_spark_ray.data import Window
from muse_spark_ray.errors import TrialError
from muse_spark_ray.strategy import Batch

if TYPE_CHECKING:
    from muse_spark_ray.training.loop import Run

logger = logging.getLogger(__name__)


def cut_batch(batch: Batch, size: int) -> list[Batch]:
    """Cut a micro-batch into pieces of at most `size` samples, in order; their weights add up to the batch's."""
    if batch.size <= size:
        return [batch]
    rows = [slice(start, start + size) for start in range(0, batch.size, size)]
    return [
        Batch(
            _take(batch.inputs, part),
            _take(batch.targets, part),
            None if batch.indices is None else batch.indices[part],
            None if batch.weights is None else batch.weights[part],
        )
        for part in rows
    ]


def cut_window(window: Window, size: int) -> None:
    """Cut all micro-batches of a window, in place."""
    window.batches[:] = [piece for batch in window.batches for piece in cut_batch(batch, size)]


def make_room(run: Run, window: Window, error: torch.OutOfMemoryError) -> None:
    """Halve the micro-batches of this window and of all to come.

    The window is then repeated from its start with the same samples and weights, so the update is the one that the
    larger micro-batches would have given, up to rounding, dropout and the statistics of BatchNorm.

    Args:
        run: The training; `micro_batch` falls.
        window: The window that did not fit.
        error: What torch said.

    Raises:
        TrialError: If micro-batches are as small as `min_micro_batch` already.
    """
    largest = max(batch.size for batch in window.batches)
    size = (largest + 1) // 2
    if largest <= 1 or size < run.min_micro_batch:
        raise TrialError(
            f"out of memory with a micro-batch of {largest} sample(s); the floor min_micro_batch is {run.min_micro_batch}. "
            f"({str(error).splitlines()[0]})",
            hint="use a smaller model or inputs, precision.amp: on, strategies.activation_checkpointing, or a device with more memory",
        ) from error
    for parameter in run.parameters:
        parameter.grad = None
    if run.world.device.type == "cuda":
        torch.cuda.empty_cache()
    run.micro_batch = size
    cut_window(window, size)
    logger.warning(
        "out of memory with a micro-batch of %d samples: going on with %d and as many more of them in an update; the "
        "effective batch size and the loss stay the same.",
        largest,
        size,
    )


def largest_batch(fits: Callable[[int], bool], *, start: int = 2, tries: int = 25, limit: int = 1 << 20) -> int:
    """Find the largest power-of-two multiple of `start`, or the largest halving of it, that fits.

    Args:
        fits: Tries a size; False if it does not fit.
        start: First size to try.
        tries: Most sizes to try; the answer is always one that was tried and fitted.
        limit: Sizes above are not tried.

    Returns:
        The size.

    Raises:
        TrialError: If nothing fits, not even a single sample.
    """
    best, size = 0, start
    for _ in range(tries):
        if fits(size):
            best = size
            if size * 2 > limit:
                break
            size *= 2
        elif best or size == 1:
            break
        else:
            size //= 2
            if best := size if size and fits(size) else 0:
                break
    if not best:
        raise TrialError(
            f"no batch size fits into memory: {size} sample(s) did not.", hint="use a smaller model or smaller inputs"
        )
    return best


def fits_in_memory(step: Callable[[int], Any]) -> Callable[[int], bool]:
    """Return a function that says if `step(size)` runs without running out of memory."""

    def fits(size: int) -> bool:
        try:
            step(size)
        except torch.OutOfMemoryError:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return False
        return True

    return fits


def _take(value: Any, rows: slice) -> Any:
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, dict):
        return {key: _take(part, rows) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_take(part, rows) for part in value)
    if isinstance(value, list):
        return [_take(part, rows) for part in value]
    return value

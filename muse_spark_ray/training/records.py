"""What a training tells about itself: one record an epoch, and the report made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from muse_spark_ray.cost import Span

Metrics = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One finished epoch.

    Args:
        epoch: Epochs done, from 1.
        metrics: train_loss, val_loss, accuracy (in [0, 1]), lr, effective_batch_size, samples_per_second,
            data_wait_share (of the epoch's training time), skipped_steps and bad_steps (of this epoch), updates (in
            all), the task's further metrics, and what strategies tell.
        spans: Where the time since the last record went, without gaps.
        ended: UTC seconds.
        checkpoint: Folder written at the end of this epoch, if any.
    """

    epoch: int
    metrics: Metrics
    spans: tuple[Span, ...]
    ended: float
    checkpoint: str | None = None


OnEpoch = Callable[[EpochRecord], bool]


def percent(share: float | None) -> float | None:
    """Return a share in percent, None if it is not known."""
    return None if share is None else 100.0 * share


def finite_or_none(value: float | int | None) -> float | int | None:
    """Return the value if strict JSON can hold it, else None."""
    return value if value is None or math.isfinite(value) else None


def best_of(history: list[Metrics], name: str, *, higher_is_better: bool) -> float | None:
    """Return the best finite value of a metric over all epochs, None if there is none."""
    values = [value for metrics in history if (value := metrics.get(name)) is not None and math.isfinite(value)]
    if not values:
        return None
    return float(max(values) if higher_is_better else min(values))


def strict_json(report: dict[str, Any]) -> Any:
    """Return a copy in which numbers that JSON does not have are null."""
    if isinstance(report, dict):
        return {key: strict_json(value) for key, value in report.items()}
    if isinstance(report, list | tuple):
        return [strict_json(value) for value in report]
    return None if isinstance(report, float) and not math.isfinite(report) else report

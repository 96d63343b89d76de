"""Chooses how many worker processes read the data by trying, not by guessing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from muse_spark_ray.data.planned import IndexedSource

_WORSE = 1.05
_PROBED_BATCHES = 40


@dataclass(frozen=True, slots=True)
class Trial:
    """What reading with so many workers takes.

    Args:
        workers: Processes; 0 reads in the training's own.
        start_seconds: Until the first batch was there.
        samples_per_second: After it.
        epoch_seconds: Both together, for an epoch on this rank.
    """

    workers: int
    start_seconds: float
    samples_per_second: float
    epoch_seconds: float


def tune_workers(source: IndexedSource, *, seconds: float, most: int | None = None) -> list[Trial]:
    """Try 0, 1, 2, 4, ... workers on the first batches and set the number with which an epoch is read soonest.

    Args:
        source: `workers` is set to the best number.
        seconds: Time for each number.
        most: Largest number to try; None for one less than the CPU cores, at least 1.

    Returns:
        What was tried, in order. It ends when more workers make it slower.
    """
    limit = max(1, (os.cpu_count() or 2) - 1) if most is None else most
    tried: list[Trial] = []
    for workers in _doubling(limit):
        tried.append(_try(source, workers, seconds))
        best = min(tried, key=lambda trial: trial.epoch_seconds)
        if tried[-1].epoch_seconds > _WORSE * best.epoch_seconds:
            break
    source.workers = min(tried, key=lambda trial: trial.epoch_seconds).workers
    return tried


def _doubling(limit: int) -> list[int]:
    numbers = [0, 1]
    while numbers[-1] * 2 <= limit:
        numbers.append(numbers[-1] * 2)
    return [number for number in numbers if number <= limit]


def _try(source: IndexedSource, workers: int, seconds: float) -> Trial:
    source.workers = workers
    began = time.perf_counter()
    batches = source.read(most=_PROBED_BATCHES)
    first = next(batches)
    start = time.perf_counter() - began
    samples, mark = 0, time.perf_counter()
    for batch in batches:
        samples += batch.size
        if time.perf_counter() - mark > seconds:
            break
    passed = time.perf_counter() - mark
    # A set of one batch tells nothing more than how long that one took.
    speed = samples / passed if samples and passed > 0 else first.size / start
    return Trial(workers, start, speed, start + source.own_samples / speed)

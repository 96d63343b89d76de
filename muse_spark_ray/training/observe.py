"""What the course of a training tells: over- and underfitting, plateaus, noise, a hungry device, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

from muse_spark_ray.data.findings import Finding

_HUNGRY, _SKIPPED = 0.2, 0.02
_WINDOW = 4


def observations(history: Sequence[Mapping[str, Any]], config: Any) -> list[Finding]:
    """Look at the metrics of the epochs done.

    Args:
        history: One dictionary an epoch, as in the training report.
        config: The TrainConfig; names what is already switched on.

    Returns:
        What was noticed, each with its evidence and the settings to try; nothing if all is well.
    """
    looks = (_hungry, _skipped, _explodes, _overfits, _underfits, _stands_still, _fluctuates)
    return [found for look in looks if (found := look(list(history), config)) is not None]


def _hungry(history: list[Mapping[str, Any]], config: Any) -> Finding | None:
    shares = [share for epoch in history if (share := epoch.get("data_wait_share")) is not None]
    if not shares or fmean(shares) < _HUNGRY:
        return None
    return Finding(
        "slow loader",
        "warning",
        f"the device was hungry {fmean(shares):.0%} of the time",
        "more loader workers (loader: auto), a faster disk, decoded data in memory",
    )


def _skipped(history: list[Mapping[str, Any]], config: Any) -> Finding | None:
    bad = sum(epoch.get("bad_steps") or 0 for epoch in history)
    updates = history[-1].get("updates") or 0 if history else 0
    if not bad or bad / max(bad + updates, 1) < _SKIPPED:
        return None
    advice = ["a lower optimizer.lr", "schedule.warmup_steps"] + ([] if config.clip_norm else ["clip_norm: 1.0"])
    return Finding("numbers that are not finite", "warning", f"{bad} updates were left out", ", ".join(advice))


def _explodes(history: list[Mapping[str, Any]], config: Any) -> Finding | None:
    losses = _values(history, "train_loss")
    if len(losses) < 2 or losses[-1] < 2 * min(losses) or losses[-1] - min(losses) < 0.1:
        return None
    advice = ["a lower optimizer.lr", "a longer warm-up"] + ([] if config.clip_norm else ["clip_norm: 1.0"])
    evidence = f"training loss {losses[-1]:.3g} after {min(losses):.3g} in epoch {losses.index(min(losses)) + 1}"
    return Finding("explosion", "warning", evidence, ", ".join(advice))


def _overfits(history: list[Mapping[str, Any]], config: Any) -> Finding | None:
    train, held_out = _values(history, "train_loss"), _values(history, "val_loss")
    if len(held_out) < _WINDOW or len(train) != len(held_out):
        return None
    best = held_out.index(min(held_out))
    has_risen = held_out[-1] > 1.05 * held_out[best] + 1e-3 and best < len(held_out) - 2
    if not has_risen or train[-1] >= train[best]:
        return None
    on = set(config.strategies.switched_on())
    ideas = [name for name in ("early_stopping", "label_smoothing", "mixup", "ema", "sam") if name not in on]
    return Finding(
        "overfitting",
        "note",
        f"validation loss {held_out[-1]:.3g} after {held_out[best]:.3g} in epoch {best + 1}, training loss {train[-1]:.3g}",
        f"weight decay, strategies.{' or '.join(ideas[:3])}" if ideas else "fewer epochs, more data",
    )


def _underfits(history: list[Mapping[str, Any]], config: Any) -> Finding | None:
    train, held_out = _values(history, "train_loss"), _values(history, "val_loss")
    if len(train) < _WINDOW or not held_out:
        return None
    falls = (train[-_WINDOW] - train[-1]) / max(abs(train[-_WINDOW]), 1e-9)
    if falls < 0.1 or held_out[-1] > min(held_out) + 1e-9:
        return None
    return Finding(
        "underfitting",
        "note",
        f"training loss still fell by {falls:.0%} over the last {_WINDOW - 1} epochs, and validation was best at the end",
        "more epochs, a larger optimizer.lr or model, less regularisation",
    )


def _stands_still(history: list[Mapping[str, Any]], config: Any) -> Finding | None:
    train = _values(history, "train_loss")
    if len(train) < 2 * _WINDOW:
        return None
    before, now = fmean(train[-2 * _WINDOW : -_WINDOW]), fmean(train[-_WINDOW:])
    if abs(before - now) > 0.005 * abs(before) or now < 1e-3:
        return None
    return Finding(
        "plateau",
        "note",
        f"training loss {before:.4g} to {now:.4g} over {2 * _WINDOW} epochs",
        "strategies.plateau, schedule.type: cosine; with adaptive sampling: strategy medium_loss, a larger update_freq",
    )


def _fluctuates(history: list[Mapping[str, Any]], config: Any) -> Finding | None:
    values = _values(history, "accuracy") or _values(history, "val_loss")
    if len(values) < 2 * _WINDOW:
        return None
    late = values[-2 * _WINDOW :]
    steps = [b - a for a, b in pairwise(late)]
    turns = sum(a * b < 0 for a, b in pairwise(steps))
    if turns < _WINDOW or pstdev(late) < 0.02 * max(abs(fmean(late)), 1e-9):
        return None
    return Finding(
        "fluctuating validation",
        "note",
        f"it turned {turns} times in {len(late)} epochs, deviation {pstdev(late):.2g} around {fmean(late):.3g}",
        "strategies.ema or swa, a lower optimizer.lr, a larger batch, more validation samples",
    )


def _values(history: list[Mapping[str, Any]], name: str) -> list[float]:
    found = [epoch.get(name) for epoch in history]
    return [float(value) for value in found if value is not None and math.isfinite(value)]

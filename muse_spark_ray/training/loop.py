"""The training loop, top to bottom: an epoch of windows, a window of micro-batches, one update."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from muse_spark_ray.cost import Phase, PhaseClock
from muse_spark_ray.data import Source, Window
from muse_spark_ray.strategy import Step, StrategyStack
from muse_spark_ray.training.devices import to_device
from muse_spark_ray.training.diagnose import DivergedError, bad_steps_diagnosis
from muse_spark_ray.training.distributed import World, gradient_sync, sum_over_ranks
from muse_spark_ray.training.objective import Objective
from muse_spark_ray.training.precision import Precision
from muse_spark_ray.training.probe import LossProbe
from muse_spark_ray.training.schedules import Schedule


@dataclass(slots=True)
class Run:
    """What one training is made of: the objects that a window works with, and its counters.

    Args:
        module: The plain model; `model` is the same, wrapped where gradients are exchanged.
    """

    module: nn.Module
    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    stack: StrategyStack
    precision: Precision
    schedule: Schedule
    source: Source
    world: World
    clock: PhaseClock
    clip_norm: float | None
    max_bad_steps: int
    epoch: int = 0
    updates: int = 0
    skipped_steps: int = 0
    bad_steps: int = 0
    bad_in_a_row: int = 0
    probe: LossProbe = field(init=False)

    def __post_init__(self) -> None:
        self.probe = LossProbe(self.world.device)


@dataclass(frozen=True, slots=True)
class EpochTotals:
    """Sums of one epoch over all ranks.

    Args:
        loss: Mean training loss over the windows that were applied, by weight; NaN if none was.
        samples: Samples trained on.
        windows: Windows tried.
        grad_norm: Gradient norm of the last window before clipping; None where it was not needed.
    """

    loss: float
    samples: int
    windows: int
    grad_norm: float | None


def train_epoch(run: Run, *, epochs: int) -> EpochTotals:
    """Train one epoch.

    Args:
        run: The training; its counters move on.
        epochs: Epochs in all, for the schedule.

    Raises:
        DivergedError: After `max_bad_steps` windows in a row with a loss or gradient that is not finite.
    """
    run.model.train()
    run.schedule.plan_epoch(epoch=run.epoch, epochs=epochs, windows=run.source.windows_per_epoch())
    loss_sum = weight_sum = 0.0
    samples = windows = 0
    norm: float | None = None
    for window in timed(_windows(run), run.clock):
        weight = window_weight(run, window)
        loss, norm = accumulate_gradients(run, window, weight)
        if apply_update(run, loss, norm):
            loss_sum += loss * weight
            weight_sum += weight
        samples += window.samples
        windows += 1
        window.batches.clear()  # so that the next batch finds this one's memory, still in cache
    loss_sum = sum_over_ranks([loss_sum], run.world)[0] / run.world.size
    return EpochTotals(loss_sum / weight_sum if weight_sum else float("nan"), samples, windows, norm)


def accumulate_gradients(run: Run, window: Window, weight: float) -> tuple[float, float | None]:
    """Add up the gradients of a window's mean loss, then unscale and clip them.

    Each micro-batch contributes its share of the window's weight, so a last window with fewer or smaller
    micro-batches is the exact mean over its samples.

    Returns:
        (mean loss of the window as this rank sees it, norm of the gradients before clipping or None).
    """
    run.probe.restart()
    step = Step(run.epoch, run.updates)
    last = len(window.batches) - 1
    for index, raw in enumerate(window.batches):
        batch = run.stack.transform_batch(to_device(raw, run.world.device), step)
        with gradient_sync(run.model, is_last=index == last):
            with run.precision.autocast():
                outputs = run.model(batch.inputs)
                loss = run.objective.share(outputs, batch, step, window_weight=weight)
            run.probe.watch(loss)
            if index == 0:
                # Here, not after the update: freed just before backward needs the same memory, it is still in cache.
                run.optimizer.zero_grad(set_to_none=True)
            run.precision.backward(loss)
    run.precision.unscale(run.optimizer)
    return run.probe.total(), gradient_norm(run)


def apply_update(run: Run, loss: float, norm: float | None) -> bool:
    """Step the optimizer, unless the loss or the gradient is not finite; count what happened.

    Returns:
        True if the weights changed.
    """
    step = Step(run.epoch, run.updates)
    is_bad = not is_finite(norm) if run.world.size > 1 else not is_finite(loss)
    stepped = False
    # With fp16 the scaler itself leaves out an overflow, and must see it to lower its scale.
    if run.precision.scaler is not None or (not is_bad and is_finite(norm)):
        run.stack.before_update(run.module, step)
        stepped = run.precision.step(run.optimizer)
    run.schedule.attempted(stepped=stepped)
    if stepped:
        run.updates += 1
        run.bad_in_a_row = 0
        run.stack.after_update(run.module, step)
        return True
    run.skipped_steps += 1
    if is_bad or run.precision.scaler is None:
        note_bad_step(run, loss, norm)
    return False


def note_bad_step(run: Run, loss: float, norm: float | None) -> None:
    """Count a window without a finite loss or gradient; raise DivergedError when too many came in a row."""
    run.bad_steps += 1
    run.bad_in_a_row += 1
    if run.bad_in_a_row >= run.max_bad_steps:
        raise DivergedError(bad_steps_diagnosis(run, loss, norm))


def gradient_norm(run: Run) -> float | None:
    """Clip the gradients and return their norm before it; None where neither clipping nor other ranks need it.

    With several ranks the norm tells every rank alike that some rank's loss was not finite.
    """
    if run.clip_norm is not None:
        return float(nn.utils.clip_grad_norm_(run.module.parameters(), run.clip_norm))
    if run.world.size > 1:
        gradients = [p.grad for p in run.module.parameters() if p.grad is not None]
        return float(nn.utils.get_total_norm(gradients))
    return None


def window_weight(run: Run, window: Window) -> float:
    """Return the sum of a window's sample weights over all ranks."""
    if not run.objective.weighs_classes:
        return window.weight
    return sum_over_ranks([run.objective.weigh(window, run.world.device)], run.world)[0]


def is_finite(value: float | None) -> bool:
    """Say if a value is a number, or not measured at all."""
    return value is None or (value - value == 0.0)


def timed(windows: Iterator[Window], clock: PhaseClock) -> Iterator[Window]:
    """Yield windows and book the time spent waiting for each as `data_wait`."""
    while True:
        start = time.perf_counter()
        window = next(windows, None)
        clock.add(Phase.data_wait, time.perf_counter() - start)
        if window is None:
            return
        yield window


def _windows(run: Run) -> Iterator[Window]:
    stack = run.stack
    if not stack.uses("order_samples"):
        return run.source.windows(run.epoch)
    return run.source.windows(
        run.epoch, lambda order: stack.order_samples(order, Step(run.epoch, run.updates)), stack.reorder_every
    )

"""The training loop, top to bottom: an epoch of windows, a window of micro-batches, one update.

A step of a small network takes half a millisecond, in which each Python call counts: what a run does not use is not
called (`Run` knows from the start), and a window is read, weighed and booked with as few calls as will do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import isfinite as is_finite

import torch
from torch import Tensor, nn

from muse_spark_ray.cost import Phase, PhaseClock
from muse_spark_ray.data import Position, Source, Window
from muse_spark_ray.strategy import Batch, Step, StrategyStack
from muse_spark_ray.training.devices import to_device
from muse_spark_ray.training.diagnose import DivergedError, bad_steps_diagnosis
from muse_spark_ray.training.distributed import World, gradient_sync, sum_over_ranks
from muse_spark_ray.training.glance import Glance
from muse_spark_ray.training.memory import cut_window, make_room
from muse_spark_ray.training.objective import Objective
from muse_spark_ray.training.precision import Precision
from muse_spark_ray.training.progress import Progress
from muse_spark_ray.training.schedules import Schedule


@dataclass(slots=True)
class Run:
    """What one training is made of: the objects that a window works with, and its counters.

    Args:
        module: The plain model; `model` is the same, wrapped where gradients are exchanged.
        is_plain: One process in full precision: a pass needs no context around it.
        prepares: Batches are moved or changed before the forward pass.
        finishes: Gradients are unscaled, clipped or measured after the backward pass.
        watches: Strategies act before or after updates.
        repeats: The optimizer asks for the window's gradients again, at other weights, within its step.
        min_micro_batch: Micro-batches are never cut below this many samples.
        ordering: Seconds that strategies took to choose samples since the last window; work, not waiting for data.
        micro_batch: Most samples in a pass since memory ran out; None as long as it has not.
        between: Called between two windows of an epoch; what it raises ends the training there, and the next one goes
            on from there.
        progress: Of the epoch that is under way; None between two epochs.
        keeps_window: Updates have as many samples as on the ranks that began, not as the config says for these.
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
    min_micro_batch: int = 1
    micro_batch: int | None = None
    ordering: float = 0.0
    epoch: int = 0
    updates: int = 0
    skipped_steps: int = 0
    bad_steps: int = 0
    bad_in_a_row: int = 0
    between: Callable[[], None] | None = None
    progress: Progress | None = None
    keeps_window: bool = False
    parameters: list[nn.Parameter] = field(default_factory=list)
    glance: Glance = field(init=False)
    is_plain: bool = field(init=False)
    prepares: bool = field(init=False)
    finishes: bool = field(init=False)
    watches: bool = field(init=False)
    repeats: bool = field(init=False)

    def __post_init__(self) -> None:
        self.look_again()

    def look_again(self) -> None:
        """Find out what a window needs; again after precision changed."""
        is_alone = self.world.size == 1
        self.glance = Glance(self.world.device)
        self.is_plain = is_alone and self.precision.kind == "off"
        self.prepares = self.world.device.type != "cpu" or self.stack.uses("transform_batch")
        self.watches = self.stack.uses("before_update") or self.stack.uses("after_update")
        self.repeats = getattr(self.optimizer, "repeats_window", False)
        self.finishes = not is_alone or self.clip_norm is not None or self.precision.scaler is not None


@dataclass(frozen=True, slots=True)
class EpochTotals:
    """What one epoch came to, over all ranks.

    Args:
        loss: Mean training loss over the windows that were applied, by weight; NaN if none was.
        progress: Its sums.
        waited: Seconds in which the device waited for data, on this rank, in this process.
    """

    loss: float
    progress: Progress
    waited: float


def train_epoch(run: Run, *, epochs: int) -> EpochTotals:
    """Train one epoch, or what is left of it.

    Args:
        run: The training; its counters move on.
        epochs: Epochs in all, for the schedule.

    Raises:
        DivergedError: After `max_bad_steps` windows in a row with a loss or gradient that is not finite.
    """
    run.model.train()
    run.parameters = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    p = run.progress = run.progress or Progress(skipped=run.skipped_steps, bad=run.bad_steps)
    p.began = time.monotonic()
    planned, batch = (
        run.source.windows_per_epoch(run.epoch, run.stack.epoch_samples),
        run.source.window_size(run.epoch),
    )
    run.schedule.plan_epoch(epoch=run.epoch, epochs=epochs, windows=planned, batch=batch, done=p.position.windows)
    windows, clock = open_windows(run), time.perf_counter
    waited = 0.0
    while True:
        asked = clock()
        window = next(windows, None)
        waited += clock() - asked - run.ordering
        run.ordering = 0.0
        if window is None:
            break
        if run.micro_batch is not None:
            cut_window(window, run.micro_batch)
        weight = window_weight(run, window) if run.objective.weighs else window.weight
        step = Step(run.epoch, run.updates)
        loss, p.grad_norm = accumulate_gradients(run, window, weight, step)
        again = partial(repeat_window, run, window, weight, step) if run.repeats else None
        if apply_update(run, loss, p.grad_norm, step, again):
            p.loss_sum += loss * weight
            p.weight_sum += weight
        p.samples += window.samples
        window.batches.clear()  # so that the next batch finds this one's memory, still in cache
        if run.between is not None:
            run.between()
    run.clock.add(Phase.data_wait, waited)
    run.progress = None
    loss_sum = sum_over_ranks([p.loss_sum], run.world)[0] / run.world.size
    mean = loss_sum / p.weight_sum if p.weight_sum else float("nan")
    return EpochTotals(mean, p, waited)


def accumulate_gradients(run: Run, window: Window, weight: float, step: Step) -> tuple[float, float | None]:
    """Add up the gradients of a window's mean loss; if memory runs out, again with smaller micro-batches.

    Returns:
        As `sum_gradients`.
    """
    while True:
        try:
            return sum_gradients(run, window, weight, step)
        except torch.OutOfMemoryError as error:
            make_room(run, window, error)


def sum_gradients(run: Run, window: Window, weight: float, step: Step) -> tuple[float, float | None]:
    """Pass a window's micro-batches forward and backward.

    Each micro-batch contributes its share of the window's weight, so a last window with fewer or smaller
    micro-batches is the exact mean over its samples.

    Returns:
        (mean loss of the window as this rank sees it, norm of the gradients before clipping or None).
    """
    glance, losses = run.glance, []
    kept: list[Batch] = []
    last = len(window.batches) - 1
    for index, raw in enumerate(window.batches):
        batch = prepared(run, raw, step) if run.prepares else raw
        if run.repeats:
            kept.append(batch)
        if run.is_plain:
            loss = run.objective(run.model(batch.inputs), batch, step, weight)
        else:
            with gradient_sync(run.model, is_last=index == last), run.precision.autocast():
                loss = run.objective(run.model(batch.inputs), batch, step, weight)
        losses.append(glance.start(loss))
        if index == 0:
            # Here, not after the update: freed just before backward needs the same memory, it is still in cache.
            # Without `zero_grad`, whose profiler mark costs more than the work itself.
            for parameter in run.parameters:
                parameter.grad = None
        if run.is_plain:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            with gradient_sync(run.model, is_last=index == last):
                run.precision.backward(loss)
    if run.repeats:
        window.batches[:] = kept
    return glance.total(losses), finish_gradients(run) if run.finishes else None


def repeat_window(run: Run, window: Window, weight: float, step: Step) -> None:
    """Put the gradients of the same window, at the weights as they are now, in place of the present ones.

    Batches are used as the strategies left them. They have no indices now, so that nobody takes down losses that do
    not belong to the weights of the training.
    """
    for parameter in run.parameters:
        parameter.grad = None
    last = len(window.batches) - 1
    for index, batch in enumerate(window.batches):
        unnamed = batch.with_(indices=None)
        with gradient_sync(run.model, is_last=index == last), run.precision.autocast():
            loss = run.objective(run.model(unnamed.inputs), unnamed, step, weight)
        with gradient_sync(run.model, is_last=index == last):
            run.precision.backward(loss)
    if run.finishes:
        finish_gradients(run)


def apply_update(
    run: Run, loss: float, norm: float | None, step: Step, again: Callable[[], None] | None = None
) -> bool:
    """Step the optimizer, unless the loss or the gradient is not finite; count what happened.

    Args:
        run: The training.
        loss: Mean loss of the window as this rank sees it.
        norm: Norm of its gradients before clipping, None if not taken.
        step: Where training stands.
        again: Computes the window's gradients again; for optimizers that look at them at other weights.

    Returns:
        True if the weights changed.
    """
    # Over several ranks only the norm of the exchanged gradients looks the same to all of them.
    is_bad = not is_finite(loss if run.world.size == 1 or norm is None else norm)
    stepped = False
    # With fp16 the scaler itself leaves out an overflow, and must see it to lower its scale.
    if run.precision.scaler is not None or not (is_bad or (norm is not None and not is_finite(norm))):
        if run.watches:
            run.stack.before_update(run.module, step)
        stepped = run.precision.step(run.optimizer, again)
    run.schedule.attempted(stepped=stepped)
    if stepped:
        run.updates += 1
        run.bad_in_a_row = 0
        if run.watches:
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
    if 2 * run.bad_in_a_row >= run.max_bad_steps and run.precision.fall_back():
        run.look_again()
    if run.bad_in_a_row >= run.max_bad_steps:
        raise DivergedError(bad_steps_diagnosis(run, loss, norm))


def finish_gradients(run: Run) -> float | None:
    """Unscale and clip the gradients; return their norm before clipping.

    With several ranks the norm is always taken: it tells every rank alike that some rank's loss was not finite.
    """
    run.precision.unscale(run.optimizer)
    if run.clip_norm is not None:
        return float(nn.utils.clip_grad_norm_(run.module.parameters(), run.clip_norm))
    if run.world.size > 1:
        return float(nn.utils.get_total_norm([p.grad for p in run.module.parameters() if p.grad is not None]))
    return None


def window_weight(run: Run, window: Window) -> float:
    """Weigh each sample by its labels; return the sum over all ranks."""
    return sum_over_ranks([run.objective.weigh(window)], run.world)[0]


def prepared(run: Run, batch: Batch, step: Step) -> Batch:
    """Return the micro-batch on the device, as the strategies want it."""
    return run.stack.transform_batch(to_device(batch, run.world.device), step)


def open_windows(run: Run) -> Iterator[Window]:
    """Start reading the windows that are left of the epoch, in the order that the strategies choose."""
    stack, position = run.stack, run.progress.position if run.progress is not None else Position()
    if not stack.uses("order_samples"):
        return run.source.windows(run.epoch, position=position)

    def reorder(order: Tensor) -> Tensor:
        began = time.perf_counter()
        chosen = stack.order_samples(order, Step(run.epoch, run.updates))
        run.ordering += time.perf_counter() - began
        return chosen

    return run.source.windows(run.epoch, reorder, stack.reorder_every, position)

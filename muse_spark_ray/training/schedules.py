"""Learning-rate schedules as factors of the base rate, counted in applied updates.

Most forms need only the number of applied updates k, from 0. Those that must end with the training (cosine, onecycle)
follow the progress p in [0, 1], which each applied update moves by an equal part of what is left: with u updates to
come, p grows by (1 - p) / u. With a constant number of updates this is k / total; if strategies shorten epochs, the
schedule still ends with the last update. When training goes on with another number of epochs, p starts again from
the share of epochs that is done, so that a longer run stretches the schedule.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.train import ScheduleConfig

_DIVIDE_FIRST, _DIVIDE_LAST = 25.0, 1e4


def cosine(progress: float) -> float:
    """Return half a cosine from 1 at progress 0 to 0 at progress 1 (Loshchilov and Hutter 2017, eq. 5)."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def one_cycle(progress: float, *, rising: float) -> float:
    """Return a cosine rise from 1/25 to 1 and a cosine fall to 1/250,000 (Smith and Topin 2017).

    Args:
        progress: Share of the updates done.
        rising: Share of the updates that rise, in (0, 1).
    """
    first, last = 1.0 / _DIVIDE_FIRST, 1.0 / (_DIVIDE_FIRST * _DIVIDE_LAST)
    if progress < rising:
        return 1.0 + (first - 1.0) * cosine(progress / rising)
    return last + (1.0 - last) * cosine((progress - rising) / (1.0 - rising))


def lr_scale(config: ScheduleConfig, batch: int | None) -> float:
    """Return by what the rate is multiplied for an update of `batch` samples.

    Source: Goyal et al. 2017, section 2.1 (linear); Krizhevsky 2014, One Weird Trick, section 5 (square root).

    Raises:
        ConfigError: If the rate is to follow the batch size and that is not known.
    """
    if config.lr_scaling == "none":
        return 1.0
    if batch is None:
        raise ConfigError(
            f"schedule.lr_scaling is {config.lr_scaling}, but the loader does not say its batch size. Set it to none."
        )
    ratio = batch / config.reference_batch_size
    return ratio if config.lr_scaling == "linear" else math.sqrt(ratio)


def warm_up(progress: float, *, scale: float) -> float:
    """Return the factor during a warm-up: from 0, or from the unscaled rate where the full one is larger.

    Args:
        progress: Share of the warm-up that is done after the next update, in (0, 1].
        scale: Factor at its end.

    Source: Goyal et al. 2017, section 2.2, gradual warm-up.
    """
    first = 1.0 if scale > 1.0 else 0.0
    return first + (scale - first) * progress


class Schedule:
    """Sets the learning rate of each parameter group to its base rate times the factor of the schedule.

    Args:
        optimizer: Its groups' rates at this moment are the base rates, unless `initial_lr` says otherwise.
        config: Form and numbers.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: ScheduleConfig) -> None:
        self._optimizer = optimizer
        self._config = config
        self._base = [float(group.setdefault("initial_lr", group["lr"])) for group in optimizer.param_groups]
        self._is_constant = config.type == "constant" and config.warmup_steps == 0 and config.lr_scaling == "none"
        self._scale = 1.0
        self.updates = 0
        self._progress = 0.0
        self._begun = 0
        self._left: int | None = None
        self._epochs: int | None = None
        self._plateau_factor, self._plateau_best, self._plateau_waits = 1.0, math.inf, 0

    def plan_epoch(
        self, *, epoch: int, epochs: int, windows: int | None, batch: int | None = None, done: int = 0
    ) -> None:
        """Say how many updates are still to come, and how large they are.

        Args:
            epoch: Epochs done.
            epochs: Epochs in all.
            windows: Updates planned for this epoch, None if not known.
            batch: Samples in an update, None if not known.
            done: Updates of this epoch that were tried before.

        Raises:
            ConfigError: If the rate is to follow the batch size and that is not known.
        """
        self._scale = lr_scale(self._config, batch)
        if self._epochs not in (None, epochs):
            self._progress = epoch / epochs
        self._epochs = epochs
        self._left = None if windows is None else windows * (epochs - epoch) - done
        if self._left is None:
            self._progress = epoch / epochs
        self._apply()

    def attempted(self, *, stepped: bool) -> None:
        """Note one window; only an update that was applied moves the schedule on."""
        if stepped:
            if self._left is not None and self.updates - self._begun >= self._config.warmup_steps:
                self._progress += (1.0 - self._progress) / max(self._left, 1)
            self.updates += 1
        if self._left is not None:
            self._left -= 1
        if stepped and not self._is_constant:
            self._apply()

    def scale_by(self, factor: float) -> None:
        """Multiply the rate by a factor from now on."""
        self._plateau_factor *= factor
        self._is_constant = self._is_constant and self._plateau_factor == 1.0
        self._apply()

    def rescale(self, factor: float) -> None:
        """Multiply the base rate for good, since updates are made of another number of samples."""
        self._base = [base * factor for base in self._base]
        for group in self._optimizer.param_groups:
            group["lr"] *= factor

    def restart(self) -> None:
        """Begin the form anew; one that ends with the training does so over the updates that are left."""
        self._begun, self._progress, self._plateau_factor = self.updates, 0.0, 1.0
        self._apply()

    def check(self, value: float | None) -> None:
        """Give the plateau form the epoch's validation loss; a loss that is not a number is no improvement."""
        if self._config.type != "plateau" or value is None:
            return
        if value < self._plateau_best - self._config.min_delta:
            self._plateau_best, self._plateau_waits = value, 0
            return
        self._plateau_waits += 1
        if self._plateau_waits > self._config.patience:
            self._plateau_factor *= self._config.gamma
            self._plateau_waits = 0
            self._apply()

    def factor(self) -> float:
        """Return the factor for the next update."""
        c, k = self._config, self.updates - self._begun
        if k < self._warmup:
            return self._plateau_factor * warm_up((k + 1) / self._warmup, scale=self._scale)
        return self._plateau_factor * self._scale * self._form(c, k)

    def _form(self, c: ScheduleConfig, k: int) -> float:
        if c.type == "step":
            return c.gamma ** (k // (c.step_size or 1))
        if c.type in ("cosine", "cosine_with_warmup"):
            return cosine(self._progress)
        if c.type == "cosine_with_warmup_restarts":
            length = c.cycle_length or 1
            return cosine(((k - self._warmup) % length) / length)
        if c.type == "onecycle":
            return one_cycle(self._progress, rising=c.warmup_fraction)
        return 1.0

    @property
    def lr(self) -> float:
        """The first group's rate for the next update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {
            "updates": self.updates,
            "progress": self._progress,
            "begun": self._begun,
            "epochs": self._epochs,
            "base": self._base,
            "plateau": [self._plateau_factor, self._plateau_best, self._plateau_waits],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counters and with them the rate of the next update."""
        self.updates, self._progress, self._epochs = int(state["updates"]), float(state["progress"]), state["epochs"]
        self._base = [float(rate) for rate in state["base"]]
        self._begun = int(state.get("begun", 0))
        factor, best, waits = state["plateau"]
        self._plateau_factor, self._plateau_best, self._plateau_waits = float(factor), float(best), int(waits)
        self._is_constant = self._is_constant and self._plateau_factor == 1.0
        self._apply()

    @property
    def follows_batch(self) -> bool:
        """Whether the rate follows the samples in an update by itself."""
        return self._config.lr_scaling != "none"

    @property
    def _warmup(self) -> int:
        return self._config.warmup_steps

    def _apply(self) -> None:
        if self._is_constant:
            return
        factor = self.factor()
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor

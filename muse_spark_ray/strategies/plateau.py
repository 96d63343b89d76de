"""Plateau: when the validation metric stands still, lower the rate, restart the schedule, or shake the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Card, Context, Decision, Stage, Step, Strategy, StrategyConfig, knob, seeded

Action = Literal["reduce", "restart", "perturb"]


@torch.no_grad()
def shrink_and_perturb(model: nn.Module, *, shrink: float, noise: float, generator: torch.Generator) -> None:
    """Multiply all weights by `shrink` and add Gaussian noise of deviation `noise` times their own.

    Source: Ash and Adams 2020, On Warm-Starting Neural Network Training, section 5.
    """
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
            deviation = parameter.std() if parameter.numel() > 1 else parameter.abs().mean()
            parameter.mul_(shrink).add_(drawn * (noise * deviation))


class Plateau(Strategy):
    """Watch a smoothed metric and act when it has not improved for some checks (epochs).

    `reduce` multiplies the learning rate by `factor`; `restart` begins the schedule anew for the updates that are
    left; `perturb` shrinks and shakes the weights and draws the rate anew around its value.
    """

    stage = Stage.UPDATE
    card = Card(
        saves="epochs in which nothing is learnt",
        costs="nothing",
        pays="trainings of unknown length, constant schedules",
        hurts="metrics that fluctuate more than they improve: raise smoothing or patience",
        source="Ash and Adams 2020, section 5; Loshchilov and Hutter 2017 (restarts)",
    )

    class Config(StrategyConfig):
        """Settings of the plateau detector and of what it does."""

        action: Action = knob("reduce", search=["reduce", "restart", "perturb"], doc="what is done on a plateau")
        metric: str = knob("val_loss", doc="what is watched: val_loss, train_loss, accuracy or another of task.metrics")
        smoothing: float = knob(0.3, ge=0, lt=1, doc="weight of the old smoothed value when a new one comes in")
        patience: int = knob(3, ge=1, search=(2, 8), doc="checks (epochs) without improvement before acting")
        min_delta: float = knob(1e-4, ge=0, doc="smallest change that is an improvement, in units of the metric")
        cooldown: int = knob(0, ge=0, doc="checks after an action that are not counted")
        factor: float = knob(0.3, gt=0, lt=1, search=(0.1, 0.5), doc="reduce: what is left of the learning rate")
        shrink: float = knob(0.8, gt=0, le=1, doc="perturb: what is left of the weights")
        noise: float = knob(0.05, ge=0, le=1, doc="perturb: deviation of the noise, relative to that of the weights")
        lr_jitter: float = knob(0.2, ge=0, lt=1, doc="perturb: the rate is multiplied by 1 +- at most this")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._model: nn.Module = nn.Module()
        self._smoothed: float | None = None
        self._best: float | None = None
        self._waits = 0
        self._rest = 0
        self._actions = 0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._model = model
        return model

    def after_epoch(self, metrics: Mapping[str, Any], step: Step) -> Decision | None:
        c, value = self.config, metrics.get(self.config.metric)
        if value is None:
            raise ConfigError(
                f"strategies.plateau watches {c.metric}, which this training does not report.",
                hint="give validation data, or set strategies.plateau.metric to train_loss",
            )
        if not self._stands_still(float(value)) or step.epochs_left == 0:
            return None
        self._waits, self._rest = 0, c.cooldown
        self._actions += 1
        return self._act(step)

    def _stands_still(self, value: float) -> bool:
        c = self.config
        if math.isfinite(value):
            loss = value if c.metric.endswith(("loss", "error", "mae", "rmse")) else -value
            self._smoothed = loss if self._smoothed is None else c.smoothing * self._smoothed + (1 - c.smoothing) * loss
        if self._smoothed is not None and (self._best is None or self._smoothed < self._best - c.min_delta):
            self._best, self._waits = self._smoothed, 0
            return False
        if self._rest > 0:
            self._rest -= 1
            return False
        self._waits += 1
        return bool(self._waits >= c.patience)

    def _act(self, step: Step) -> Decision:
        c = self.config
        reason = f"{c.metric} stands still since {c.patience} epochs: "
        if c.action == "reduce":
            return Decision(reason=f"{reason}learning rate x {c.factor:g}", lr_factor=c.factor)
        if c.action == "restart":
            return Decision(reason=f"{reason}the schedule begins anew", restart_schedule=True)
        generator = seeded(self.context.seed, step.epoch, self._actions)
        shrink_and_perturb(self._model, shrink=c.shrink, noise=c.noise, generator=generator)
        factor = 1.0 + c.lr_jitter * (2.0 * float(torch.rand((), generator=generator)) - 1.0)
        return Decision(reason=f"{reason}weights perturbed, learning rate x {factor:.3g}", lr_factor=factor)

    def state_dict(self) -> dict[str, Any]:
        return {
            "smoothed": self._smoothed,
            "best": self._best,
            "waits": self._waits,
            "rest": self._rest,
            "actions": self._actions,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._smoothed, self._best = state["smoothed"], state["best"]
        self._waits, self._rest, self._actions = int(state["waits"]), int(state["rest"]), int(state["actions"])

    def report(self) -> dict[str, Any]:
        return {"actions": self._actions}

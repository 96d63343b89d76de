"""Early stopping: end a training that no longer improves, or that is good enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Card, Context, Decision, Stage, Step, Strategy, StrategyConfig, knob


def rises(metric: str, said: bool | None) -> bool:
    """Say if larger values of a metric are better: as it is said, else by the name."""
    return said if said is not None else not metric.endswith(("loss", "error", "mae", "rmse"))


class EarlyStopping(Strategy):
    """End a training whose metric has not improved for some checks, or has reached its target.

    A check is the end of an epoch. A value that is not a number is no improvement. A limit of seconds ends what would
    cost more than it may. A training that was ended stays so when it is resumed with the same settings.
    """

    stage = Stage.UPDATE
    card = Card(
        saves="the epochs after the best one",
        costs="nothing",
        pays="schedules without an end of their own: constant, plateau",
        hurts="schedules that fall to zero at their last epoch, such as cosine: the best comes there",
        source="Prechelt 1998, Early Stopping - But When?",
    )

    class Config(StrategyConfig):
        """Settings of early stopping."""

        metric: str = knob("val_loss", doc="what is watched: val_loss, train_loss, accuracy or another of task.metrics")
        higher_is_better: bool | None = knob(
            None, doc="direction of the metric; none: losses and errors fall, others rise"
        )
        patience: int = knob(5, ge=1, search=(2, 10), doc="checks (epochs) without improvement before the end")
        min_delta: float = knob(0.0, ge=0, doc="smallest change that is an improvement, in units of the metric")
        max_seconds: float | None = knob(
            None, gt=0, doc="end after the epoch in which this much time was spent on training, evaluation not counted"
        )
        target: float | None = knob(None, doc="end as soon as the metric is at least as good as this")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._sign = 1.0 if rises(config.metric, config.higher_is_better) else -1.0
        self._best: float | None = None
        self._waits = 0
        self._last: float | None = None
        self._seconds = 0.0

    def after_epoch(self, metrics: Mapping[str, Any], step: Step) -> Decision | None:
        c, value = self.config, metrics.get(self.config.metric)
        if value is None:
            raise ConfigError(
                f"strategies.early_stopping watches {c.metric}, which this training does not report.",
                hint="give validation data, or set strategies.early_stopping.metric to train_loss",
            )
        self._last = float(value)
        if self.config.max_seconds is not None and (speed := metrics.get("samples_per_second")):
            self._seconds += metrics["samples"] / speed
        is_better = self._best is None or self._sign * (value - self._best) > c.min_delta
        if math.isfinite(value) and is_better:
            self._best, self._waits = self._last, 0
        else:
            self._waits += 1
        reason = self.ended()
        return Decision(stop=True, reason=reason) if reason else None

    def ended(self) -> str:
        c = self.config
        if c.target is not None and self._last is not None and self._sign * (self._last - c.target) >= 0:
            return f"{c.metric} has reached its target: {self._last:.6g} against {c.target:g}"
        if c.max_seconds is not None and self._seconds >= c.max_seconds:
            return f"{self._seconds:.0f} s of training reach the limit of {c.max_seconds:g} s"
        if self._waits >= c.patience:
            best = "no finite value yet" if self._best is None else f"best {self._best:.6g}"
            return f"{c.metric} has not improved for {self._waits} epochs ({best})"
        return ""

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "last": self._last, "waits": self._waits, "seconds": self._seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best, self._last, self._waits = state["best"], state["last"], int(state["waits"])
        self._seconds = float(state.get("seconds", 0.0))

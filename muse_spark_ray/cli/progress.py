"""Joins a running engine to the live view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from muse_spark_ray.cli.output import console
from muse_spark_ray.report.formats import money
from muse_spark_ray.report.live import LiveView, Mode, Snapshot

if TYPE_CHECKING:
    from muse_spark_ray.search.engine import Engine
    from muse_spark_ray.search.trials import News
    from muse_spark_ray.spec.sweep import SweepSpec

SECONDS_BETWEEN_FRONTS = 2.0


class Progress:
    """Shows a sweep while it runs.

    Args:
        mode: auto, rich, plain or none.
        spec: The sweep.
    """

    def __init__(self, mode: Mode | str, spec: SweepSpec) -> None:
        self._view = LiveView.choose(console(stderr=True), mode)  # type: ignore[arg-type]
        self._spec = spec
        self._front_at = 0.0

    def tick(self, engine: Engine) -> None:
        """Show what is new."""
        for news in engine.news():
            self._view.event(line_of(news))
        if time.monotonic() - self._front_at > SECONDS_BETWEEN_FRONTS:
            self._front, self._front_at = engine.current_front(), time.monotonic()
        self._view.update(self._snapshot(engine))

    def close(self) -> None:
        """End the display."""
        self._view.close()

    def _snapshot(self, engine: Engine) -> Snapshot:
        spent, budget, running = engine.spent(), self._spec.budget, engine.running()
        done = spent.finished + spent.failed
        limits = [
            ("trials", float(done), budget.trials, "trials"),
            ("spend", spent.cost_usd or 0.0, budget.cost_usd, "usd"),
            ("GPU-hours", spent.gpu_hours, budget.gpu_hours, "h"),
            ("wall time", spent.wall_seconds, budget.wall_seconds, "s"),
        ]
        return Snapshot(
            name=self._spec.name,
            elapsed_seconds=spent.wall_seconds,
            n_finished=spent.finished,
            n_running=len(running),
            n_failed=spent.failed,
            n_total=budget.trials or done + len(running),
            spend_usd=spent.cost_usd or 0.0,
            front=self._front,
            objectives=dict(self._spec.objectives),
            budget=tuple((label, used, limit, unit) for label, used, limit, unit in limits if limit is not None),
            running=tuple((t.name, t.epoch, t.epochs, t.metrics.get("accuracy")) for t in running),
            eta_seconds=_time_left(spent.wall_seconds, done, budget.trials),
            gangs=engine.gangs_line(),
        )


def line_of(news: News) -> str:
    """Return one line about a trial that ended or will run again."""
    if news.what == "failed":
        return f"{news.trial} failed: {news.reason}"
    if news.what == "again":
        return f"{news.trial} runs again: {news.reason}"
    accuracy, cost = news.metrics.get("accuracy"), news.metrics.get("cost_usd")
    parts = [f"{news.trial} {news.what} after {news.epoch} epochs"]
    parts += [f"accuracy {accuracy:.4f}"] if accuracy is not None else []
    parts += [money(cost)] if cost is not None else []
    return ", ".join(parts)


def _time_left(elapsed: float, done: int, total: int | None) -> float | None:
    """Extrapolate from the trials done; nothing is promised before a few of them are."""
    if total is None or done < 3 or done >= total:
        return None
    return elapsed / done * (total - done)

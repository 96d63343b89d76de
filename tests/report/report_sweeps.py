"""Sweeps held in memory, with the face that reports read: no files, no clocks."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from muse_spark_ray.pareto import Direction, front, hypervolume, reference_point

USD_PER_CORE_SECOND = 0.05 / 3600
POINT_COLUMNS = ["trial", "epoch", "accuracy", "cost_usd", "gpu_hours", "cpu_core_hours", "hours", "state"]


@dataclass
class TableSweep:
    """A sweep given by its tables."""

    name: str
    points_table: pd.DataFrame
    trials_table: pd.DataFrame
    objectives: dict[str, Direction] = field(default_factory=lambda: {"accuracy": "max", "cost_usd": "min"})
    seconds_by_phase: dict[str, float] = field(default_factory=dict)

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": self.name, "task": {"kind": "digits"}, "objectives": dict(self.objectives)}

    def points(self) -> pd.DataFrame:
        return self.points_table

    def front(self) -> pd.DataFrame:
        return front(self.points_table, self.objectives)

    def trials(self) -> pd.DataFrame:
        return self.trials_table

    def epochs(self) -> pd.DataFrame:
        ends = 1000.0 * self.points_table.groupby("trial").ngroup() + self.points_table["hours"] * 3600
        return self.points_table[["trial", "epoch"]].assign(end=ends)

    def config_of(self, trial: str) -> dict[str, Any]:
        row = self.trials_table[self.trials_table["trial"] == trial].iloc[0]
        return dict(json.loads(row["config"]))

    def settings(self) -> dict[str, dict[str, Any]]:
        return {row.trial: json.loads(row.config) for row in self.trials_table.itertuples()}

    def totals(self) -> SimpleNamespace:
        usd = {phase: seconds * USD_PER_CORE_SECOND for phase, seconds in self.seconds_by_phase.items()}
        return SimpleNamespace(seconds_by_phase=self.seconds_by_phase, usd_by_phase=usd, usd=sum(usd.values()))

    def reference(self) -> dict[str, float]:
        return reference_point(self.points_table, self.objectives)

    def hypervolume(self) -> float:
        reference = self.reference()
        return hypervolume(self.points_table, self.objectives, reference) if reference else 0.0

    def status(self) -> dict[str, Any]:
        seconds = sum(self.seconds_by_phase.values())
        spend = {"usd": seconds * USD_PER_CORE_SECOND, "gpu_hours": 0.0, "cpu_core_hours": seconds / 3600}
        states = self.trials_table["state"].value_counts().to_dict()
        return {
            "state": "finished",
            "trials": {name: int(states.get(name, 0)) for name in ("finished", "running", "failed", "pending")},
            "spend": {**spend, "wall_seconds": seconds * 0.55},
            "budget": {"trials": 24, "cost_usd": 0.005},
        }


def digits_sweep(*, name: str = "digits", n_trials: int = 24, n_failed: int = 2) -> TableSweep:
    """Trials of 12 epochs with a trade-off: wider networks end higher and cost more; the last ones fail."""
    rng = np.random.default_rng(0)
    points, trials = [], []
    for number in range(n_trials):
        trial, is_failed = f"t{number:03d}", number >= n_trials - n_failed
        width = int(2 ** rng.integers(3, 9))
        lr = float(10 ** rng.uniform(-3.5, -0.5))
        config: dict[str, Any] = {"model": {"width": width}, "epochs": 12, "optimizer": {"name": "sgd", "lr": lr}}
        if number % 3 == 0:
            config["optimizer"] = {"name": "adamw", "lr": lr, "weight_decay": float(10 ** rng.uniform(-5, -2))}
        config["batch_size"] = int(rng.choice([32, 64, 128, 256]))
        text = json.dumps(config)
        error = "loss was NaN in 20 steps in a row; lower optimizer.lr" if is_failed else None
        trials.append({"trial": trial, "state": "failed" if is_failed else "finished", "config": text, "error": error})
        top = 0.985 - 0.16 / math.log2(width) ** 1.6 - 0.03 * (math.log10(lr) + 1.9) ** 2
        seconds = 0.25 + width / 90 + 30 / config["batch_size"]
        for epoch in range(1, 4 if is_failed else 13):
            accuracy = 0.1 + (top - 0.1) * (1 - math.exp(-epoch * (0.5 + 8 * lr**0.5))) + rng.normal(0, 0.003)
            spent = seconds * epoch * (1 + 0.02 * rng.random())
            row = [trial, epoch, accuracy, spent * USD_PER_CORE_SECOND, 0.0, spent / 3600, spent / 3600]
            points.append([*row, trials[-1]["state"]])
    table = pd.DataFrame(points, columns=POINT_COLUMNS)
    spent = float(table.groupby("trial")["hours"].max().sum() * 3600)
    shares = {"train": 0.79, "evaluate": 0.09, "data_wait": 0.02, "checkpoint": 0.03, "start": 0.07, "idle": 0.04}
    phases = {phase: share * spent for phase, share in shares.items()}
    return TableSweep(name, table, pd.DataFrame(trials, dtype=object), seconds_by_phase=phases)


def empty_sweep(*, n_failed: int = 0) -> TableSweep:
    """A sweep without a single point, in which `n_failed` trials were started and failed."""
    rows = [(f"t{number:03d}", "failed", '{"lr": 0.1}', f"data file {number} is missing") for number in range(n_failed)]
    trials = pd.DataFrame(rows, columns=["trial", "state", "config", "error"])
    points = pd.DataFrame({name: pd.Series(dtype=float) for name in POINT_COLUMNS}).astype({"trial": str})
    return TableSweep("empty", points, trials)

"""SweepSpec: what is searched, against which objectives, with which money and machines."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from muse_spark_ray.spec.metrics import METRICS
from muse_spark_ray.spec.paths import with_value
from muse_spark_ray.spec.search import Parameter
from muse_spark_ray.spec.task import STRICT, TaskConfig
from muse_spark_ray.spec.train import train_config_class

TASK_METRICS = ("accuracy", "val_loss", "train_loss", "samples_per_second")
COSTS = ("cost_usd", "gpu_hours", "cpu_core_hours", "hours")
NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"
Direction = Literal["max", "min"]


class Budget(BaseModel):
    """Where the sweep ends; whichever limit is reached first."""

    model_config = STRICT

    trials: int | None = Field(None, ge=1, description="trials in all, over all resumptions")
    cost_usd: float | None = Field(None, gt=0, description="money for everything the sweep holds")
    gpu_hours: float | None = Field(None, gt=0, description="GPU-hours")
    wall_seconds: float | None = Field(None, gt=0, description="wall time; it stands still while the sweep is down")
    max_failed: int | None = Field(None, ge=1, description="give up after so many failed trials")

    @model_validator(mode="after")
    def _ends_somewhere(self) -> Budget:
        if all(limit is None for limit in (self.trials, self.cost_usd, self.gpu_hours, self.wall_seconds)):
            raise ValueError("no limit is set; give at least one of trials, cost_usd, gpu_hours, wall_seconds")
        return self


class Resources(BaseModel):
    """What one trial holds, and how many run at once."""

    model_config = STRICT

    workers: int = Field(1, ge=1, description="workers of one trial")
    cpus_per_worker: int = Field(1, ge=1, description="CPU cores of one worker")
    gpus_per_worker: float = Field(0, ge=0, description="GPUs of one worker; a fraction shares a GPU")
    concurrency: int | None = Field(None, ge=1, description="trials at the same time; default: as many as fit")
    max_retries: int = Field(3, ge=0, description="times a trial is run again after its worker or node died")


class SweepSpec(BaseModel):
    """A whole sweep as written in its YAML file."""

    model_config = STRICT

    name: str = Field(description="name of the sweep: letters, digits, _ and -, at most 64")
    task: TaskConfig = Field(default_factory=TaskConfig, description="data, model and metric")
    train: dict[str, Any] = Field(default_factory=dict, description="training config that all trials share")
    search: dict[str, Parameter] = Field(description="dotted path of the training config: where its values come from")
    objectives: dict[str, Direction] = Field(
        default={"accuracy": "max", "cost_usd": "min"}, description="metric: max or min"
    )
    reference: dict[str, float] | None = Field(
        None, description="reference point of the hypervolume; default: the worst seen"
    )
    budget: Budget = Field(description="where the sweep ends")
    resources: Resources = Field(default_factory=Resources, description="workers, cores, GPUs, concurrency")
    sampler: Literal["tpe", "nsga2", "random", "grid"] = Field(
        "tpe", description="how configs are drawn; grid tries all, one after the other"
    )
    seed: int = Field(0, ge=0, description="seed of the sampler and base of the trials' seeds")
    store: str | None = Field(
        None, description="folder or URI (s3://, gs://) for results; default: the user's data folder"
    )
    prices: str | None = Field(None, description="YAML file with prices of your own")

    @field_validator("name")
    @classmethod
    def _name_is_a_plain_word(cls, value: str) -> str:
        if not re.fullmatch(NAME_PATTERN, value):
            raise ValueError("use 1 to 64 letters, digits, _ or -")
        return value

    @field_validator("search")
    @classmethod
    def _something_is_searched(cls, value: dict[str, Parameter]) -> dict[str, Parameter]:
        if not value:
            raise ValueError(
                "the search space is empty; name at least one path, for example optimizer.lr: {low: 0.001, high: 0.3, log: true}"
            )
        return value

    @field_validator("objectives")
    @classmethod
    def _objectives_are_known(cls, value: dict[str, Direction]) -> dict[str, Direction]:
        if not value:
            raise ValueError("no objective is given; name at least one, for example accuracy: max")
        known = (*dict.fromkeys((*TASK_METRICS, *METRICS)), *COSTS)
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                guess = f" Did you mean {near[0]}?" if near else ""
                raise ValueError(f"{name!r} is not a metric that this task reports.{guess} Allowed: {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _reference_names_objectives(self) -> SweepSpec:
        if self.reference is not None and set(self.reference) != set(self.objectives):
            raise ValueError(
                f"reference names {sorted(self.reference)}, the objectives are {sorted(self.objectives)}; they must agree"
            )
        return self

    @model_validator(mode="after")
    def _a_grid_is_finite(self) -> SweepSpec:
        endless = [path for path, parameter in self.search.items() if parameter.all_values() is None]
        if self.sampler == "grid" and endless:
            raise ValueError(
                f"sampler: grid needs a step or a list for each parameter; {', '.join(endless)} has a continuum of values"
            )
        return self

    @property
    def prices_path(self) -> Path | None:
        """The user's price file, if there is one."""
        return None if self.prices is None else Path(self.prices).expanduser()

    def _task_with_objectives(self) -> dict[str, Any]:
        """Return the task's settings with the objectives among the metrics that are reported."""
        task = self.task.model_dump(exclude_unset=True)
        told = (*TASK_METRICS, *self.task.all_metrics)
        more = [name for name in self.objectives if name in METRICS and name not in told]
        return {**task, "metrics": [*self.task.metrics, *more]} if more else task

    def trial_config(self, values: dict[str, Any], *, seed: int | None = None) -> Any:
        """Build one trial's training config.

        Args:
            values: {dotted path: value} as drawn.
            seed: Seed of the trial; None keeps that of `train`.

        Returns:
            A validated TrainConfig.

        Raises:
            pydantic.ValidationError: If the values do not make a valid config.
        """
        plain = {**self.train, "task": self._task_with_objectives()}
        for path, value in values.items():
            plain = with_value(plain, path, value)
        if seed is not None:
            plain["seed"] = seed
        return train_config_class().model_validate(plain)

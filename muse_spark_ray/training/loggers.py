"""Where a training's numbers go while it runs: a JSON-lines file always, TensorBoard, MLflow, W&B on request."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.train import LoggingConfig

logger = logging.getLogger(__name__)


class EpochLogger(Protocol):
    """Takes the numbers of each epoch."""

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Write the numbers of an epoch, from 1."""

    def close(self) -> None:
        """Write what is not written yet."""


class JsonLines:
    """One JSON object an epoch, appended to a file; a resumed training goes on with it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"epoch": epoch, **values}, allow_nan=False) + "\n")

    def close(self) -> None:
        """Nothing is left to write."""


class TensorBoard:
    """Scalars for TensorBoard, written by tensorboardX."""

    def __init__(self, folder: str) -> None:
        self._writer = _needed("tensorboardX", "tensorboard").SummaryWriter(folder)

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Metrics and config as one run of an MLflow tracking server or folder."""

    def __init__(self, uri: str, experiment: str, config: Mapping[str, Any]) -> None:
        self._mlflow = _needed("mlflow", "mlflow")
        self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment(experiment)
        self._mlflow.start_run()
        self._mlflow.log_dict(dict(config), "config.json")

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=epoch)

    def close(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    """Metrics and config as one W&B run; `WANDB_MODE=offline` keeps it on this machine."""

    def __init__(self, project: str, config: Mapping[str, Any]) -> None:
        self._run = _needed("wandb", "wandb").init(project=project, config=dict(config))

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=epoch)

    def close(self) -> None:
        self._run.finish()


class Loggers:
    """All loggers that a config asks for, as one. What one of them cannot write does not stop the training.

    Args:
        config: Which ones.
        folder: For the JSON-lines file; None writes none.
        about: The training config as plain data.
    """

    def __init__(self, config: LoggingConfig, *, folder: Path | None, about: Mapping[str, Any]) -> None:
        makers: list[Callable[[], EpochLogger]] = []
        if folder is not None:
            makers.append(lambda: JsonLines(folder / "log.jsonl"))
        if config.tensorboard is not None:
            makers.append(lambda: TensorBoard(str(config.tensorboard)))
        if config.mlflow is not None:
            makers.append(lambda: MLflow(str(config.mlflow), config.experiment, about))
        if config.wandb is not None:
            makers.append(lambda: WeightsAndBiases(str(config.wandb), about))
        self._loggers = [make() for make in makers]

    def log(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers of an epoch; what is not a finite number is left out."""
        is_number = {n: v for n, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)}
        self._each(lambda one: one.log(epoch, is_number))

    def close(self) -> None:
        """Write what is not written yet."""
        self._each(lambda one: one.close())

    def _each(self, act: Callable[[EpochLogger], None]) -> None:
        for one in list(self._loggers):
            try:
                act(one)
            except Exception as error:  # a server that is away, a full disk: the training is worth more
                logger.warning("%s is left out from now on: %s: %s", type(one).__name__, type(error).__name__, error)
                self._loggers.remove(one)


def _needed(package: str, extra: str) -> Any:
    try:
        return __import__(package)
    except ImportError as error:
        raise ConfigError(
            f"logging.{extra} needs the package {package}, which is not installed.",
            hint=f"pip install 'muse-spark-ray[{extra}]'",
        ) from error

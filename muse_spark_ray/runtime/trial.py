"""Runs one trial on a gang: config in, an epoch's metrics and spans out after each epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muse_spark_ray.cost import Phase, PhaseClock, Span
from muse_spark_ray.data import DataConfig, StreamPart, Task, load_task
from muse_spark_ray.errors import TrialError
from muse_spark_ray.runtime.lease import Emit, Job, WorkerContext
from muse_spark_ray.runtime.telemetry import GangTelemetry
from muse_spark_ray.spec.train import train_config_class
from muse_spark_ray.training.build import build_model_for
from muse_spark_ray.training.evaluate import EVALUATION_BATCH
from muse_spark_ray.training.records import EpochRecord, Metrics
from muse_spark_ray.training.trainer import MuseSparkTrainer

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import TrainConfig

RUNNER = "muse_spark_ray.runtime.trial:run_trial"


def run_trial(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any]:
    """Train a job's config; called on every rank of a gang at once.

    `job.config` is a TrainConfig as JSON. `job.extra` may hold `checkpoint`, the settings of where to save, which are
    no part of the trial's identity. A trial that finds a checkpoint there goes on from it.

    Returns:
        How it ended: `state`, the number of epochs, and the spans since the last epoch.

    Raises:
        TrialError: If the training diverged, with the diagnosis.
    """
    clock = PhaseClock()
    clock.enter(Phase.start)
    config = _config(job, context)
    telemetry = GangTelemetry(context)
    trainer = build_trainer(config, task_of(config.task.data, context), clock=clock)
    if trainer.history:
        emit(restored_payload(trainer.history, clock.drain(), context))
    report = trainer.fit(on_epoch=lambda record: emit(payload(record, context, telemetry.metrics())))
    if report["state"] == "diverged":
        emit({"spans": spans(clock.drain()), "resources": held(context)})
        raise TrialError(report["diagnosis"])
    return {
        "state": report["state"],
        "epochs": report["epochs"],
        "spans": spans(clock.drain()),
        "resources": held(context),
        "checkpoint": trainer.newest_checkpoint,
    }


def build_trainer(config: TrainConfig, task: Task[Any], *, clock: PhaseClock | None = None) -> MuseSparkTrainer:
    """Build the trainer of a config for its data."""
    model = build_model_for(config, task)
    about = {"input_shape": list(task.shape), "outputs": task.classes or 1, **task.about}
    train, validation = task.train, task.validation
    if isinstance(train, StreamPart):
        workers = config.loader.workers if isinstance(config.loader.workers, int) else 0
        train = train.loader(config.batch_size, seed=config.seed, workers=workers)
        validation = validation.loader(EVALUATION_BATCH, shuffle=False, workers=workers)
    return MuseSparkTrainer(model, None, None, train, validation, config, clock=clock, about=about)


def task_of(data: DataConfig, context: WorkerContext) -> Task[Any]:
    """Return the data set, read once for all trials of this process."""
    key = "data:" + data.model_dump_json()
    if key not in context.cache:
        context.cache[key] = load_task(data)
    task: Task[Any] = context.cache[key]
    return task


def payload(record: EpochRecord, context: WorkerContext, gpu: Mapping[str, float | None]) -> dict[str, Any]:
    """Return an epoch's record as plain data, with what the gang's GPUs did and what the gang held."""
    return {
        "epoch": record.epoch,
        "metrics": {**record.metrics, **gpu},
        "spans": spans(record.spans),
        "ended": record.ended,
        "checkpoint": record.checkpoint,
        "resources": held(context),
    }


def restored_payload(history: Sequence[Metrics], parts: Sequence[Span], context: WorkerContext) -> dict[str, Any]:
    """Return the epochs that a checkpoint brought back, as plain data.

    The ledger may not know the last of them: a kill can come between an epoch's checkpoint and its report.
    """
    return {"restored": list(history), "spans": spans(parts), "ended": parts[-1].end, "resources": held(context)}


def spans(parts: Sequence[Span]) -> list[tuple[str, float, float]]:
    """Return spans as plain (phase, start, end)."""
    return [(str(span.phase), span.start, span.end) for span in parts]


def held(context: WorkerContext) -> dict[str, float]:
    """Return what all workers of the gang hold together."""
    return {name: amount * context.world_size for name, amount in context.resources.items()}


def _config(job: Job, context: WorkerContext) -> TrainConfig:
    plain = json.loads(job.config)
    extra = json.loads(job.extra)
    plain["device"] = context.device if plain.get("device", "auto") == "auto" else plain["device"]
    if "checkpoint" in extra:
        plain["checkpoint"] = {**plain.get("checkpoint", {}), **extra["checkpoint"]}
    return train_config_class().model_validate(plain)

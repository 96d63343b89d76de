"""`muse-spark train`: one training in this process, told epoch by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muse_spark_ray.cli.output import note
from muse_spark_ray.data import load_task
from muse_spark_ray.report.formats import duration
from muse_spark_ray.runtime.trial import build_trainer
from muse_spark_ray.training.distributed import join_world

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import TrainConfig
    from muse_spark_ray.training.records import EpochRecord


def run_training(config: TrainConfig) -> dict[str, Any] | None:
    """Train a config and tell of each epoch on stderr.

    Returns:
        The report; None on ranks other than the first.
    """
    world = join_world(config.device)
    trainer = build_trainer(config, load_task(config.task.data))
    resumed = trainer.get_training_report()["resumed_from"]
    if world.is_first and resumed is not None:
        note(f"resumed after epoch {resumed}")
    last = config.last_epoch

    def tell(record: EpochRecord) -> bool:
        if world.is_first:
            note(epoch_line(record, last))
        return False

    report = trainer.fit(on_epoch=tell)
    if not world.is_first:
        return None
    if report["diagnosis"]:
        note(f"error: {report['diagnosis']}")
    for found in report["observations"]:
        note(f"{found['level']}: {found['check']}: {found['evidence']}. Try: {found['advice']}.")
    note(closing_line(report))
    if config.checkpoint.save_dir is not None:
        note(f"report:  {config.checkpoint.save_dir}/report.json")
    return report


def epoch_line(record: EpochRecord, epochs: int) -> str:
    """Return one line about an epoch."""
    metrics = record.metrics
    parts = [f"epoch {record.epoch}/{epochs}", f"train loss {metrics['train_loss']:.4f}"]
    if metrics["val_loss"] is not None:
        parts.append(f"val loss {metrics['val_loss']:.4f}")
    if metrics["accuracy"] is not None:
        parts.append(f"accuracy {metrics['accuracy']:.4f}")
    if metrics["samples_per_second"]:
        parts.append(f"{metrics['samples_per_second']:,.0f} samples/s")
    return "  ".join(parts)


def closing_line(report: dict[str, Any]) -> str:
    """Return one line about the whole training."""
    best = (
        f"best accuracy {report['best_val_acc']:.2f} % in epoch {report['best_epoch']}, "
        if report["best_val_acc"] is not None
        else ""
    )
    return f"{report['state']}: {best}{report['epochs']} epochs, {report['updates']} updates, {duration(report['total_time'])}"

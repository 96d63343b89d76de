"""What a checkpoint holds, and how a training is put back into it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch.distributed as dist

from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.training.best import Best
from muse_spark_ray.training.loop import Run
from muse_spark_ray.training.records import Metrics
from muse_spark_ray.training.rng import load_rng_state, rng_state

logger = logging.getLogger(__name__)


def snapshot(run: Run, *, best: Best, history: list[Metrics], seconds: float) -> dict[str, Any]:
    """Collect all that continues a training exactly; every rank must call it.

    Returns:
        Tensors and plain containers: model, optimizer, schedule, loss scaler, strategies, random streams of all
        ranks, counters, the best epoch and the metric history.
    """
    return {
        "model": dict(run.module.state_dict()),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "precision": run.precision.state_dict(),
        "strategies": run.stack.state_dict(),
        "rng": _gather_rng(run),
        "counters": {
            "epoch": run.epoch,
            "updates": run.updates,
            "skipped_steps": run.skipped_steps,
            "bad_steps": run.bad_steps,
            "micro_batch": run.micro_batch,
        },
        "best": best.state_dict(),
        "history": history,
        "seconds": seconds,
    }


def restore(run: Run, best: Best, state: dict[str, Any], *, where: Path) -> tuple[list[Metrics], float, bool]:
    """Put a training back into a saved state.

    Returns:
        (metric history, seconds of training so far, whether the training goes on exactly as if never stopped).

    Raises:
        ConfigError: If the model or the strategies are not those that were saved.
    """
    run.stack.rebuild_model(state["strategies"])
    _load_model(run, state["model"], where)
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    run.precision.load_state_dict(state["precision"])
    run.stack.load_state_dict(state["strategies"])
    run.look_again()
    for name, value in state["counters"].items():
        setattr(run, name, value)
    best.load_state_dict(state["best"])
    return list(state["history"]), float(state["seconds"]), _load_rng(run, state.get("rng"), where)


def _load_model(run: Run, weights: dict[str, Any], where: Path) -> None:
    try:
        run.module.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(
            f"checkpoint {where} does not fit the model: {str(error).splitlines()[-1].strip()}",
            hint="resume with the model that was saved, choose another checkpoint.save_dir, or set checkpoint.resume: never",
        ) from error


def _load_rng(run: Run, streams: Any, where: Path) -> bool:
    """Restore this rank's random streams; return False if there are those of another number of ranks.

    Raises:
        DataError: If they are damaged.
    """
    if isinstance(streams, list) and streams and len(streams) != run.world.size:
        logger.warning(
            "checkpoint %s was written by %d rank(s), now there are %d: random streams start anew, so the training does "
            "not go on bit for bit.",
            where,
            len(streams),
            run.world.size,
        )
        return False
    try:
        load_rng_state(streams[run.world.rank])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise DataError(
            f"checkpoint {where} has no usable random streams ({type(error).__name__}: {error}); a training resumed from it "
            "would not repeat what it would have done.",
            hint="set checkpoint.weights_from to this folder and checkpoint.resume: never to start anew from its weights",
        ) from error
    return True


def _gather_rng(run: Run) -> list[dict[str, Any]]:
    own = rng_state()
    if run.world.size == 1:
        return [own]
    streams: list[Any] = [None] * run.world.size
    dist.all_gather_object(streams, own)
    return streams

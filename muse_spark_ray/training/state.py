"""What a checkpoint holds, and how a training is put back into it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.strategy.rng import load_rng_state, rng_state
from muse_spark_ray.training.best import Best
from muse_spark_ray.training.loop import Run
from muse_spark_ray.training.progress import Progress
from muse_spark_ray.training.records import Metrics
from muse_spark_ray.training.resize import follow_world

logger = logging.getLogger(__name__)
_COUNTERS = ("epoch", "updates", "skipped_steps", "bad_steps", "bad_in_a_row", "micro_batch")


@dataclass(frozen=True, slots=True)
class Restored:
    """What a saved state says of the training so far.

    Args:
        history: Metrics of the epochs done.
        seconds: Training time.
        is_exact: The rest will be bit for bit what it would have been.
        resized: How it goes on with another number of ranks; None with the same.
    """

    history: list[Metrics]
    seconds: float
    is_exact: bool
    resized: dict[str, Any] | None = None


def snapshot(run: Run, *, best: Best, history: list[Metrics], seconds: float) -> dict[str, Any]:
    """Collect all that continues a training exactly; every rank must call it, between two windows or two epochs.

    Returns:
        Tensors and plain containers: model, optimizer, schedule, loss scaler, strategies, counters, the epoch that is
        under way, what each rank has of its own (random streams, where its loader stands), the world, the best epoch
        and the metric history.
    """
    p = run.progress
    own = {"rng": rng_state()}
    if p is not None:
        own |= p.own_state(run.source.where(p.position))
    return {
        "model": dict(run.module.state_dict()),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "precision": run.precision.state_dict(),
        "strategies": run.stack.state_dict(),
        "progress": p.common_state() if p is not None else None,
        "ranks": _gather(own, run),
        "world": {"size": run.world.size, "window": run.source.window_size(0), "keeps_window": run.keeps_window},
        "counters": {name: getattr(run, name) for name in _COUNTERS},
        "best": best.state_dict(),
        "history": history,
        "seconds": seconds,
    }


def restore(run: Run, best: Best, state: dict[str, Any], *, where: Path, resize: str = "keep_batch") -> Restored:
    """Put a training back into a saved state.

    Args:
        run: A new training of the same config.
        best: Of that training.
        state: As `snapshot` returned it.
        where: Where it was read, for messages.
        resize: With another number of ranks: `keep_batch` or `scale_lr`.

    Raises:
        ConfigError: If the model or the strategies are not those that were saved.
        DataError: If the random streams are damaged.
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
    ranks = state["ranks"] if "ranks" in state else [{"rng": own} for own in state.get("rng") or ()]
    if state.get("progress") is not None:
        run.progress = Progress.from_state(state["progress"], ranks, rank=run.world.rank, size=run.world.size)
    resized = follow_world(run, state["world"], rule=resize) if "world" in state else None
    is_exact = _load_rng(run, ranks, where)
    return Restored(list(state["history"]), float(state["seconds"]), is_exact, resized)


def _load_model(run: Run, weights: dict[str, Any], where: Path) -> None:
    try:
        run.module.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(
            f"checkpoint {where} does not fit the model: {str(error).splitlines()[-1].strip()}",
            hint="resume with the model that was saved, choose another checkpoint.save_dir, or set checkpoint.resume: never",
        ) from error


def _load_rng(run: Run, ranks: list[dict[str, Any]], where: Path) -> bool:
    """Restore this rank's random streams; return False if there are those of another number of ranks.

    Raises:
        DataError: If they are damaged.
    """
    if ranks and len(ranks) != run.world.size:
        logger.warning(
            "checkpoint %s was written by %d rank(s), now there are %d: random streams start anew, so the training does "
            "not go on bit for bit.",
            where,
            len(ranks),
            run.world.size,
        )
        return False
    try:
        load_rng_state(ranks[run.world.rank]["rng"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise DataError(
            f"checkpoint {where} has no usable random streams ({type(error).__name__}: {error}); a training resumed from it "
            "would not repeat what it would have done.",
            hint="set checkpoint.weights_from to this folder and checkpoint.resume: never to start anew from its weights",
        ) from error
    return True


def _gather(own: dict[str, Any], run: Run) -> list[dict[str, Any]]:
    if run.world.size == 1:
        return [own]
    parts: list[Any] = [None] * run.world.size
    dist.all_gather_object(parts, own)
    return parts

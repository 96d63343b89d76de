"""When a training's state is saved, where it goes on from, and what a checkpoint says of its origin."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from muse_spark_ray.cost import Phase
from muse_spark_ray.training.best import Best
from muse_spark_ray.training.checkpoint import Checkpoints, about_checkpoint
from muse_spark_ray.training.loop import Run
from muse_spark_ray.training.provenance import code_version, environment
from muse_spark_ray.training.records import Metrics
from muse_spark_ray.training.saving import Saver
from muse_spark_ray.training.state import restore, snapshot
from muse_spark_ray.training.weights import load_where_it_fits

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import TrainConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a training goes on.

    Args:
        epoch: Epochs done.
        history: Their metrics.
        seconds: Their training time.
        is_exact: The rest will be bit for bit what it would have been.
    """

    epoch: int
    history: list[Metrics]
    seconds: float
    is_exact: bool


class Keeper:
    """Saves and restores one training, as its config says; without `save_dir` it does nothing.

    Args:
        config: Of the training.
        higher_is_better: Direction of the metric that says which checkpoint is best.
        about: Of the user's, kept in every checkpoint.
    """

    def __init__(self, config: TrainConfig, *, higher_is_better: bool, about: Mapping[str, Any]) -> None:
        c = self._config = config.checkpoint
        self._origin = {"config": config.model_dump(mode="json"), **about}
        self._saver = Saver(in_background=c.in_background)
        self._last_save, self._saved_epoch = time.monotonic(), 0
        self._checkpoints = (
            None
            if c.save_dir is None
            else Checkpoints(c.save_dir, keep_last=c.keep_last, higher_is_better=higher_is_better)
        )

    @property
    def folder(self) -> Path | None:
        """Where checkpoints go."""
        return None if self._checkpoints is None else self._checkpoints.folder

    @property
    def newest(self) -> str | None:
        """Folder of the newest complete checkpoint, None without one."""
        saved = self._checkpoints.saved() if self._checkpoints is not None else []
        return str(saved[-1].path) if saved else None

    def resume(self, run: Run, best: Best) -> Resumed | None:
        """Put a training where its newest good checkpoint left it; without one, load the weights it is to begin with.

        Raises:
            ConfigError: If model or strategies are not those that were saved.
            DataError: If the checkpoint's random streams are damaged.
        """
        goes_on = self._checkpoints is not None and self._config.resume == "auto"
        found = self._checkpoints.load_newest() if self._checkpoints is not None and goes_on else None
        if found is None:
            if self._config.weights_from is not None:
                load_where_it_fits(run.module, self._config.weights_from)
            return None
        saved, state = found
        history, seconds, is_exact = restore(run, best, state, where=saved.path)
        self._saved_epoch = saved.epoch
        logger.info("resumed from %s: %d epochs are done", saved.path, saved.epoch)
        _note_other_code(saved.path)
        return Resumed(saved.epoch, history, seconds, is_exact)

    def save_if_due(self, run: Run, best: Best, history: list[Metrics], *, seconds: float, is_last: bool) -> str | None:
        """Save at the end of an epoch if it is time to; every rank must call it.

        Returns:
            On the first rank, the folder of the newest checkpoint that is whole, if one became so.
        """
        frequency = self._config.save_freq
        if self._checkpoints is None or self._saved_epoch == run.epoch:
            return None
        waited = time.monotonic() - self._last_save
        is_due = is_last or frequency == "epoch" or (not isinstance(frequency, str) and waited >= frequency)
        # Ranks' clocks differ; the first one decides, since a snapshot needs all of them.
        if not _agree(is_due, run):
            return None
        with run.clock.phase(Phase.checkpoint):
            state = snapshot(run, best=best, history=history, seconds=seconds)
            self._last_save, self._saved_epoch = time.monotonic(), run.epoch
            if not run.world.is_first:
                return None
            about = {**self._origin, "code": code_version(), "environment": environment()}
            metric = history[-1].get(best.metric)
            write = partial(self._checkpoints.save, epoch=run.epoch, metric=metric, about=about)
            done = self._saver.save(write, state)
            if is_last:
                done = self._saver.wait() or done
            return None if done is None else str(done)

    def finish(self) -> None:
        """Wait until all that was begun is written."""
        self._saver.wait()


def _note_other_code(path: Path) -> None:
    before, now = about_checkpoint(path).get("code", {}).get("commit"), code_version()["commit"]
    if before != now and None not in (before, now):
        logger.warning("checkpoint %s was written by commit %s, this is %s.", path, before, now)


def _agree(flag: bool, run: Run) -> bool:
    if run.world.size == 1:
        return flag
    answer = torch.tensor([int(flag)], device=run.world.device)
    torch.distributed.broadcast(answer, 0)
    return bool(answer.item())

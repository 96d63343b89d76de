"""Keeps one training: saves it when it is time to, puts it back, and lets it end when it is told to."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muse_spark_ray.cost import Phase
from muse_spark_ray.errors import ConfigError, PreemptedError
from muse_spark_ray.training.best import Best
from muse_spark_ray.training.cadence import Cadence
from muse_spark_ray.training.checkpoint import Checkpoints, about_checkpoint
from muse_spark_ray.training.claim import Claim
from muse_spark_ray.training.distributed import any_rank
from muse_spark_ray.training.loop import Run
from muse_spark_ray.training.meeting import Meeting, Wish
from muse_spark_ray.training.notice import PreemptionNotices
from muse_spark_ray.training.provenance import code_version, environment
from muse_spark_ray.training.records import Metrics
from muse_spark_ray.training.saving import Saver
from muse_spark_ray.training.state import Restored, restore, snapshot
from muse_spark_ray.training.weights import load_where_it_fits

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import TrainConfig

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Story:
    """What a training has to tell so far.

    Args:
        best: Its best epoch.
        history: Metrics of the epochs done.
        seconds: Training time of earlier calls and processes.
        began: When the present call began, by the monotonic clock; None between calls.
    """

    best: Best
    history: list[Metrics]
    seconds: float = 0.0
    began: float | None = None

    @property
    def total_seconds(self) -> float:
        """Training time until now."""
        return self.seconds + (0.0 if self.began is None else time.monotonic() - self.began)


class Keeper:
    """Saves and restores one training, as its config says; without `save_dir` it only hears when to end.

    Args:
        config: Of the training.
        run: The training.
        story: What it has to tell.
        notices: Where word of a coming end arrives.
        about: Of the user's, kept in every checkpoint.
    """

    def __init__(
        self,
        config: TrainConfig,
        run: Run,
        story: Story,
        *,
        notices: PreemptionNotices,
        about: Mapping[str, Any],
    ) -> None:
        c = self._config = config.checkpoint
        self._run, self._story, self._notices = run, story, notices
        self._origin = {"config": config.model_dump(mode="json"), **about}
        self._saver = Saver(in_background=c.in_background)
        self._cadence, self._meeting = Cadence(c), Meeting(run.world)
        self._saved_at = (0, 0)
        self._failed_saves, self._last_failure = 0, ""
        self._resized: dict[str, Any] | None = None
        self._checkpoints = self._claim = None
        self._known: tuple[int, int] | None = None
        if c.save_dir is not None:
            self._checkpoints = Checkpoints(
                c.save_dir, keep_last=c.keep_last, higher_is_better=story.best.higher_is_better
            )
            self._claim = Claim(self._checkpoints.folder)
            self._known = self._newest_order()
        run.between = self._between_windows

    @property
    def folder(self) -> Path | None:
        """Where checkpoints go."""
        return None if self._checkpoints is None else self._checkpoints.folder

    @property
    def newest(self) -> str | None:
        """Folder of the newest complete checkpoint, None without one."""
        saved = self._checkpoints.saved() if self._checkpoints is not None else []
        return str(saved[-1].path) if saved else None

    def report(self) -> dict[str, Any]:
        """Return what the training report says of saving."""
        return {"failed_saves": self._failed_saves, "last_failed_save": self._last_failure, "resized": self._resized}

    def resume(self) -> Restored | None:
        """Put the training where its newest good checkpoint left it; without one, load the weights to begin with.

        Raises:
            ConfigError: If model or strategies are not those that were saved.
            DataError: If the checkpoint's random streams are damaged.
        """
        goes_on = self._checkpoints is not None and self._config.resume == "auto"
        found = self._checkpoints.load_newest() if self._checkpoints is not None and goes_on else None
        run, story = self._run, self._story
        if found is None:
            if self._config.weights_from is not None:
                load_where_it_fits(run.module, self._config.weights_from)
            return None
        saved, state = found
        restored = restore(run, story.best, state, where=saved.path, resize=self._config.resize)
        story.history[:], story.seconds = restored.history, restored.seconds
        self._saved_at, self._resized = self._now, restored.resized
        self._cadence.failures = 1 + int(state.get("failures", 0))
        logger.info("resumed from %s: %d epochs are done%s", saved.path, saved.epoch, _and_steps(saved.step))
        _note_other_code(saved.path)
        return restored

    def open(self) -> None:
        """Claim the folder for a call of `fit`; every rank must call it.

        Raises:
            ConfigError: If another training writes there, or wrote since this one looked.
        """
        self._cadence = self._cadence_anew()
        if self._claim is None:
            return
        refusal = self._refusal() if self._run.world.is_first else ""
        if any_rank(bool(refusal), self._run.world):
            self._claim.give_back()
            raise ConfigError(
                refusal or f"the first rank may not write to checkpoint.save_dir {self.folder}; see its message.",
                hint="give each training a checkpoint.save_dir of its own, or wait for the other one and start again",
            )

    def save_at_border(self, *, is_last: bool) -> str | None:
        """Save at the end of an epoch if it is time to; every rank must call it.

        Returns:
            On the first rank, the folder of the newest checkpoint that is whole, if one became so.
        """
        if self._checkpoints is None:
            return None
        is_due = self._cadence.is_due_at_border(self._story.total_seconds, is_last=is_last)
        # Ranks' clocks differ; the first one decides, since a snapshot needs all of them.
        wish = Wish.SAVE if is_due and self._run.world.is_first else Wish.NOTHING
        if self._saved_at == self._now or self._meeting.meet(wish) is Wish.NOTHING:
            return None
        return self._save(waits=is_last)

    def leave_if_told(self) -> None:
        """End the training after an epoch that a notice came in; every rank must call it.

        Raises:
            PreemptedError: If it is to end; all is saved then.
        """
        wish = Wish.LEAVE if self._notices.ask() is not None else Wish.NOTHING
        if self._meeting.meet(wish) is Wish.LEAVE:
            self._leave()

    def finish(self) -> None:
        """Wait until all that was begun is written, and let others have the folder."""
        self._settle()
        if self._claim is not None:
            self._claim.give_back()
        self._known = self._newest_order()

    def _between_windows(self) -> None:
        c, run = self._config, self._run
        if c.every_steps is not None and run.updates % c.every_steps == 0 and self._saved_at != self._now:
            self._save(waits=False)
        pace = min(1.0, self._cadence.interval(self._story.total_seconds))
        wish = self._meeting.pass_window(self._wish, seconds=pace if self._notices.heard is None else 0.0)
        if wish is Wish.LEAVE:
            self._leave()
        elif wish is Wish.SAVE:
            self._save(waits=False)

    def _wish(self) -> Wish:
        if self._notices.ask() is not None:
            return Wish.LEAVE
        is_due = self._run.world.is_first and self._cadence.is_due(self._story.total_seconds)
        return Wish.SAVE if is_due and self._checkpoints is not None else Wish.NOTHING

    def _leave(self) -> None:
        """Save what there is, and end.

        Raises:
            PreemptedError: Always.
        """
        notice = self._notices.heard
        self._save(waits=True)
        any_rank(False, self._run.world)  # the first rank writes: nobody ends, and ends it, before it has
        raise PreemptedError(
            f"told to end ({notice.reason if notice is not None else 'another rank was'}) after "
            f"{self._run.updates} updates; {self._what_is_left()}",
            hint="start the same again: it goes on where it stopped" if self._checkpoints is not None else None,
        )

    def _what_is_left(self) -> str:
        if self._checkpoints is None:
            return "nothing is saved, since checkpoint.save_dir is not set."
        return f"all is saved in {self.folder}."

    def _save(self, *, waits: bool) -> str | None:
        if self._checkpoints is None:
            return None
        run, story, began = self._run, self._story, time.monotonic()
        with run.clock.phase(Phase.checkpoint):
            if self._saved_at != self._now:
                state = snapshot(run, best=story.best, history=story.history, seconds=story.total_seconds)
                state["failures"] = self._cadence.failures
                self._saved_at = self._now
                done = self._write(state, self._checkpoints) if run.world.is_first else None
            else:
                done = None
            if waits:
                done = self._settle() or done
        self._cadence.saved(time.monotonic() - began)
        return None if done is None else str(done)

    def _write(self, state: dict[str, Any], checkpoints: Checkpoints) -> Path | None:
        run, story = self._run, self._story
        is_within = run.progress is not None
        metric = story.history[-1].get(story.best.metric) if story.history and not is_within else None
        about = {**self._origin, "code": code_version(), "environment": environment()}
        write = partial(
            checkpoints.save, epoch=run.epoch, step=run.updates if is_within else 0, metric=metric, about=about
        )
        try:
            return self._saver.save(write, state)
        except OSError as error:
            self._note_failure(error)
            return None

    def _settle(self) -> Path | None:
        """Wait for what is being written; training outlives a save that fails."""
        try:
            return self._saver.wait()
        except OSError as error:
            self._note_failure(error)
            return None

    def _note_failure(self, error: OSError) -> None:
        self._failed_saves += 1
        self._last_failure = str(error)
        newest = self.newest
        logger.warning(
            "no checkpoint could be written: %s. Training goes on; %s. Make room, or it is lost if this process ends.",
            error,
            f"the newest good one is {newest}" if newest is not None else "there is none yet",
        )

    def _refusal(self) -> str:
        """Say why this training must not write to the folder; empty if it may."""
        assert self._claim is not None
        holder = self._claim.take()
        if holder is not None:
            return f"checkpoint.save_dir {self.folder} is in use by {holder}; two trainings would overwrite each other."
        newest = self._newest_order()
        if newest != self._known and newest is not None:
            return (
                f"checkpoint.save_dir {self.folder} holds a checkpoint (epoch {newest[0]}{_and_steps(newest[1])}) that "
                "another training wrote after this one was set up."
            )
        return ""

    def _cadence_anew(self) -> Cadence:
        cadence = Cadence(self._config)
        cadence.failures = self._cadence.failures
        return cadence

    def _newest_order(self) -> tuple[int, int] | None:
        saved = self._checkpoints.saved() if self._checkpoints is not None else []
        return saved[-1].order if saved else None

    @property
    def _now(self) -> tuple[int, int]:
        """How far the training has come: epochs done, windows of the next one."""
        run = self._run
        return run.epoch, run.progress.position.windows if run.progress is not None else 0


def _and_steps(step: int) -> str:
    return f", {step} updates" if step else ""


def _note_other_code(path: Path) -> None:
    before, now = about_checkpoint(path).get("code", {}).get("commit"), code_version()["commit"]
    if before != now and None not in (before, now):
        logger.warning("checkpoint %s was written by commit %s, this is %s.", path, before, now)

"""MuseSparkTrainer: the training loop for people's own scripts, and the same code that Ray workers run."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from muse_spark_ray.cost import Phase, PhaseClock
from muse_spark_ray.data import open_source
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.spec.metrics import METRICS
from muse_spark_ray.strategy import Context, Decision, Step, Tools
from muse_spark_ray.training.analysis import Goal, best_thresholds, hardest_samples
from muse_spark_ray.training.best import Best
from muse_spark_ray.training.build import (
    build_stack,
    cut_of,
    default_optimizer,
    look_at_sample,
    note_batch_norm,
    plain_module,
    tune_loader,
)
from muse_spark_ray.training.clouds import listening_to_cloud
from muse_spark_ray.training.diagnose import DivergedError, explained
from muse_spark_ray.training.distributed import join_world, share_buffers, spread, spread_again
from muse_spark_ray.training.evaluate import Evaluation, evaluate, predictions
from muse_spark_ray.training.gauges import Gauges, peak_gpu_memory_mb
from muse_spark_ray.training.keeper import Keeper, Story
from muse_spark_ray.training.loggers import Loggers
from muse_spark_ray.training.loop import EpochTotals, Run, train_epoch
from muse_spark_ray.training.metrics import MetricSet
from muse_spark_ray.training.notice import PreemptionNotices, listening_to_sigterm
from muse_spark_ray.training.objective import Criterion, Objective, can_be_per_sample, default_criterion
from muse_spark_ray.training.observe import observations
from muse_spark_ray.training.optimizers import set_mode
from muse_spark_ray.training.precision import Precision, to_fp8
from muse_spark_ray.training.records import EpochRecord, Metrics, OnEpoch, best_of, percent, strict_json
from muse_spark_ray.training.review import Review
from muse_spark_ray.training.schedules import Schedule

logger = logging.getLogger(__name__)
Data = DataLoader[Any] | TensorDataset


class MuseSparkTrainer:
    """Trains a model with the cost-saving strategies that its config switches on.

    It runs in a plain script, under torchrun, and inside Ray workers alike. `fit(epochs=n)` trains until n epochs
    are done in all: a second call and a run resumed from `checkpoint.save_dir` continue instead of starting over.
    Gradients are the exact mean over a window of micro-batches, but BatchNorm sees one micro-batch at a time; the
    combination is logged once as a warning.

    Args:
        model: Trained in place; best on the CPU or already on its device.
        optimizer: Stepped as it is, never copied; None builds that of `config`.
        criterion: Maps (outputs, targets) to a scalar mean loss; None is cross entropy, or mean squared error for
            real targets.
        train_loader: A DataLoader of (inputs, targets) pairs, or a TensorDataset. The order of shuffled map-style data
            is taken over, so that it is seeded and shared among ranks.
        val_loader: The same for validation; None trains without it.
        config: A TrainConfig, or a dictionary with its keys or the mission's (`use_amp`,
            `gradient_accumulation_steps`, `adaptive_sampling`, `dynamic_lr_scheduler`, `checkpoint`).
        clock: Where time is booked; None starts one.
        about: Kept in every checkpoint as JSON: label map, preprocessing, tokenizer, whatever using the model needs.

    Attributes:
        notices: Where word of a coming end arrives, from any thread; SIGTERM comes there by itself. The state is then
            saved between two updates, and `fit` raises `PreemptedError`.

    Raises:
        ConfigError: If a key or a combination is not allowed, before any training.

    Example:
        >>> trainer = MuseSparkTrainer(model, optimizer, nn.CrossEntropyLoss(), train_loader, val_loader, {"clip_norm": 1.0})
        >>> report = trainer.fit(epochs=10)
        >>> best = trainer.get_best_model()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        criterion: Criterion | None = None,
        train_loader: Data | None = None,
        val_loader: Data | None = None,
        config: Any = None,
        *,
        clock: PhaseClock | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = train_config(config)
        if train_loader is None:
            raise ConfigError(
                "train_loader is None; MuseSparkTrainer needs a DataLoader or a TensorDataset to train on."
            )
        c = self.config
        torch.use_deterministic_algorithms(c.deterministic)
        world = join_world(c.device)
        cut = cut_of(c, rank=world.rank, world_size=world.size)
        source = open_source(train_loader, cut)
        self._loader_trials = tune_loader(source, c.loader)
        module = plain_module(model).to(world.device)
        look = partial(look_at_sample, module, train_loader, world.device)
        criterion = criterion if criterion is not None else default_criterion(look().classes)
        precision = Precision(c.precision, world.device)
        clock = clock or PhaseClock()
        review = Review(source, criterion, precision, world) if source.is_indexed else None
        tools = Tools(review, clock, lengths=source.lengths, batch_size=source.batch_size)
        context = Context(
            source.samples or 0, None, c.seed, world.rank, world.size, world.device, source.targets, tools
        )
        stack = build_stack(c, context, criterion, precision, source, look)
        module = stack.prepare_model(module)
        if c.precision.fp8:
            to_fp8(module, world.device)
        if world.is_first:
            note_batch_norm(module, source.batch_size, cut.accumulation_at(0))
        optimizer = stack.wrap_optimizer(optimizer if optimizer is not None else default_optimizer(module, c))
        wrapped = spread(model if module is plain_module(model) else module, world, stack)
        objective = Objective(criterion, stack, world_size=world.size, targets=source.targets)
        schedule = Schedule(optimizer, c.schedule)
        self._run = Run(
            module,
            wrapped,
            optimizer,
            objective,
            stack,
            precision,
            schedule,
            source,
            world,
            clock,
            c.clip_norm,
            c.max_bad_steps,
            c.min_micro_batch,
        )
        self._validation, self._review, self._criterion = val_loader, review, criterion
        needs_classes = any(METRICS[name].kind == "classes" for name in c.task.all_metrics if name != "accuracy")
        classes = stack.context.classes or (look().classes if needs_classes or c.task.metrics else None)
        self._metrics_asked = MetricSet(
            [name for name in c.task.all_metrics if name != "accuracy"],
            c.task.metric_settings,
            classes=classes,
            device=world.device,
        )
        self._story = Story(Best(c.task.metric, higher_is_better=METRICS[c.task.metric].higher_is_better), [])
        self._verdict: dict[str, Any] = {"state": "new", "diagnosis": None, "resumed_from": None, "exact_resume": None}
        self.notices = PreemptionNotices()
        self._keeper = Keeper(c, self._run, self._story, notices=self.notices, about=about or {})
        self._resume()

    def fit(self, epochs: int | None = None, *, on_epoch: OnEpoch | None = None) -> dict[str, Any]:
        """Train until `epochs` epochs are done in all.

        Args:
            epochs: Default: `config.epochs`.
            on_epoch: Called after each epoch with its record, on every rank; True stops the training. All ranks must
                return the same.

        Returns:
            The report, as `get_training_report`. A training that diverged ends here too, with its diagnosis in it.
        """
        total = epochs if epochs is not None else self.config.epochs
        if total < 1:
            raise ConfigError(f"epochs is {total}; it must be at least 1.")
        last = min(total, self.config.stop_epoch or total)
        self._verdict["state"] = "finished"
        cloud = self.config.checkpoint.cloud
        with self._kept(), listening_to_sigterm(self.notices), listening_to_cloud(self.notices, cloud):
            self._train(total, last, on_epoch)
        report = {**self.get_training_report(), **strict_json(self._analysis())}
        if self._keeper.folder is not None and self._run.world.is_first:
            _write_json(self._keeper.folder / "report.json", report)
        return report

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Hold the checkpoint folder while training, and leave with all written and all time counted."""
        self._keeper.open()
        self._story.began = time.monotonic()
        try:
            yield
        finally:
            self._keeper.finish()
            self._story.seconds, self._story.began = self._story.total_seconds, None

    def _train(self, total: int, last: int, on_epoch: OnEpoch | None) -> None:
        loggers, gauges = self._open_loggers(), Gauges(self._run.world, self.config.logging)
        try:
            if reason := self._run.stack.ended():
                self._verdict["stop_reason"] = reason
            while self._run.epoch < last and not self._run.stack.ended():
                is_end = self._one_epoch(total, last, on_epoch)
                loggers.log(self._run.epoch, gauges.numbers(self._history, epochs_left=last - self._run.epoch))
                if is_end:
                    break
                self._keeper.leave_if_told()
        except DivergedError as diverged:
            logger.warning("%s", diverged)
            self._verdict |= {"state": "diverged", "diagnosis": str(diverged)}
        except ValueError as error:
            raise explained(error) from error
        else:
            self._keeper.save_at_border(is_last=True)
        finally:
            loggers.close()
            gauges.close()

    @property
    def _history(self) -> list[Metrics]:
        return self._story.history

    @property
    def history(self) -> list[Metrics]:
        """The metrics of each epoch done, those before a resume included."""
        return list(self._history)

    @property
    def newest_checkpoint(self) -> str | None:
        """Folder of the newest complete checkpoint, None without one."""
        return self._keeper.newest

    def get_best_model(self) -> nn.Module:
        """Return a copy of the model with the weights of its best epoch, in eval mode.

        Without validation, or before the first epoch, that is the model as it stands.
        """
        shown = self._run.stack.evaluation_model(self._run.module)
        model = copy.deepcopy(shown)
        if self._story.best.weights:
            model.load_state_dict(self._story.best.weights)
        return model.eval()

    def hardest_samples(self, count: int = 20) -> list[dict[str, Any]]:
        """Return the training samples on which the best model's loss is largest: wrong labels, outliers, rare kinds.

        Args:
            count: How many.

        Returns:
            Largest first: `index` in the training set, `loss`, and for classes `target`, `predicted`, `probability`.

        Raises:
            ConfigError: If the data are a stream, or the criterion cannot give one loss a sample.
        """
        if self._review is None or not can_be_per_sample(self._criterion):
            raise ConfigError(
                "the hardest samples are known only for data whose order the trainer controls and a criterion with `reduction`."
            )
        return hardest_samples(self._review(self.get_best_model()), self._run.world, count=count)

    def tune_thresholds(self, goal: Goal = "f1", utility: list[list[float]] | None = None) -> list[dict[str, float]]:
        """Choose, on the validation set, the probability from which each class should be answered.

        Args:
            goal: `f1`, `youden` or `utility`.
            utility: 2 x 2 matrix for that goal: rows other classes and the class, columns the answers no and yes.

        Returns:
            One dictionary a class: `class`, `threshold`, `value` of the goal there, `at_half` at 0.5.

        Raises:
            ConfigError: Without validation data or classes.
        """
        if self._validation is None:
            raise ConfigError("thresholds are tuned on validation data; val_loader is None.")
        run = self._run
        outputs, targets = predictions(self.get_best_model(), self._validation, run.precision, run.world)
        if targets.ndim != 1 or targets.is_floating_point() or outputs.ndim != 2:
            raise ConfigError("thresholds are for class targets [N] and scores [N, classes].")
        return best_thresholds(outputs.softmax(1).numpy(), targets.numpy(), goal=goal, utility=utility)

    def get_training_report(self) -> dict[str, Any]:
        """Return what happened so far.

        Returns:
            Among others `best_val_acc` (percent or None), `total_time` (seconds in `fit`), `peak_gpu_memory` (MB, or
            None without a GPU), `epochs`, `history` (one dictionary an epoch), `skipped_steps`, `state` and, if the
            training diverged, `diagnosis`. Strict JSON holds all of it.
        """
        run = self._run
        report = {
            **self._verdict,
            "epochs": run.epoch,
            "updates": run.updates,
            "best_epoch": self._story.best.epoch,
            "best_val_acc": percent(best_of(self._history, "accuracy", higher_is_better=True)),
            "best_val_loss": best_of(self._history, "val_loss", higher_is_better=False),
            "total_time": self._story.total_seconds,
            "peak_gpu_memory": peak_gpu_memory_mb(run.world.device),
            "skipped_steps": run.skipped_steps,
            "bad_steps": run.bad_steps,
            "effective_batch_size": self._effective_batch_size(),
            "micro_batch": run.micro_batch or run.source.batch_size,
            "world_size": run.world.size,
            **self._keeper.report(),
            "device": str(run.world.device),
            "precision": run.precision.kind,
            "precision_report": run.precision.report(),
            "loader": [asdict(trial) for trial in self._loader_trials],
            "strategies": [member.name for member in run.stack.members],
            "strategy_reports": run.stack.report(),
            "observations": [found.as_row() for found in observations(self._history, self.config)],
            "history": self._history,
        }
        result: dict[str, Any] = strict_json(report)
        return result

    def _open_loggers(self) -> Loggers:
        is_first = self._run.world.is_first
        config = self.config.logging if is_first else type(self.config.logging)()
        about = self.config.model_dump(mode="json")
        return Loggers(config, folder=self._keeper.folder if is_first else None, about=about)

    def _analysis(self) -> dict[str, Any]:
        """Return what the config asks to know of the data, after training."""
        c, found = self.config.analysis, {}
        if c.hardest_samples:
            found["hardest_samples"] = self.hardest_samples(c.hardest_samples)
        if c.thresholds is not None:
            found["thresholds"] = self.tune_thresholds(c.thresholds)
        return found

    def _resume(self) -> None:
        resumed = self._keeper.resume()
        if resumed is None:
            return
        run = self._run
        self._verdict |= {"resumed_from": run.epoch, "exact_resume": resumed.is_exact}
        run.model = spread_again(run.model, run.module, run.world, run.stack)

    def _one_epoch(self, total: int, last: int, on_epoch: OnEpoch | None) -> bool:
        """Train and evaluate one epoch; return True if the training is to end with it."""
        run = self._run
        run.clock.enter(Phase.train)
        set_mode(run.optimizer, training=True)
        totals = train_epoch(run, epochs=total)
        set_mode(run.optimizer, training=False)
        seconds = totals.progress.seconds_here
        for model in dict.fromkeys((run.module, run.stack.evaluation_model(run.module))):
            share_buffers(model, run.world)
        run.epoch += 1
        metrics = self._metrics(totals, self._evaluate(), seconds)
        self._history.append(metrics)
        run.schedule.check(metrics["val_loss"])
        self._keep_best(metrics)
        decision = run.stack.after_epoch(metrics, Step(run.epoch, run.updates, last - run.epoch)) or Decision()
        self._follow(decision, metrics)
        is_last = run.epoch >= last
        checkpoint = self._keeper.save_at_border(is_last=is_last)
        spans = tuple(run.clock.drain())
        record = EpochRecord(run.epoch, metrics, spans, spans[-1].end, checkpoint)
        asked_to_stop = on_epoch(record) if on_epoch is not None else False
        if decision.stop:
            self._verdict["stop_reason"] = decision.reason
        elif asked_to_stop and not is_last:
            self._verdict |= {"state": "stopped", "stop_reason": "asked to stop"}
        return decision.stop or asked_to_stop

    def _follow(self, decision: Decision, metrics: Metrics) -> None:
        """Do what the strategies have decided at the end of an epoch."""
        run = self._run
        metrics.update(decision.metrics)
        if decision.reason:
            logger.info("epoch %d: %s", run.epoch, decision.reason)
        if decision.restart_schedule:
            run.schedule.restart()
        if decision.lr_factor != 1.0:
            run.schedule.scale_by(decision.lr_factor)
        if decision.reshaped:
            self._story.best.forget_other_shapes(run.module)
            run.model = spread_again(run.model, run.module, run.world, run.stack)

    def _evaluate(self) -> Evaluation | None:
        if self._validation is None:
            return None
        run = self._run
        with run.clock.phase(Phase.evaluate):
            model = run.stack.evaluation_model(run.module)
            return evaluate(model, self._validation, run.objective, run.precision, run.world, self._metrics_asked)

    def _metrics(self, totals: EpochTotals, evaluation: Evaluation | None, seconds: float) -> Metrics:
        """Return an epoch's metrics.

        Args:
            totals: What it came to.
            evaluation: Of the model after it.
            seconds: Training time that this process spent on it.
        """
        run, p = self._run, totals.progress
        return {
            "train_loss": totals.loss,
            "val_loss": evaluation.loss if evaluation else None,
            "accuracy": evaluation.accuracy if evaluation else None,
            "lr": run.schedule.lr,
            "effective_batch_size": self._effective_batch_size(),
            "samples_per_second": p.samples / (p.seconds + seconds) if seconds > 0 else None,
            "data_wait_share": min(1.0, totals.waited / seconds) if seconds > 0 else None,
            "samples": p.samples,
            "skipped_steps": run.skipped_steps - p.skipped,
            "bad_steps": run.bad_steps - p.bad,
            "updates": run.updates,
            **(evaluation.metrics if evaluation else {}),
        }

    def _effective_batch_size(self) -> int | None:
        """Samples in an update in the epoch that ended last, or comes first."""
        return self._run.source.window_size(max(self._run.epoch - 1, 0))

    def _keep_best(self, metrics: Metrics) -> None:
        if metrics.get(self._story.best.metric) is None and self._story.best.value is None:
            self._story.best = Best("val_loss", higher_is_better=False)
        model = self._run.stack.evaluation_model(self._run.module)
        self._story.best.offer(metrics.get(self._story.best.metric), epoch=self._run.epoch, model=model)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False))
        os.replace(partial, path)
    except OSError as error:
        logger.warning("%s could not be written: %s.", path, error)

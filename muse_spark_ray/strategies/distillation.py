"""Distillation: learn from a teacher's probabilities as well as from the labels."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from pydantic import model_validator
from torch import Tensor, nn

from muse_spark_ray.cost import Phase
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import (
    Batch,
    Card,
    Context,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Trait,
    as_probabilities,
    knob,
    load_module,
    named_blocks,
)

logger = logging.getLogger(__name__)
FACTORY_NAMES = ("build_teacher", "make_teacher", "teacher", "build_model", "make_model", "model")
Schedule = Literal["constant", "linear", "cosine", "confidence"]
Precision = Literal["fp32", "bf16", "fp16"]


def distillation_losses(scores: Tensor, teacher_scores: Tensor, *, temperature: float) -> Tensor:
    """Return T^2 * KL(teacher || student) of each sample, both softened by the temperature T.

    Args:
        scores: [B, classes] logits of the student.
        teacher_scores: [B, classes] logits of the teacher.
        temperature: Above 0.

    Returns:
        [B] float32. The factor T^2 keeps the size of the gradients as T changes.

    Source: Hinton et al. 2015, Distilling the Knowledge in a Neural Network, section 2.
    """
    student = (scores.float() / temperature).log_softmax(1)
    teacher = (teacher_scores.float() / temperature).log_softmax(1)
    return temperature**2 * (teacher.exp() * (teacher - student)).sum(1)


def similarity_losses(features: Tensor, teacher_features: Tensor) -> Tensor:
    """Return how differently two layers see which samples of a batch are alike.

    Args:
        features: [B, ...] of the student.
        teacher_features: [B, ...] of the teacher; the shapes behind B need not be the same.

    Returns:
        [B] float32: mean squared differences of the rows of the two normalised similarity matrices, times B.

    Source: Tung and Mori 2019, Similarity-Preserving Knowledge Distillation, equations 1 to 4.
    """
    own, theirs = (_similarity(x.float().flatten(1)) for x in (features, teacher_features))
    return (own - theirs).square().sum(1)


def _similarity(x: Tensor) -> Tensor:
    return nn.functional.normalize(x @ x.T, dim=1)


def weight_at(epoch: int, *, weight: float, schedule: str, epochs: int | None) -> float:
    """Return the teacher's weight in an epoch: constant, or falling to 0 over `epochs`, straight or as half a cosine."""
    if epochs is None or schedule not in ("linear", "cosine"):
        return weight
    progress = min(1.0, epoch / epochs)
    return weight * (1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress)))


class Tap:
    """Keeps what a layer returned last, until it is taken; a copy of the model has an empty one."""

    def __init__(self, *, only_in_training: bool) -> None:
        self._only_in_training = only_in_training
        self._value: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module.training or not self._only_in_training:
            self._value = output

    def __deepcopy__(self, memo: Any) -> Tap:
        return Tap(only_in_training=self._only_in_training)

    def take(self) -> Tensor:
        """Return the value and forget it."""
        if self._value is None:
            raise RuntimeError("strategies.distillation.features names a layer that did not run in this pass")
        value, self._value = self._value, None
        return value


class Distillation(Strategy):
    """Learn from a teacher's probabilities as well as from the labels.

    The teacher is built by a function of the user's, optionally loaded with the weights of a checkpoint, stays in
    eval mode and has no gradients. It sees the same inputs as the student, after all other changes of the batch. With
    `cache` its scores of all training samples are computed once and kept in a Parquet file, which all trials of a
    sweep read; the pass is booked as shared work.
    """

    stage = Stage.LOSS
    needs = frozenset({Trait.CLASS_TARGETS, Trait.PER_SAMPLE_LOSSES})
    card = Card(
        saves="size and time of the model that is used in the end",
        costs="one forward pass of the teacher for each micro-batch; one in all with a cache",
        pays="a good teacher is there already; students a fraction of its size",
        hurts="teachers trained with strong label smoothing; students that can learn the task as well alone",
        source="Hinton et al. 2015, section 2; Tung and Mori 2019 (features)",
    )

    class Config(StrategyConfig):
        """Settings of distillation."""

        teacher: str = knob(
            ...,
            doc="module:function or path.py:function that returns the teacher, an nn.Module with the student's outputs",
        )
        weights: str | None = knob(
            None, doc="the teacher's weights: folder of a checkpoint, safetensors, or a state dict"
        )
        temperature: float = knob(4.0, gt=0, le=100, search=(1.0, 10.0), doc="softens both distributions")
        weight: float = knob(0.5, ge=0, le=1, search=(0.1, 0.9), doc="weight of the teacher; the labels have the rest")
        schedule: Schedule = knob(
            "constant",
            doc="of the weight: constant, linear or cosine to 0, or smaller the surer the student is of the right class",
        )
        fade_epochs: int | None = knob(None, ge=1, doc="linear, cosine: epochs over which the weight falls to 0")
        precision: Precision = knob("fp32", doc="in which the teacher computes")
        features: dict[str, str] = knob({}, doc="layers to match: name in the student: name in the teacher")
        feature_weight: float = knob(1.0, ge=0, doc="weight of the features' loss, which is added")
        cache: str | None = knob(
            None, doc="Parquet file for the teacher's scores of all training samples; none: no cache"
        )

        @model_validator(mode="after")
        def _a_fade_has_an_end(self) -> Distillation.Config:
            if (self.schedule in ("linear", "cosine")) != (self.fade_epochs is not None):
                raise ValueError("schedule: linear or cosine and fade_epochs belong together; set both or neither")
            if self.cache is not None and self.features:
                raise ValueError(
                    "cache holds the teacher's scores only; features need the teacher itself. Give one of them"
                )
            return self

    @classmethod
    def refused_by(cls, config: Any) -> frozenset[Trait]:
        """Refuse changed inputs where the teacher's scores of the stored ones are used."""
        return cls.refuses | (frozenset({Trait.CHANGED_INPUTS}) if config.cache is not None else frozenset())

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._teacher = load_module(
            config.teacher, config.weights, names=FACTORY_NAMES, what="strategies.distillation.teacher"
        ).to(context.device)
        what = "strategies.distillation.features"
        self._theirs = [
            _tap(self._teacher, name, what=what, only_in_training=False) for name in config.features.values()
        ]
        self._ours: list[Tap] = []
        self._cached: Tensor | None = None if config.cache is None else cached_scores(self)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        what = "strategies.distillation.features"
        self._ours = [_tap(model, name, what=what, only_in_training=True) for name in self.config.features]
        return model

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        c = self.config
        share = weight_at(step.epoch, weight=c.weight, schedule=c.schedule, epochs=c.fade_epochs)
        if share == 0.0 and not self._ours:
            return losses
        taught = self._scores(batch)
        if taught.shape != outputs.shape:
            raise ConfigError(
                f"strategies.distillation: the teacher returns {tuple(taught.shape)}, the student {tuple(outputs.shape)}; "
                "both must give one score for each class."
            )
        weights = self._doubt(outputs, batch) * share if c.schedule == "confidence" else share
        mixed = losses.lerp(
            distillation_losses(outputs, taught, temperature=c.temperature), torch.as_tensor(weights).to(losses)
        )
        for ours, theirs in zip(self._ours, self._theirs, strict=True):
            mixed = mixed + c.feature_weight * similarity_losses(ours.take(), theirs.take())
        return mixed

    def _doubt(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return 1 minus the probability that the student gives to the right class, [B]."""
        targets = as_probabilities(batch.targets, self.context.classes)
        return 1.0 - (outputs.detach().float().softmax(1) * targets).sum(1)

    def _scores(self, batch: Batch) -> Tensor:
        if self._cached is not None and batch.indices is not None:
            return self._cached[batch.indices.to(self._cached.device)].to(self.context.device)
        return self.teach(batch.inputs)

    @torch.no_grad()
    def teach(self, inputs: Any) -> Tensor:
        """Return the teacher's scores, [B, classes] float32."""
        kind = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.config.precision]
        device = self.context.device.type
        # With fp32 the student's autocast is switched off for the teacher.
        around = torch.autocast(device, dtype=kind) if kind else torch.autocast(device, enabled=False)
        with around:
            scores: Tensor = self._teacher(inputs)
        return scores.float()


def _tap(model: nn.Module, name: str, *, what: str, only_in_training: bool) -> Tap:
    found = named_blocks(model, name, what=what)
    if len(found) > 1:
        raise ConfigError(f"{what}: {name!r} matches {len(found)} layers; name one.")
    tap = Tap(only_in_training=only_in_training)
    found[0][1].register_forward_hook(tap)
    return tap


# ---------------------------------------------------------------- scores kept in a file


def cached_scores(strategy: Distillation) -> Tensor:
    """Return the teacher's scores of all training samples from the cache; compute and write them where it has none.

    One process at a time looks, so that of several trials that start together one computes and the others read.

    Returns:
        [samples, classes] float32 on the CPU.

    Raises:
        ConfigError: If the order of the samples is not the trainer's, or the file cannot be used.
    """
    context, path = strategy.context, Path(strategy.config.cache).expanduser()
    if context.tools.review is None:
        raise ConfigError("strategies.distillation.cache needs a data set whose sample order the trainer controls.")
    wanted = _identity(strategy)
    with context.tools.clock.phase(Phase.shared):
        with _only_one(path) if context.rank == 0 else nullcontext():
            is_there = _from_first(_holds(path, wanted), context)
            if not is_there:
                scores = _computed(strategy)
                if context.rank == 0:
                    _write(path, scores, wanted)
            _from_first(True, context)
        return _read(path)


def _identity(strategy: Distillation) -> dict[str, str]:
    """Return what the scores depend on, as far as it can be told without reading the data."""
    config, context = strategy.config, strategy.context
    digest = hashlib.sha256()
    for name, tensor in strategy._teacher.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    targets = b"" if context.targets is None else context.targets.cpu().contiguous().numpy().tobytes()
    return {
        "teacher": config.teacher,
        "weights": digest.hexdigest(),
        "samples": str(context.samples),
        "targets": hashlib.sha256(targets).hexdigest(),
        "precision": config.precision,
    }


def _holds(path: Path, wanted: Mapping[str, str]) -> bool:
    if not path.is_file():
        return False
    try:
        kept = (pq.read_schema(path).metadata or {}).get(b"teacher_scores", b"{}")
        held = json.loads(kept)
    except (OSError, ValueError, pa.ArrowException):
        held = {}
    if held != wanted:
        differ = sorted(key for key in wanted if held.get(key) != wanted[key])
        logger.warning(
            "strategies.distillation.cache %s is of another %s; it is written anew.", path, " and ".join(differ)
        )
    return bool(held == wanted)


def _computed(strategy: Distillation) -> Tensor:
    context = strategy.context
    assert context.tools.review is not None
    parts = [
        (batch.indices.cpu(), scores.float().cpu())
        for batch, scores, _ in context.tools.review(_Teaching(strategy))
        if batch.indices is not None
    ]
    if context.world_size > 1:
        gathered: list[Any] = [None] * context.world_size
        dist.all_gather_object(gathered, parts)
        parts = [pair for share in gathered for pair in share]
    scores = torch.empty(context.samples, parts[0][1].shape[1])
    for indices, part in parts:
        scores[indices] = part
    return scores


class _Teaching(nn.Module):
    """The teacher in its own precision, as a module."""

    def __init__(self, strategy: Distillation) -> None:
        super().__init__()
        self._teach = strategy.teach

    def forward(self, inputs: Any) -> Tensor:
        return self._teach(inputs)


def _write(path: Path, scores: Tensor, identity: Mapping[str, str]) -> None:
    values = pa.FixedSizeListArray.from_arrays(pa.array(scores.flatten().numpy()), scores.shape[1])
    table = pa.table({"scores": values}).replace_schema_metadata({"teacher_scores": json.dumps(dict(identity))})
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    pq.write_table(table, partial)
    partial.replace(path)


def _read(path: Path) -> Tensor:
    column = pq.read_table(path).column("scores").combine_chunks()
    return torch.from_numpy(column.flatten().to_numpy(zero_copy_only=False).copy()).view(len(column), -1)


def _from_first(value: bool, context: Context) -> bool:
    """Return the first rank's value on all of them."""
    if context.world_size == 1:
        return value
    told = [value]
    dist.broadcast_object_list(told, 0)
    return told[0]


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise ConfigError(f"strategies.distillation.cache {path} cannot be written: {error}.") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""The contract between the training loop and a strategy.

A strategy is one declaration: a config whose fields carry bounds, a default search range and a sentence of
documentation (`knob`); a `stage` and traits, from which order and conflicts follow without anyone naming anyone;
a card that says when it pays; and the few hooks it uses. Each hook takes values and returns values. The loop
calls them through a `StrategyStack`, in the order of their stages:

    once           prepare_model, wrap_optimizer, comm_hook
    epoch start    order_samples (and again every `reorder_every` updates)
    micro-batch    transform_batch, loss
    update         before_update (gradients unscaled and clipped), after_update (only if the optimizer stepped)
    epoch end      evaluation_model (what is evaluated), after_epoch

Rule of weights: `transform_batch` may drop or mix samples but keeps the sum of the batch's weights. The total
weight of a window is therefore known before its first backward pass, which keeps accumulation exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from muse_spark_ray.cost import PhaseClock


class Stage(IntEnum):
    """When a strategy acts within a window; lower stages come first."""

    SAMPLES = 0
    BATCH = 1
    LOSS = 2
    UPDATE = 3
    AVERAGE = 4


class Trait(StrEnum):
    """What a strategy may need from a run, or add to it."""

    CLASS_TARGETS = "integer class targets"
    SOFT_TARGETS = "class probabilities as targets"
    PER_SAMPLE_LOSSES = "a criterion that can return one loss per sample"
    IMAGES = "images [channels, height, width] as inputs"
    INDEXED_SAMPLES = "a data set whose sample order the trainer controls"
    LOSS_SCALING = "fp16 loss scaling"
    KNOWN_CLASSES = (
        "the class of each training sample, known before it is read (a TensorDataset, or a data set with `targets`)"
    )
    KNOWN_LENGTHS = "the length of each training sample (a data set with `lengths`)"
    REPEATED_SAMPLES = "samples drawn several times an epoch"
    CHANGED_INPUTS = "inputs that differ from the stored ones"
    CHANGING_SHAPES = "layers that lose channels on the way"
    WEIGHTS_APART = "weights that differ between workers for some updates"
    OWN_LOSS = "another loss in place of the criterion's"


@dataclass(frozen=True, slots=True)
class Card:
    """What a user needs to know before switching a strategy on."""

    saves: str
    costs: str
    pays: str
    hurts: str
    source: str


Review = Callable[[nn.Module], Iterator[tuple["Batch", Any, Tensor | None]]]
"""Passes all training samples through a model in eval mode, without gradients: (batch, outputs, losses [B]).

Each rank passes its share. Losses are None where the criterion cannot tell those of single samples.
"""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the trainer lends to strategies.

    Args:
        review: Passes all training samples through a model; None where their order is not the trainer's.
        clock: Where time is booked.
        example: Inputs of one sample on the device, [1, ...].
        lengths: [samples] int64 of sequences, None where the data set does not say them.
        batch_size: Samples in a micro-batch on one rank, None if not known.
    """

    review: Review | None = None
    clock: PhaseClock = field(default_factory=PhaseClock)
    example: Any = None
    lengths: Tensor | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """The facts about a run that a strategy may build on.

    Args:
        samples: Training samples in an epoch of the whole data set, over all ranks.
        classes: Number of classes, or None for other tasks.
        seed: The run's seed.
        rank: This process, from 0.
        world_size: Number of processes.
        device: Where the model lives.
        targets: [samples, ...] targets of the training set, None where they cannot be had without reading it.
        tools: What the trainer lends.
    """

    samples: int
    classes: int | None = None
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    targets: Tensor | None = None
    tools: Tools = field(default_factory=Tools)


class Step(NamedTuple):
    """Where training stands: epochs and applied optimizer updates, both counted from 0.

    At the end of an epoch, `epochs_left` says how many follow as far as is known; None within an epoch.
    """

    epoch: int
    update: int
    epochs_left: int | None = None


@dataclass(slots=True)
class Batch:
    """One micro-batch on one rank.

    Args:
        inputs: [B, ...] samples, or whatever the model takes.
        targets: [B] int64 class ids, [B, C] float probabilities, or the user's own form.
        indices: [B] int64 positions in the training set; None when the order is not the trainer's.
        weights: [B] float32 sample weights; None means that each sample weighs 1.
    """

    inputs: Any
    targets: Any
    indices: Tensor | None = None
    weights: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.targets)

    @property
    def weight(self) -> float:
        """Sum of the sample weights."""
        return len(self.targets) if self.weights is None else float(self.weights.sum())

    def with_(self, **changes: Any) -> Batch:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a strategy asks of the loop at the end of an epoch, and what it tells of itself.

    Args:
        stop: End the training here.
        reason: Why, in words for the report.
        lr_factor: Multiply the learning rate by this from now on.
        restart_schedule: Begin the schedule anew, for the updates that are left.
        reshaped: The model has other parameters to train than before, or others of them.
        metrics: Numbers for this epoch's record.
    """

    stop: bool = False
    reason: str = ""
    lr_factor: float = 1.0
    restart_schedule: bool = False
    reshaped: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Decision) -> Decision:
        """Return both as one."""
        return Decision(
            self.stop or other.stop,
            "; ".join(filter(None, (self.reason, other.reason))),
            self.lr_factor * other.lr_factor,
            self.restart_schedule or other.restart_schedule,
            self.reshaped or other.reshaped,
            {**self.metrics, **other.metrics},
        )


class StrategyConfig(BaseModel):
    """Base of the strategies' configs: unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())


def knob(default: Any, *, doc: str, search: tuple[Any, ...] | list[Any] | None = None, **bounds: Any) -> Any:
    """Declare one setting: pydantic's `Field` with a search range.

    Args:
        default: Value when the setting is absent.
        doc: One sentence, with the unit.
        search: `(low, high)`, `(low, high, "log")`, or a list of choices; None keeps it out of `search: auto`.
        **bounds: pydantic's `ge`, `gt`, `le`, `lt`.

    Returns:
        The field declaration.
    """
    extra: dict[str, Any] = (
        {} if search is None else {"search": list(search) if isinstance(search, list) else {"range": list(search)}}
    )
    return Field(default, description=doc, json_schema_extra=extra or None, **bounds)


def declared_distributions(config: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Read the search ranges of a config class.

    Args:
        config: A class whose fields were declared with `knob`.

    Returns:
        {field: distribution in Optuna's JSON form}, readable by `optuna.distributions.json_to_distribution`.
    """
    found = {}
    for name, info in config.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and "search" in extra:
            found[name] = _distribution(extra["search"], is_integer=info.annotation is int)
    return found


def _distribution(search: Any, *, is_integer: bool) -> dict[str, Any]:
    if isinstance(search, list):
        return {"name": "CategoricalDistribution", "attributes": {"choices": search}}
    low, high, *rest = search["range"]
    kind = "IntDistribution" if is_integer else "FloatDistribution"
    attributes = {"low": low, "high": high, "log": "log" in rest, "step": 1 if is_integer else None}
    return {"name": kind, "attributes": attributes}


class CommHook(NamedTuple):
    """How gradients are exchanged in place of DDP's all-reduce.

    Args:
        state: Handed to `exchange`.
        exchange: Takes the state and a `torch.distributed.GradBucket`; returns a future of the bucket's new buffer.
        in_one_bucket: All gradients come in one bucket, after the backward pass; otherwise in several, during it, of
            which DDP changes the cut after the first update.
    """

    state: object
    exchange: Callable[[object, Any], Any]
    in_one_bucket: bool = False


class Strategy:
    """Base of all strategies; a member overrides only the hooks it uses.

    `reorder_every` asks for a new order after so many updates within an epoch; `epoch_samples` says how many samples
    an epoch has where a strategy draws another number than the data set holds; `changes_architecture` that weights fit
    only a model that `prepare_model` and `rebuild_model` have gone over.

    What a strategy remembers is a tensor or a plain number returned by `state_dict`, so that a checkpoint
    can be loaded without running code.
    """

    name: ClassVar[str] = ""
    stage: ClassVar[Stage]
    needs: ClassVar[frozenset[Trait]] = frozenset()
    makes: ClassVar[frozenset[Trait]] = frozenset()
    refuses: ClassVar[frozenset[Trait]] = frozenset()
    card: ClassVar[Card]
    Config: ClassVar[type[StrategyConfig]] = StrategyConfig
    changes_architecture: ClassVar[bool] = False
    reorder_every: int | None = None
    epoch_samples: int | None = None

    def __init__(self, config: Any, context: Context) -> None:
        self.config = config
        self.context = context

    @classmethod
    def refused_by(cls, config: Any) -> frozenset[Trait]:
        """Return what the strategy does not work with when it is set so; by default `refuses`."""
        return cls.refuses

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Return the model to train; called once, before the optimizer exists."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer to step; called once."""
        return optimizer

    def comm_hook(self) -> CommHook | None:
        """Return DDP's (state, hook) pair, or None; called once."""
        return None

    def order_samples(self, order: Tensor, step: Step) -> Tensor:
        """Return the samples to train on, in order; must be equal on all ranks.

        Args:
            order: [N] int64 positions that the epoch has not used yet.
            step: Where training stands.

        Returns:
            [M] int64, a sub-sequence or permutation of `order`.
        """
        return order

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        """Return the micro-batch to train on; the sum of its weights stays."""
        return batch

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        """Return the per-sample losses; `losses` is [B] float32 before weighting."""
        return losses

    def before_update(self, model: nn.Module, step: Step) -> None:
        """Look at or change the gradients, unscaled and clipped."""

    def after_update(self, model: nn.Module, step: Step) -> None:
        """Act after an update that really happened."""

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return the model to evaluate and to keep as the best one."""
        return model

    def after_epoch(self, metrics: Mapping[str, Any], step: Step) -> Decision | None:
        """Decide about the rest of the training from this epoch's metrics."""
        return None

    def ended(self) -> str:
        """Return why the training is over, in words for the report, as long as it is; a resumed one asks before it begins."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart: tensors and plain numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def rebuild_model(self, state: Mapping[str, Any]) -> None:
        """Give the model the architecture that it had when `state_dict` returned `state`, before weights are loaded."""

    def report(self) -> dict[str, Any]:
        """Return what the training report should say of this strategy: plain values."""
        return {}


HOOKS = (
    "prepare_model",
    "wrap_optimizer",
    "comm_hook",
    "order_samples",
    "transform_batch",
    "loss",
    "before_update",
    "after_update",
    "evaluation_model",
    "after_epoch",
)

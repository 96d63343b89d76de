"""From a config to the objects of a training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from muse_spark_ray.data import Cut, Growth, Source, Task, split_pair
from muse_spark_ray.data.autotune import Trial, tune_workers
from muse_spark_ray.data.planned import IndexedSource
from muse_spark_ray.strategy import Context, StrategyStack, Trait, check_traits, strategies
from muse_spark_ray.strategy.rng import seed_everything
from muse_spark_ray.training.devices import move
from muse_spark_ray.training.models import build_model
from muse_spark_ray.training.objective import Criterion, can_be_per_sample
from muse_spark_ray.training.optimizers import build_optimizer
from muse_spark_ray.training.precision import Precision

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import LoaderConfig, TrainConfig

logger = logging.getLogger(__name__)


def plain_module(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of DDP and torch.compile, whose weights have plain names."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def cut_of(config: TrainConfig, *, rank: int, world_size: int) -> Cut:
    """Return how a config cuts epochs on a rank."""
    c = config
    growth = Growth() if c.batch_growth is None else Growth(**c.batch_growth.model_dump())
    return Cut(c.batch_size, c.gradient_accumulation_steps, c.seed, rank, world_size, c.target_batch_size, growth)


def tune_loader(source: Source, config: LoaderConfig) -> list[Trial]:
    """Set how a map-style data set is read; return what was tried to find it out."""
    if not isinstance(source, IndexedSource) or config.workers is None:
        return []
    if config.workers == "auto":
        tried = tune_workers(source, seconds=config.seconds)
        logger.info("loader: %d workers, by trying %s", source.workers, [trial.workers for trial in tried])
        return tried
    source.workers = config.workers
    return []


def build_stack(
    config: TrainConfig,
    context: Context,
    criterion: Criterion,
    precision: Precision,
    source: Source,
    look: Callable[[], Sample],
) -> StrategyStack:
    """Build the strategies that a config switches on, after checking that they can work here.

    Raises:
        ConfigError: If a strategy needs what this run does not have.
    """
    chosen = config.strategies.switched_on()
    if not chosen:
        return StrategyStack((), context)
    known = strategies()
    sample = look()
    context = replace(context, classes=sample.classes, tools=replace(context.tools, example=sample.inputs))
    offers = {
        Trait.IMAGES: sample.is_image,
        Trait.CLASS_TARGETS: context.classes is not None,
        Trait.PER_SAMPLE_LOSSES: can_be_per_sample(criterion),
        Trait.INDEXED_SAMPLES: source.is_indexed,
        Trait.LOSS_SCALING: precision.kind == "fp16",
        Trait.KNOWN_LENGTHS: context.tools.lengths is not None,
        Trait.KNOWN_CLASSES: context.classes is not None and context.targets is not None,
    }
    check_traits(
        [(known[name], own) for name, own in chosen.items()], [trait for trait, holds in offers.items() if holds]
    )
    return StrategyStack([known[name](own, context) for name, own in chosen.items()], context)


def note_batch_norm(model: nn.Module, batch_size: int | None, accumulation: int) -> None:
    """Warn that accumulation does not enlarge the batches whose statistics BatchNorm layers use.

    Args:
        model: The model to train.
        batch_size: Samples in a micro-batch on one rank; None if not known.
        accumulation: Micro-batches in a window.
    """
    layers = sum(isinstance(module, _BatchNorm) for module in model.modules())
    if accumulation == 1 or not layers:
        return
    size = "unknown size" if batch_size is None else f"{batch_size} samples"
    logger.warning(
        "gradient_accumulation_steps is %d and the model has %d BatchNorm layer(s): they normalise by, and update their "
        "running statistics with, each micro-batch (%s) and not the whole window, so the result differs from one large "
        "batch. Use a larger batch_size with fewer steps, or GroupNorm or LayerNorm, where that matters.",
        accumulation,
        layers,
        size,
    )


def default_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Build the config's optimizer for a model."""
    return build_optimizer(model, config.optimizer)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one sample tells about the task.

    Args:
        classes: Number of classes, None if targets are no class ids.
        is_image: Inputs are float tensors [channels, height, width].
        inputs: Of the sample, on the device, [1, ...].
    """

    classes: int | None
    is_image: bool
    inputs: Any


def look_at_sample(model: nn.Module, data: DataLoader[Any] | TensorDataset, device: torch.device) -> Sample:
    """Read one sample and pass it through the model in eval mode; neither changes."""
    inputs, targets = _first_sample(data)
    is_image = isinstance(inputs, torch.Tensor) and inputs.ndim == 4 and inputs.is_floating_point()
    return Sample(_count_classes(model, inputs, targets, device), is_image, move(inputs, device))


@torch.no_grad()
def _count_classes(model: nn.Module, inputs: Any, targets: Any, device: torch.device) -> int | None:
    """Return the width of the model's output, if targets are class ids; else None."""
    is_ids = isinstance(targets, torch.Tensor) and targets.ndim == 1 and not targets.is_floating_point()
    if not is_ids:
        return None
    was_training = model.training
    outputs = model.eval()(move(inputs, device))
    model.train(was_training)
    is_scores = isinstance(outputs, torch.Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
    return outputs.shape[1] if is_scores else None


def _first_sample(data: DataLoader[Any] | TensorDataset) -> tuple[Any, Any]:
    if isinstance(data, TensorDataset):
        inputs, targets = data.tensors
        return inputs[:1], targets[:1]
    many = getattr(data.dataset, "__getitems__", None)
    if not isinstance(data.dataset, IterableDataset) and data.batch_size is not None:
        return split_pair(data.collate_fn(many([0]) if many else [data.dataset[0]]))
    return split_pair(next(iter(data)))


def build_model_for(config: TrainConfig, task: Task[Any]) -> nn.Module:
    """Build the config's network for a data set, with weights drawn from the config's seed."""
    seed_everything(config.seed)
    return build_model(config.task.model, shape=task.shape, outputs=task.classes or 1)

"""Evaluation that is exact: every sample counts once, whatever the number of ranks or the size of batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from muse_spark_ray.data import ParquetStream, split_pair
from muse_spark_ray.training.devices import move
from muse_spark_ray.training.distributed import World, sum_over_ranks
from muse_spark_ray.training.metrics import MetricSet
from muse_spark_ray.training.objective import Objective
from muse_spark_ray.training.precision import Precision

EVALUATION_BATCH = 1024
IGNORED = -100
Pairs = Iterator[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results over the whole validation set.

    Args:
        loss: Mean loss by sample weight.
        accuracy: Share of right classes in [0, 1]; None for other tasks.
        samples: Samples evaluated, each once.
        metrics: Further metrics by name.
    """

    loss: float
    accuracy: float | None
    samples: int
    metrics: dict[str, float] = field(default_factory=dict)


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    data: DataLoader[Any] | TensorDataset,
    objective: Objective,
    precision: Precision,
    world: World,
    metrics: MetricSet | None = None,
) -> Evaluation:
    """Evaluate a model on all ranks together.

    Args:
        model: Put into eval mode for the time of the evaluation; its mode comes back.
        data: Validation loader, or tensors in memory.
        objective: The criterion.
        precision: Autocast as in training; sums are taken in float64.
        world: This rank among its peers.
        metrics: What is measured besides loss and accuracy.

    Returns:
        The same numbers on every rank.
    """
    was_training = model.training
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=world.device)  # loss, weight, right, samples
    is_classes = False
    example: Any = None
    if metrics:
        metrics.reset()
    for inputs, targets in _own_batches(data, world):
        targets = move(targets, world.device)
        with precision.autocast():
            inputs = move(inputs, world.device)
            outputs = model(inputs)
            loss, weight = objective.sums(outputs, targets)
        example = inputs[:1] if example is None and isinstance(inputs, torch.Tensor) else example
        right, count, is_classes = _right(outputs, targets)
        sums += torch.stack([loss, weight, right, weight.new_tensor(count)]).double()
        if metrics:
            metrics.update(outputs, targets)
    found = metrics.read(model, example) if metrics else {}
    model.train(was_training)
    loss_sum, weight_sum, right_sum, samples, classes = sum_over_ranks([*sums.tolist(), float(is_classes)], world)
    accuracy = right_sum / samples if classes and samples else None
    return Evaluation(loss_sum / weight_sum if weight_sum else float("nan"), accuracy, int(samples), found)


@torch.inference_mode()
def predictions(
    model: nn.Module, data: DataLoader[Any] | TensorDataset, precision: Precision, world: World
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (outputs float32, targets) of all validation samples on the CPU, the same on every rank."""
    was_training = model.training
    model.eval()
    parts = []
    for inputs, targets in _own_batches(data, world):
        with precision.autocast():
            outputs = model(move(inputs, world.device))
        parts.append((outputs.float().cpu(), targets.cpu()))
    model.train(was_training)
    if world.size > 1:
        gathered: list[Any] = [None] * world.size
        torch.distributed.all_gather_object(gathered, parts)
        parts = [pair for share in gathered for pair in share]
    return torch.cat([outputs for outputs, _ in parts]), torch.cat([targets for _, targets in parts])


def _right(outputs: Any, targets: Any) -> tuple[torch.Tensor, int, bool]:
    """Count right classes and labels, where outputs are class scores and targets class ids.

    Returns:
        (right ones, labels that are not ignored or else samples, whether these are classes).
    """
    is_scores = isinstance(outputs, torch.Tensor) and outputs.ndim >= 2 and outputs.shape[1] > 1
    is_ids = is_scores and targets.ndim == outputs.ndim - 1 and not targets.is_floating_point()
    if not is_ids:
        return torch.zeros((), device=targets.device), len(targets), False
    right = (outputs.argmax(1) == targets).sum().float()
    count = targets.numel() if targets.ndim == 1 else int((targets != IGNORED).sum())
    return right, count, True


def _own_batches(data: DataLoader[Any] | TensorDataset, world: World) -> Pairs:
    """Yield this rank's batches; all ranks together yield each sample once, without padding."""
    if isinstance(data, TensorDataset):
        yield from _tensor_batches(data, EVALUATION_BATCH, world)
    elif world.size > 1 and _is_plain(data):
        yield from _dataset_batches(data, world)
    else:
        is_dealt_out = isinstance(data.dataset, ParquetStream)
        for index, raw in enumerate(data):
            if is_dealt_out or index % world.size == world.rank:
                yield split_pair(raw)


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Say if a loader reads its whole data set; a DistributedSampler would repeat samples to fill up."""
    is_whole = type(loader.sampler) in (SequentialSampler, DistributedSampler)
    return is_whole and not isinstance(loader.dataset, IterableDataset) and not loader.drop_last


def _tensor_batches(data: TensorDataset, size: int, world: World) -> Pairs:
    rows = torch.tensor_split(torch.arange(len(data)), world.size)[world.rank]
    start, stop = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    inputs, targets = data.tensors
    for begin in range(start, stop, size):
        end = min(begin + size, stop)
        yield inputs[begin:end], targets[begin:end]


def _dataset_batches(loader: DataLoader[Any], world: World) -> Pairs:
    rows = torch.tensor_split(torch.arange(len(loader.dataset)), world.size)[world.rank]  # type: ignore[arg-type]
    chunks = [chunk.tolist() for chunk in torch.split(rows, loader.batch_size or 1)] if len(rows) else []
    own: DataLoader[Any] = DataLoader(
        loader.dataset, batch_sampler=chunks, num_workers=loader.num_workers, collate_fn=loader.collate_fn
    )
    for raw in own:
        yield split_pair(raw)

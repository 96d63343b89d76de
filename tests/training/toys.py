"""Small problems with known answers, shared by the training tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from muse_spark_ray import MuseSparkTrainer


class Line(nn.Module):
    """Prediction w * x with one weight that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


class Batches:
    """A data set whose batches are given one by one, so that their sizes are the test's."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.batches = batches

    def loader(self) -> DataLoader[Any]:
        return DataLoader(_Stream(self.batches), batch_size=None)


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class GradientLog:
    """Writes down the gradient of each parameter at every step of an optimizer, and the learning rate."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.gradients: list[list[float]] = []
        self.rates: list[float] = []
        optimizer.register_step_pre_hook(self._note)

    def _note(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        group = optimizer.param_groups[0]
        self.rates.append(group["lr"])
        self.gradients.append([float(v) for p in group["params"] if p.grad is not None for v in p.grad.flatten()])


def in_order(data: TensorDataset, batch_size: int) -> DataLoader[Any]:
    """Return a loader that does not shuffle."""
    return DataLoader(data, batch_size=batch_size, shuffle=False)


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of 0.5 * (output - target)^2."""
    return 0.5 * ((outputs - targets) ** 2).mean()


def blobs(samples: int = 60, *, classes: int = 3, features: int = 4, seed: int = 0) -> TensorDataset:
    """Return separable classes."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(samples) % classes
    centres = torch.randn(classes, features, generator=generator) * 3
    return TensorDataset(centres[targets] + torch.randn(samples, features, generator=generator), targets)


def small_net(*, features: int = 4, classes: int = 3, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """Return a network with fixed first weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, classes))


def trained(
    model: nn.Module,
    data: Any,
    *,
    epochs: int,
    lr: float = 0.1,
    validation: Any = None,
    criterion: Any = None,
    **config: Any,
) -> MuseSparkTrainer:
    """Train a model with plain SGD and return its trainer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    trainer = MuseSparkTrainer(model, optimizer, criterion or nn.CrossEntropyLoss(), data, validation, config)
    trainer.fit(epochs=epochs)
    return trainer


def weights(model: nn.Module) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])

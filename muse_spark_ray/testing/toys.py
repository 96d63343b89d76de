"""A tiny classification problem that exercises what training carries along: dropout, BatchNorm, momentum."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from muse_spark_ray.training.trainer import MuseSparkTrainer

IMAGE = (1, 2, 2)
FEATURES, CLASSES, SAMPLES = 4, 3, 60


def blobs(samples: int = SAMPLES, *, seed: int = 0) -> TensorDataset:
    """Return separable classes.

    Args:
        samples: Number of samples; classes take turns.
        seed: Seed of the noise around the centres, which are always the same.

    Returns:
        Inputs [samples, 1, 2, 2] float32 and targets [samples] int64.
    """
    targets = torch.arange(samples) % CLASSES
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0)) * 3
    noise = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(seed + 1))
    data = TensorDataset((centres[targets] + noise).view(-1, *IMAGE), targets)
    data.lengths = [1 + 7 * i % 5 for i in range(samples)]  # type: ignore[attr-defined]
    return data


def toy_net() -> nn.Sequential:
    """Return a network with fixed first weights; its BatchNorm has two values a sample, so that one sample will do."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 8, (1, 2)),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(16, CLASSES),
        )


def toy_teacher() -> nn.Sequential:
    """Return another network for the same task, with weights of its own."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, CLASSES)
        )


def toy_trainer(
    model: nn.Module | None = None,
    *,
    folder: str | Path | None = None,
    batch_size: int = 8,
    strategies: Mapping[str, Any] | None = None,
    seed: int = 0,
    **config: Any,
) -> MuseSparkTrainer:
    """Return a trainer for the toy problem, with SGD and momentum.

    Args:
        model: Trained in place; None trains a new toy network.
        folder: Where checkpoints go; None writes none.
        batch_size: Samples in a micro-batch on one rank.
        strategies: The `strategies` block; None leaves the key out.
        seed: Where the process's random stream starts.
        **config: Other keys of the training config.

    Returns:
        A trainer, resumed if `folder` holds a checkpoint.
    """
    net = model if model is not None else toy_net()
    settings = dict(config)
    if strategies is not None:
        settings["strategies"] = dict(strategies)
    if folder is not None:
        settings["checkpoint"] = {**settings.get("checkpoint", {}), "save_dir": str(folder)}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(seed)
    loader = DataLoader(blobs(), batch_size, shuffle=True)
    return MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), loader, blobs(20, seed=1), settings)

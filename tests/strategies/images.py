"""Small image batches, and contexts to build strategies in, for the tests of strategies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from muse_spark_ray.spec.load import train_config
from muse_spark_ray.strategy import Batch, Context, Step, Strategy, strategies

FIRST, LATER = Step(epoch=0, update=0), Step(epoch=50, update=500)


def build(name: str, *, classes: int | None = 3, **settings: Any) -> Strategy:
    """Return a strategy as a run would build it."""
    config = train_config({"strategies": {name: settings}}).strategies.switched_on()[name]
    return strategies()[name](config, Context(samples=100, classes=classes))


def batch(count: int = 6, *, side: int = 6, weights: Tensor | None = None) -> Batch:
    """Return images that hold their own number in each pixel, and their class."""
    numbers = torch.arange(1, count + 1, dtype=torch.float32)
    images = numbers[:, None, None, None].expand(count, 2, side, side).clone()
    return Batch(images, torch.arange(count) % 3, torch.arange(count), weights)

"""The built-in networks, and the user's own by a factory."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.task import ModelConfig
from muse_spark_ray.strategy import import_object

FACTORY_NAMES = ("build_model", "make_model", "model", "Model")


def build_model(config: ModelConfig, *, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a network.

    Args:
        config: Which one, and its sizes.
        shape: Shape of one input without the batch axis.
        outputs: Number of classes or predicted values.

    Returns:
        A module that maps [B, *shape] float32 to [B, outputs].

    Raises:
        ConfigError: If the network does not fit the inputs, or a factory cannot be loaded.
    """
    if config.name == "factory":
        return load_factory(config.factory or "", config.arguments)
    if config.name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))
    if config.name == "mlp":
        return mlp(math.prod(shape), outputs, width=config.width, depth=config.depth, dropout=config.dropout)
    if len(shape) != 3:
        raise ConfigError(
            f"task.model.name is cnn, which needs images [channels, height, width]; the inputs have the shape {shape}. Use mlp."
        )
    return cnn(shape, outputs, width=config.width, depth=config.depth, dropout=config.dropout)


def mlp(inputs: int, outputs: int, *, width: int, depth: int, dropout: float) -> nn.Sequential:
    """Return a network of `depth` hidden layers with `width` units each."""
    layers: list[nn.Module] = [nn.Flatten()]
    for layer in range(depth):
        layers += [nn.Linear(inputs if layer == 0 else width, width), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def cnn(shape: tuple[int, ...], outputs: int, *, width: int, depth: int, dropout: float) -> nn.Sequential:
    """Return `depth` convolutions of stride 2 with BatchNorm, channels doubling up to `width`, then a linear layer."""
    channels, height, columns = shape
    layers: list[nn.Module] = []
    for layer in range(depth):
        out = max(1, width >> (depth - 1 - layer))
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        channels, height, columns = out, (height + 1) // 2, (columns + 1) // 2
    layers += [nn.Flatten()] + ([nn.Dropout(dropout)] if dropout else [])
    return nn.Sequential(*layers, nn.Linear(channels * height * columns, outputs))


def load_factory(reference: str, arguments: dict[str, Any]) -> nn.Module:
    """Call the user's factory.

    Args:
        reference: `package.module:function`, `path/to/file.py:function`, or a file alone, which is then searched for
            one of `build_model`, `make_model`, `model`, `Model`.
        arguments: Passed by keyword.

    Raises:
        ConfigError: If it cannot be found or does not return a module.
    """
    factory = import_object(reference, names=FACTORY_NAMES, what="model")
    built = factory if isinstance(factory, nn.Module) else factory(**arguments)
    if not isinstance(built, nn.Module):
        raise ConfigError(f"{reference} returned a {type(built).__name__}; a model factory returns a torch.nn.Module.")
    return built

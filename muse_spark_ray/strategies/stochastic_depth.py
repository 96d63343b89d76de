"""Stochastic depth: leave out residual blocks at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Card, Stage, Strategy, StrategyConfig, change_forward, knob, named_blocks
from muse_spark_ray.strategy.blocks import Forward


def drop_rates(blocks: int, last: float) -> list[float]:
    """Return the rate of each block: rising linearly to `last`.

    Source: Huang et al. 2016, Deep Networks with Stochastic Depth, equation 4.
    """
    return [last * (index + 1) / blocks for index in range(blocks)]


def residual(block: Forward, x: Tensor, rate: float, *, parameters: list[nn.Parameter], name: str) -> Tensor:
    """Pass a batch through a block, or around it.

    Args:
        block: Maps [B, ...] to the same shape and adds its input itself.
        x: [B, ...].
        rate: Probability of going around it, in [0, 1).
        parameters: Of the block; they take part with gradient 0 when it is left out, where ranks exchange gradients.
        name: For messages.

    Returns:
        x, or x + (block(x) - x) / (1 - rate), whose mean is block(x).
    """
    if float(torch.rand(())) < rate:
        return x + sum(p.sum() * 0.0 for p in parameters) if parameters else x
    y = block(x)
    if y.shape != x.shape:
        raise ConfigError(
            f"strategies.stochastic_depth.blocks: {name} maps {tuple(x.shape)} to {tuple(y.shape)}; only blocks that keep "
            "the shape can be left out."
        )
    result: Tensor = x + (y - x) / (1.0 - rate)
    return result


class StochasticDepth(Strategy):
    """Leave out residual blocks in training, deeper ones more often; evaluation uses all.

    One decision for each block and micro-batch, so that a block which is left out costs nothing.
    """

    stage = Stage.UPDATE
    card = Card(
        saves="the forward and backward passes of the blocks left out, half the rate on average",
        costs="one random number a block",
        pays="deep residual networks and Transformers",
        hurts="shallow networks, short trainings",
        source="Huang et al. 2016, section 3",
    )

    class Config(StrategyConfig):
        """Settings of stochastic depth."""

        blocks: str = knob(..., doc="names of the residual blocks, such as `layers.*`; each maps x to x + f(x)")
        rate: float = knob(0.2, ge=0, lt=1, search=(0.05, 0.5), doc="probability that the last block is left out")

    def prepare_model(self, model: nn.Module) -> nn.Module:
        blocks = named_blocks(model, self.config.blocks, what="strategies.stochastic_depth.blocks")
        for (name, block), rate in zip(blocks, drop_rates(len(blocks), self.config.rate), strict=True):
            change_forward(block, self._around(name, rate))
        return model

    def _around(self, name: str, rate: float) -> Any:
        is_shared = self.context.world_size > 1

        def around(module: nn.Module, own: Forward) -> Forward:
            if not module.training or rate == 0.0:
                return own
            parameters = [p for p in module.parameters() if p.requires_grad] if is_shared else []
            return lambda x: residual(own, x, rate, parameters=parameters, name=name)

        return around

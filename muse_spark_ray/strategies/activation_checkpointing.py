"""Activation checkpointing: compute activations twice instead of keeping them."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from muse_spark_ray.strategy import Card, Stage, Strategy, StrategyConfig, change_forward, knob, named_blocks
from muse_spark_ray.strategy.blocks import Forward


def recomputed(module: nn.Module, own: Forward) -> Forward:
    """Return a forward pass that keeps only its inputs and is run again in the backward pass, with the same dropout."""
    if not (module.training and torch.is_grad_enabled()):
        return own
    return lambda *inputs, **named: checkpoint(own, *inputs, use_reentrant=False, **named)


class ActivationCheckpointing(Strategy):
    """Keep only the inputs of chosen blocks and compute their insides again in the backward pass.

    Gradients are the same; BatchNorm layers inside a block see each batch twice, as in torch itself.
    """

    stage = Stage.UPDATE
    card = Card(
        saves="memory of activations, so that larger batches or models fit",
        costs="a second forward pass of the chosen blocks, about a third more time",
        pays="models whose activations fill the GPU's memory",
        hurts="where memory is not the limit: it only costs time",
        source="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost",
    )

    class Config(StrategyConfig):
        """Settings of activation checkpointing."""

        blocks: str = knob(..., doc="names of the blocks whose insides are computed again, such as `layers.*`")

    def prepare_model(self, model: nn.Module) -> nn.Module:
        for _, block in named_blocks(model, self.config.blocks, what="strategies.activation_checkpointing.blocks"):
            change_forward(block, recomputed)
        return model

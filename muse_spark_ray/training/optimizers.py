"""Optimizers from a config, with weight decay where it belongs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from muse_spark_ray.spec.train import OptimizerConfig

_NORMALISATION = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into those that decay and those that do not: biases and all of normalisation layers.

    Returns:
        One or two groups with `params` and `weight_decay`; a parameter shared by two layers stands in one.
    """
    spared, seen = [], set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, _NORMALISATION) or name.rpartition(".")[2].startswith("bias"):
                spared.append(parameter)
                seen.add(id(parameter))
    decayed = [parameter for parameter in model.parameters() if id(parameter) not in seen]
    unique = list({id(parameter): parameter for parameter in spared}.values())
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": unique, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the optimizer of a config over all parameters that need gradients."""
    groups = [
        {**group, "params": [p for p in group["params"] if p.requires_grad]}
        for group in parameter_groups(model, weight_decay=config.weight_decay)
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.momentum, config.beta2))

"""Optimizers from a config, with weight decay where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.train import OptimizerConfig
from muse_spark_ray.training.lion import Lion

_NORMALISATION = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)
Groups = list[dict[str, Any]]


def parameter_groups(model: nn.Module, *, weight_decay: float) -> Groups:
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
    """Build the optimizer of a config over all parameters that need gradients.

    Raises:
        ConfigError: If it needs a package that is not installed, or a GPU.
    """
    return _BUILDERS[config.name](model, _trained_groups(model, config.weight_decay), config)


def set_mode(optimizer: torch.optim.Optimizer, *, training: bool) -> None:
    """Tell a schedule-free optimizer which weights the model shows: those to train or those to use."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if switch is not None:
        switch()


class Together(torch.optim.Optimizer):
    """Several optimizers that share a model, as one; the groups of the first come first."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)

    @property
    def param_groups(self) -> Groups:  # type: ignore[override]
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> Any:  # type: ignore[override]
        return {p: kept for part in self.parts for p, kept in part.state.items()}

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.parts[-1].add_param_group(group)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, own in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(own)


def _trained_groups(model: nn.Module, weight_decay: float) -> Groups:
    groups = [
        {**group, "params": [p for p in group["params"] if p.requires_grad]}
        for group in parameter_groups(model, weight_decay=weight_decay)
    ]
    return [group for group in groups if group["params"]]


def _implementation(c: OptimizerConfig) -> dict[str, bool]:
    return {} if c.implementation == "auto" else {c.implementation: True}


def _betas(c: OptimizerConfig) -> tuple[float, float]:
    return (c.momentum, c.beta2)


def _sgd(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=c.lr, momentum=c.momentum, nesterov=c.nesterov, **_implementation(c))


def _adam(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=c.lr, betas=_betas(c), **_implementation(c))


def _adamw(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=c.lr, betas=_betas(c), **_implementation(c))


def _adafactor(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(groups, lr=c.lr, foreach=True if c.implementation == "foreach" else None)


def _lion(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    return Lion(groups, lr=c.lr, betas=_betas(c))


def _muon(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    """Muon for the matrices of hidden linear layers, AdamW for all else: embeddings, convolutions, the last layer."""
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    hidden = {id(weight) for weight in linear[:-1] if weight.requires_grad}
    matrices = [p for group in groups for p in group["params"] if id(p) in hidden]
    others = [{**group, "params": [p for p in group["params"] if id(p) not in hidden]} for group in groups]
    if not matrices:
        raise ConfigError(
            "optimizer.name is muon, but the model has no hidden linear layer for it; use adamw.",
        )
    muon = torch.optim.Muon(
        matrices, lr=c.lr, momentum=c.momentum, weight_decay=c.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    rest = torch.optim.AdamW([group for group in others if group["params"]], lr=c.lr, betas=_betas(c))
    return Together([muon, rest])


def _schedule_free(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    package = _needed("schedulefree", c.name)
    if c.name == "sgd_schedulefree":
        return package.SGDScheduleFree(groups, lr=c.lr, momentum=c.momentum)  # type: ignore[no-any-return]
    return package.AdamWScheduleFree(groups, lr=c.lr, betas=_betas(c))  # type: ignore[no-any-return]


def _adamw_8bit(model: nn.Module, groups: Groups, c: OptimizerConfig) -> torch.optim.Optimizer:
    device = next(model.parameters()).device.type
    if device != "cuda":
        raise ConfigError(
            f"optimizer.name is adamw_8bit, which needs a CUDA device; the model is on {device}. Use adamw."
        )
    package = _needed("bitsandbytes", c.name)
    return package.optim.AdamW8bit(groups, lr=c.lr, betas=_betas(c))  # type: ignore[no-any-return]


def _needed(package: str, name: str) -> Any:
    try:
        return __import__(package)
    except ImportError as error:
        raise ConfigError(
            f"optimizer.name is {name}, which needs the package {package}; it is not installed.",
            hint="pip install 'muse-spark-ray[optimizers]'",
        ) from error


_BUILDERS: dict[str, Callable[[nn.Module, Groups, OptimizerConfig], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "adafactor": _adafactor,
    "lion": _lion,
    "muon": _muon,
    "adamw_schedulefree": _schedule_free,
    "sgd_schedulefree": _schedule_free,
    "adamw_8bit": _adamw_8bit,
}

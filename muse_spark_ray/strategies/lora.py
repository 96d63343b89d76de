"""LoRA: train two thin matrices beside each frozen linear layer."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import (
    Card,
    Context,
    Stage,
    Strategy,
    StrategyConfig,
    Trait,
    change_forward,
    knob,
    named_blocks,
)
from muse_spark_ray.strategy.blocks import Forward


def add_adapter(layer: nn.Linear, *, rank: int, alpha: float, dropout: float) -> None:
    """Give a linear layer two trained matrices: y = W x + b + (alpha / rank) B A x, with B = 0 at first.

    Args:
        layer: Changed in place; its own weights keep their names and are frozen by the caller.
        rank: Rows of A [rank, in] and columns of B [out, rank].
        alpha: Strength.
        dropout: On the input of A.

    Source: Hu et al. 2022, LoRA, section 4.1.
    """
    a = torch.empty(rank, layer.in_features, device=layer.weight.device, dtype=layer.weight.dtype)
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    layer.lora_a = nn.Parameter(a)
    layer.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
    layer.lora_scale = alpha / rank  # type: ignore[assignment]

    def around(module: nn.Module, own: Forward) -> Forward:
        def adapted(x: Tensor) -> Tensor:
            thin = nn.functional.dropout(x, dropout, module.training) if dropout else x
            result: Tensor = own(x) + module.lora_scale * (thin @ module.lora_a.T @ module.lora_b.T)  # type: ignore[operator]
            return result

        return adapted

    change_forward(layer, around)


@torch.no_grad()
def merged(model: nn.Module) -> nn.Module:
    """Return a copy with plain linear layers into whose weights the adapters were added."""
    plain = copy.deepcopy(model)
    for layer in plain.modules():
        if isinstance(layer, nn.Linear) and hasattr(layer, "lora_a"):
            layer.weight += layer.lora_scale * (layer.lora_b @ layer.lora_a)  # type: ignore[operator]
            del layer.lora_a, layer.lora_b, layer.lora_scale
            layer.__class__ = type(layer).__mro__[1]
    return plain.requires_grad_(True)


class LowRankAdaptation(Strategy):
    """Freeze the model and train two thin matrices beside each of its linear layers.

    `muse_spark_ray.strategies.lora.merged(model)` returns the plain model in the end.
    """

    stage = Stage.UPDATE
    refuses = frozenset({Trait.CHANGING_SHAPES})
    changes_architecture = True
    card = Card(
        saves="memory of gradients and optimizer state, gradient exchange: often 1 % of the parameters are trained",
        costs="two thin products a layer",
        pays="fine-tuning large pretrained models",
        hurts="training from scratch: the frozen weights are random",
        source="Hu et al. 2022, section 4",
    )

    class Config(StrategyConfig):
        """Settings of LoRA."""

        rank: int = knob(8, ge=1, le=1024, search=(2, 64, "log"), doc="rows of the thin matrices")
        alpha: float = knob(
            16.0, gt=0, search=(4.0, 64.0, "log"), doc="strength; the product is scaled by alpha / rank"
        )
        dropout: float = knob(0.0, ge=0, lt=1, doc="dropout on the adapters' inputs")
        layers: str | None = knob(None, doc="names of the linear layers, such as `blocks.*.attention`; none: all")
        train: str | None = knob(None, doc="names of modules that are trained as a whole, such as `head`")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._model: nn.Module = nn.Module()

    def prepare_model(self, model: nn.Module) -> nn.Module:
        c = self.config
        model.requires_grad_(False)
        whole = dict(named_blocks(model, c.train, what="strategies.lora.train")) if c.train else {}
        for module in whole.values():
            module.requires_grad_(True)
        for layer in self._layers(model):
            if layer not in whole.values():
                add_adapter(layer, rank=c.rank, alpha=c.alpha, dropout=c.dropout)
        self._model = model
        return model

    def _layers(self, model: nn.Module) -> list[nn.Linear]:
        pattern = self.config.layers
        chosen = list(model.modules())
        if pattern is not None:
            chosen = [module for _, module in named_blocks(model, pattern, what="strategies.lora.layers")]
        layers = [module for module in chosen if isinstance(module, nn.Linear)]
        if not layers:
            raise ConfigError(f"strategies.lora.layers: {pattern or 'the model'} holds no nn.Linear to adapt.")
        return layers

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        new = [p for p in self._model.parameters() if p.requires_grad and id(p) not in known]
        if new:
            optimizer.add_param_group({"params": new, "weight_decay": 0.0})
        return optimizer

    def report(self) -> dict[str, Any]:
        counts = [(p.numel(), p.requires_grad) for p in self._model.parameters()]
        return {
            "parameters": sum(n for n, _ in counts),
            "trained_parameters": sum(n for n, trained in counts if trained),
        }

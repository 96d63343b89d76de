"""Magnitude pruning: set small weights to zero while training goes on, more and more of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from muse_spark_ray.strategy import Card, Context, Stage, Step, Strategy, StrategyConfig, Trait, knob

Pattern = Literal["unstructured", "2:4"]
_GROUP, _KEPT = 4, 2


def sparsity_at(update: int, *, final: float, begin: int, end: int) -> float:
    """Return the share of zeros after `update` updates: a cubic rise from `begin` to `end`.

    Source: Zhu and Gupta 2018, To Prune, or Not to Prune, equation 1.
    """
    if update < begin:
        return 0.0
    progress = min(1.0, (update - begin) / max(1, end - begin))
    return final * (1.0 - (1.0 - progress) ** 3)


def magnitude_mask(weights: Tensor, sparsity: float) -> Tensor:
    """Return [same shape] bool that is False for the smallest weights; exactly round(sparsity * N) of them."""
    count = round(sparsity * weights.numel())
    mask = torch.ones(weights.numel(), dtype=torch.bool, device=weights.device)
    mask[weights.abs().flatten().argsort(stable=True)[:count]] = False
    return mask.view_as(weights)


def two_of_four_mask(weights: Tensor) -> Tensor:
    """Return [same shape] bool that keeps the 2 largest of each 4 neighbours along the inputs of an output.

    A rest of fewer than 4 inputs is kept. This is the pattern that sparse tensor cores compute at twice the speed
    (Mishra et al. 2021, Accelerating Sparse Deep Neural Networks).
    """
    rows = weights.abs().flatten(1)
    whole = rows.shape[1] // _GROUP * _GROUP
    groups = rows[:, :whole].reshape(len(rows), -1, _GROUP)
    kept = torch.zeros_like(groups, dtype=torch.bool).scatter_(2, groups.topk(_KEPT, dim=2).indices, True)
    rest = torch.ones(len(rows), rows.shape[1] - whole, dtype=torch.bool, device=weights.device)
    return torch.cat([kept.flatten(1), rest], dim=1).view_as(weights)


def prunable(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of linear and convolution layers by name; biases and normalisation stay whole."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {f"{name}.weight": m.weight for name, m in model.named_modules() if isinstance(m, kinds)}


class MagnitudePruning(Strategy):
    """Set the smallest weights of each layer to zero, a rising share of them, while training goes on.

    The saved weights hold the zeros, so that a checkpoint needs nothing else to be evaluated. Zeros make a model
    smaller when compressed, and faster where kernels use them (2:4 on tensor cores).
    """

    stage = Stage.UPDATE
    refuses = frozenset({Trait.CHANGING_SHAPES, Trait.WEIGHTS_APART})
    card = Card(
        saves="size of the compressed model; inference time with kernels that use the pattern",
        costs="one multiplication of the weights an update, one sort of them every few updates",
        pays="networks that are larger than their task",
        hurts="short trainings, small networks; it does not make training itself faster",
        source="Zhu and Gupta 2018, equation 1; Mishra et al. 2021 (2:4)",
    )

    class Config(StrategyConfig):
        """Settings of magnitude pruning."""

        pattern: Pattern = knob(
            "unstructured",
            search=["unstructured", "2:4"],
            doc="any place, or 2 of each 4 neighbours (then half is zero)",
        )
        sparsity: float = knob(0.5, ge=0, lt=1, search=(0.3, 0.9), doc="share of zeros in the end (unstructured)")
        begin: int = knob(100, ge=0, doc="updates before the first weight is pruned")
        end: int = knob(1000, ge=1, search=(200, 5000, "log"), doc="updates until the final share is reached")
        every: int = knob(50, ge=1, doc="updates between two choices of the smallest weights")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._weights: dict[str, Tensor] = {}
        self._masks: dict[str, Tensor] = {}
        self._updates = 0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._weights = prunable(model)
        return model

    @torch.no_grad()
    def after_update(self, model: nn.Module, step: Step) -> None:
        self._updates += 1
        c = self.config
        if (c.begin <= self._updates <= c.end and (self._updates - c.begin) % c.every == 0) or self._updates == c.end:
            self._masks = {name: self._mask(weights) for name, weights in self._weights.items()}
        for name, mask in self._masks.items():
            self._weights[name].mul_(mask)

    def _mask(self, weights: Tensor) -> Tensor:
        c = self.config
        if c.pattern == "2:4":
            return two_of_four_mask(weights)
        return magnitude_mask(weights, sparsity_at(self._updates, final=c.sparsity, begin=c.begin, end=c.end))

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "masks": {name: mask.clone() for name, mask in self._masks.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates = int(state["updates"])
        self._masks = {name: mask.to(self._weights[name].device) for name, mask in state["masks"].items()}

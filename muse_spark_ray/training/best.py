"""Which epoch was best, and the weights it had."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(slots=True)
class Best:
    """The best epoch so far by one metric; a value that is not finite is never best.

    Args:
        metric: Name of the metric.
        higher_is_better: Its direction.
    """

    metric: str
    higher_is_better: bool
    value: float | None = None
    epoch: int | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)

    def offer(self, value: float | None, *, epoch: int, model: nn.Module) -> bool:
        """Take an epoch's value; keep a copy of the weights if it is better than all before.

        Returns:
            True if it is the best so far.
        """
        if value is None or not math.isfinite(value):
            return False
        if self.value is not None and (value <= self.value if self.higher_is_better else value >= self.value):
            return False
        self.value, self.epoch = value, epoch
        self.weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        return True

    def forget_other_shapes(self, model: nn.Module) -> None:
        """Look for the best epoch anew if the weights that were kept no longer fit the model."""
        now = {name: tensor.shape for name, tensor in model.state_dict().items()}
        if {name: tensor.shape for name, tensor in self.weights.items()} != now:
            self.value, self.epoch, self.weights = None, None, {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"value": self.value, "epoch": self.epoch, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.value, self.epoch, self.weights = state["value"], state["epoch"], dict(state["weights"])

"""An epoch that is under way: the sums so far, and where reading goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from muse_spark_ray.data import Position

_POSITION, _LOADER = "position", "loader"


@dataclass(slots=True)
class Progress:
    """What an epoch's metrics are made of, as far as the epoch has come.

    Args:
        position: Where reading goes on.
        loss_sum: Losses of the applied windows by weight, as this rank saw them.
        weight_sum: Their weights, over all ranks.
        samples: Samples trained on, over all ranks.
        seconds: Training time that earlier processes spent on the epoch.
        began: When this process began with it, by the monotonic clock.
        skipped: Skipped steps of the training when the epoch began.
        bad: Bad steps of the training when the epoch began.
        grad_norm: Gradient norm of the last window before clipping; None where it was not needed.
    """

    position: Position = field(default_factory=Position)
    loss_sum: float = 0.0
    weight_sum: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)
    skipped: int = 0
    bad: int = 0
    grad_norm: float | None = None

    @property
    def seconds_here(self) -> float:
        """Seconds since this process began with the epoch."""
        return time.monotonic() - self.began

    def common_state(self) -> dict[str, Any]:
        """Return what all ranks have in common, and this rank's time, as tensors and plain containers."""
        state: dict[str, Any] = {own.name: getattr(self, own.name) for own in fields(self) if own.name != "began"}
        position = self.position.state_dict()
        del position[_LOADER]
        return state | {_POSITION: position, "seconds": self.seconds + self.seconds_here}

    def own_state(self, loader: dict[str, Any] | None) -> dict[str, Any]:
        """Return what is this rank's own, with where its loader stands."""
        return {"loss_sum": self.loss_sum, _LOADER: loader}

    @classmethod
    def from_state(cls, common: Mapping[str, Any], ranks: list[dict[str, Any]], *, rank: int, size: int) -> Progress:
        """Put it together again, on as many ranks as it was saved by or on another number.

        Args:
            common: As `common_state` returned it.
            ranks: What `own_state` returned on each rank.
            rank: This rank.
            size: Number of ranks now.
        """
        is_same = len(ranks) == size
        loss_sum = ranks[rank]["loss_sum"] if is_same else sum(own["loss_sum"] for own in ranks) / len(ranks)
        loader = ranks[rank if is_same else 0][_LOADER]
        if loader is not None:
            loader = {**loader, "ranks": [own[_LOADER]["batches"] for own in ranks]}
        position = Position(**common[_POSITION], loader=loader)
        return cls(**{**common, _POSITION: position, "loss_sum": float(loss_sum)})

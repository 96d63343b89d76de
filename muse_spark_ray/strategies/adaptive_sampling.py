"""Adaptive sampling: spend updates on the samples whose loss says that they matter now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import model_validator
from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Context, Stage, Step, Strategy, StrategyConfig, Trait, knob

Rule = Literal["high_loss", "medium_loss"]


def select(losses: Tensor, *, rule: Rule, fraction: float = 0.3, low: float = 0.3, high: float = 0.7) -> Tensor:
    """Choose samples by the rank of their loss.

    Args:
        losses: [N] float32, one smoothed loss per sample; NaN where it is not known.
        rule: `high_loss` takes the `fraction` with the largest losses; `medium_loss` those whose rank, from the
            smallest, lies between the shares `low` and `high`.
        fraction: Share taken by `high_loss`, in (0, 1].
        low: Lower end of the band of `medium_loss`.
        high: Upper end of the band of `medium_loss`.

    Returns:
        [N] bool; False where the loss is not a finite number. Equal losses are taken in the order of the samples.
    """
    chosen = torch.zeros(len(losses), dtype=torch.bool)
    finite = torch.nonzero(torch.isfinite(losses)).flatten()
    ascending = finite[torch.argsort(losses[finite], stable=True)]
    count = len(ascending)
    if rule == "high_loss":
        chosen[ascending[count - max(1, round(fraction * count)) :]] = True
    else:
        chosen[ascending[round(low * count) : max(round(high * count), round(low * count) + 1)]] = True
    return chosen


class AdaptiveSampling(Strategy):
    """Train each epoch on the samples that the current losses single out.

    Losses come from the training passes themselves, smoothed per sample; no extra pass. Samples not seen yet
    always stay in, samples whose last loss was not finite stay out until a full epoch, and every `full_every`-th
    epoch uses everything, so that no loss grows stale.
    """

    stage = Stage.SAMPLES
    needs = frozenset({Trait.PER_SAMPLE_LOSSES, Trait.INDEXED_SAMPLES})
    card = Card(
        saves="forward and backward passes on samples that teach little",
        costs="one float a sample; one sort per selection",
        pays="large sets with many easy samples (high_loss), noisy labels (medium_loss)",
        hurts="small clean sets; high_loss chases label noise",
        source="Jiang et al. 2019, Selective-Backprop; Katharopoulos and Fleuret 2018",
    )

    class Config(StrategyConfig):
        """Settings of the selection."""

        strategy: Rule = knob("medium_loss", search=["high_loss", "medium_loss"], doc="which losses are chosen")
        update_freq: int = knob(100, ge=1, doc="updates between two selections within an epoch")
        fraction: float = knob(0.3, gt=0, le=1, search=(0.2, 0.8), doc="share of the samples that high_loss keeps")
        low: float = knob(0.3, ge=0, lt=1, doc="lower end of the band of medium_loss, as a share of the ranks")
        high: float = knob(0.7, gt=0, le=1, doc="upper end of the band of medium_loss, as a share of the ranks")
        warmup_epochs: int = knob(1, ge=1, search=(1, 3), doc="epochs on all samples before the first selection")
        full_every: int = knob(5, ge=2, doc="every so many epochs all samples are used again")
        smoothing: float = knob(0.5, ge=0, lt=1, doc="weight of a sample's old loss when a new one comes in")

        @model_validator(mode="after")
        def _band_is_open(self) -> AdaptiveSampling.Config:
            if self.low >= self.high:
                raise ValueError(f"low ({self.low}) must be below high ({self.high})")
            return self

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.reorder_every = config.update_freq
        self._losses = torch.full((context.samples,), torch.nan)
        self._seen = torch.zeros(context.samples, dtype=torch.bool)
        self._fresh: list[tuple[Tensor, Tensor]] = []

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        if batch.indices is not None:
            self._fresh.append((batch.indices, losses.detach()))
        return losses

    def order_samples(self, order: Tensor, step: Step) -> Tensor:
        self._take_in_fresh_losses()
        if step.epoch < self.config.warmup_epochs or step.epoch % self.config.full_every == 0:
            return order
        c = self.config
        chosen = select(self._losses, rule=c.strategy, fraction=c.fraction, low=c.low, high=c.high)
        return order[(chosen | ~self._seen)[order]]

    def state_dict(self) -> dict[str, Any]:
        self._take_in_fresh_losses()
        return {"losses": self._losses.clone(), "seen": self._seen.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._losses = state["losses"].clone()
        self._seen = state["seen"].clone()
        self._fresh = []

    def _take_in_fresh_losses(self) -> None:
        """Merge what this and the other ranks saw since the last time, so that all choose alike."""
        indices, losses = self._gather()
        self._fresh = []
        known = self._seen[indices] & torch.isfinite(self._losses[indices])
        mixed = torch.where(known, self._losses[indices].lerp(losses, 1.0 - self.config.smoothing), losses)
        self._losses[indices] = mixed
        self._seen[indices] = True

    def _gather(self) -> tuple[Tensor, Tensor]:
        indices = torch.cat([i for i, _ in self._fresh]).cpu() if self._fresh else torch.empty(0, dtype=torch.int64)
        losses = torch.cat([v for _, v in self._fresh]).float().cpu() if self._fresh else torch.empty(0)
        if self.context.world_size == 1:
            return indices, losses
        parts: list[Any] = [None] * self.context.world_size
        dist.all_gather_object(parts, (indices, losses))
        indices, losses = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        # A rank without a sample of its own borrows one, so that two ranks may report it: the first one counts.
        first = torch.from_numpy(np.unique(indices.numpy(), return_index=True)[1])
        return indices[first], losses[first]

"""Adaptive sampling: spend updates on the samples whose loss says that they matter now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import model_validator
from torch import Tensor, nn

from muse_spark_ray.strategy import (
    Batch,
    Card,
    Context,
    Decision,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Trait,
    knob,
    load_module,
    seeded,
)

Rule = Literal["high_loss", "medium_loss", "curriculum", "importance"]
Pacing = Literal["linear", "root", "step"]
Scoring = Literal["running", "full", "proxy"]
MODEL_NAMES = ("build_proxy", "make_proxy", "proxy", "build_model", "make_model", "model")
_EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, float("inf"))
_PACING_STEPS = 4
_SMALLEST_LOSS = 1e-6


def select(
    losses: Tensor,
    *,
    rule: Literal["high_loss", "medium_loss", "curriculum"],
    fraction: float = 0.3,
    low: float = 0.3,
    high: float = 0.7,
) -> Tensor:
    """Choose samples by the rank of their loss.

    Args:
        losses: [N] float32, one smoothed loss per sample; NaN where it is not known.
        rule: `high_loss` takes the `fraction` with the largest losses, `curriculum` that with the smallest;
            `medium_loss` those whose rank, from the smallest, lies between the shares `low` and `high`.
        fraction: Share taken by `high_loss` and `curriculum`, in (0, 1].
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
    elif rule == "curriculum":
        chosen[ascending[: max(1, round(fraction * count))]] = True
    else:
        chosen[ascending[round(low * count) : max(round(high * count), round(low * count) + 1)]] = True
    return chosen


def draw_by_importance(losses: Tensor, *, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw samples without replacement, each step with a probability proportional to the loss.

    Args:
        losses: [N] float32; a sample whose loss is not finite is not drawn.
        fraction: Share of the finite ones to draw, in (0, 1].
        generator: Of the random numbers.

    Returns:
        ([N] bool, what was drawn; [N] float32, about how probable it was that a sample would be).

    Source: Efraimidis and Spirakis 2006, by keys log(loss) + Gumbel noise; Katharopoulos and Fleuret 2018, section 3.
    """
    finite = torch.isfinite(losses)
    size = torch.where(finite, losses, 0.0).clamp_min(_SMALLEST_LOSS) * finite
    count = max(1, round(fraction * int(finite.sum()))) if finite.any() else 0
    noise = -(-torch.rand(len(losses), generator=generator).clamp_min(1e-12).log()).log()
    keys = torch.where(finite, size.clamp_min(_SMALLEST_LOSS).log() + noise, -torch.inf)
    chosen = torch.zeros(len(losses), dtype=torch.bool)
    chosen[keys.topk(count).indices] = True
    return chosen, (count * size / size.sum().clamp_min(_SMALLEST_LOSS)).clamp(_SMALLEST_LOSS, 1.0)


def without_outliers(losses: Tensor, share: float) -> Tensor:
    """Return the losses with the largest `share` of the finite ones as NaN, so that no rule takes them."""
    count = round(share * int(torch.isfinite(losses).sum()))
    kept = losses.clone()
    kept[torch.where(torch.isfinite(losses), losses, -torch.inf).topk(count).indices] = torch.nan
    return kept


def pace(progress: float, *, start: float, form: Pacing) -> float:
    """Return the share of the samples that a curriculum uses.

    Args:
        progress: In [0, 1].
        start: Share at progress 0.
        form: `linear`; `root`, which gives each new sample the same time (Platanios et al. 2019, equation 7);
            `step`, four equal ones.

    Returns:
        From `start` to 1.
    """
    if form == "root":
        return float((start**2 + (1.0 - start**2) * progress) ** 0.5)
    if form == "step":
        progress = int(progress * _PACING_STEPS) / _PACING_STEPS
    return start + (1.0 - start) * progress


class AdaptiveSampling(Strategy):
    """Train each epoch on the samples that the current losses single out.

    Losses come from the training passes themselves, smoothed per sample, without an extra pass; or from a pass over all
    samples before each selection (`scoring: full`); or once, from another model (`proxy`). Samples not seen yet always
    stay in, samples whose last loss was not finite stay out until a full epoch, and every `full_every`-th epoch uses
    everything, so that no loss grows stale. A curriculum has no full epochs before its end.
    """

    stage = Stage.SAMPLES
    needs = frozenset({Trait.PER_SAMPLE_LOSSES, Trait.INDEXED_SAMPLES})
    refuses = frozenset({Trait.REPEATED_SAMPLES})
    card = Card(
        saves="forward and backward passes on samples that teach little",
        costs="one float a sample; one sort per selection",
        pays="large sets with many easy samples (high_loss, importance), noisy labels (medium_loss, curriculum)",
        hurts="small clean sets; high_loss chases label noise",
        source="Jiang et al. 2019, Selective-Backprop; Katharopoulos and Fleuret 2018",
    )

    class Config(StrategyConfig):
        """Settings of the selection."""

        strategy: Rule = knob(
            "medium_loss",
            search=["high_loss", "medium_loss", "curriculum", "importance"],
            doc="which losses are chosen: the largest, the middle, the smallest at first, or at random by their size",
        )
        update_freq: int = knob(100, ge=1, doc="updates between two selections within an epoch")
        fraction: float = knob(0.3, gt=0, le=1, search=(0.2, 0.8), doc="share that high_loss and importance keep")
        low: float = knob(0.3, ge=0, lt=1, doc="lower end of the band of medium_loss, as a share of the ranks")
        high: float = knob(0.7, gt=0, le=1, doc="upper end of the band of medium_loss, as a share of the ranks")
        warmup_epochs: int = knob(1, ge=1, search=(1, 3), doc="epochs on all samples before the first selection")
        full_every: int = knob(5, ge=2, doc="every so many epochs all samples are used again")
        start: float = knob(0.3, gt=0, le=1, doc="share of the samples that a curriculum begins with")
        pacing: Pacing = knob("linear", doc="how a curriculum grows: linear, root or step")
        pacing_epochs: int = knob(10, ge=1, doc="epochs until a curriculum uses all samples")
        outliers: float = knob(0.0, ge=0, lt=1, doc="share with the largest losses that no rule takes, as likely wrong")
        unbiased: bool = knob(False, doc="importance: weigh samples by the inverse of how probable they were")
        clip: float | None = knob(
            None, gt=0, doc="losses above this count as this, against outliers; none: no clipping"
        )
        scoring: Scoring = knob(
            "running", doc="where losses come from: training passes, a pass over all samples, or a small model's pass"
        )
        proxy: str | None = knob(
            None, doc="proxy: module:function or path.py:function that returns the small model that scores"
        )
        proxy_weights: str | None = knob(
            None,
            doc="proxy: its trained weights: a checkpoint, safetensors, a state dict; none: the function gives them",
        )
        smoothing: float = knob(0.5, ge=0, lt=1, doc="weight of a sample's old loss when a new one comes in")

        @model_validator(mode="after")
        def _band_is_open(self) -> AdaptiveSampling.Config:
            if self.low >= self.high:
                raise ValueError(f"low ({self.low}) must be below high ({self.high})")
            if (self.scoring == "proxy") != (self.proxy is not None):
                raise ValueError("scoring: proxy and proxy: 'module:function' belong together; set both or neither")
            return self

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.reorder_every = config.update_freq
        self._losses = torch.full((context.samples,), torch.nan)
        self._seen = torch.zeros(context.samples, dtype=torch.bool)
        self._fresh: list[tuple[Tensor, Tensor]] = []
        self._probability: Tensor | None = None
        self._model: nn.Module = nn.Module()
        self._share = 1.0
        self._histograms: list[list[int]] = []
        if config.proxy is not None:
            self._proxy = load_module(
                config.proxy, config.proxy_weights, names=MODEL_NAMES, what="strategies.adaptive_sampling.proxy"
            ).to(context.device)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._model = model
        return model

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        if self._probability is None or batch.indices is None or batch.weight == 0:
            return batch
        own = torch.ones(batch.size) if batch.weights is None else batch.weights.cpu()
        weights = own / self._probability[batch.indices.cpu()]
        return batch.with_(weights=weights * (own.sum() / weights.sum()))

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        if batch.indices is not None and self.config.scoring == "running":
            self._fresh.append((batch.indices, losses.detach()))
        return losses

    def order_samples(self, order: Tensor, step: Step) -> Tensor:
        self._take_in_fresh_losses()
        self._probability = None
        c = self.config
        is_full = step.epoch % c.full_every == 0 and c.strategy != "curriculum"
        if step.epoch < c.warmup_epochs or is_full:
            self._share = 1.0
            return order
        self._score()
        chosen = self._choose(without_outliers(self._losses, c.outliers) if c.outliers else self._losses, step)
        kept = order[(chosen | ~self._seen)[order]]
        self._share = len(kept) / max(len(order), 1)
        return kept

    def _score(self) -> None:
        """Let a model pass over all samples, where losses do not come from the training."""
        c, review = self.config, self.context.tools.review
        if c.scoring == "running" or review is None or (c.scoring == "proxy" and bool(self._seen.all())):
            return
        for batch, _, losses in review(self._model if c.scoring == "full" else self._proxy):
            if losses is not None and batch.indices is not None:
                self._fresh.append((batch.indices, losses))
        self._losses.fill_(torch.nan)
        self._take_in_fresh_losses()

    def after_epoch(self, metrics: Mapping[str, Any], step: Step) -> Decision | None:
        """Tell how difficult the samples are now."""
        self._take_in_fresh_losses()
        known = self._losses[torch.isfinite(self._losses)]
        if not len(known):
            return None
        counts = torch.histogram(known.double(), torch.tensor(_EDGES, dtype=torch.float64)).hist
        self._histograms.append([int(count) for count in counts])
        low, middle, high = torch.quantile(
            known[:: max(1, len(known) // 100_000)], torch.tensor([0.1, 0.5, 0.9])
        ).tolist()
        shares = {f"difficulty_from_{edge:g}": float(n) / len(known) for edge, n in zip(_EDGES, counts, strict=False)}
        found = {"difficulty_p10": low, "difficulty_p50": middle, "difficulty_p90": high, "selected_share": self._share}
        return Decision(metrics={**found, **shares})

    def report(self) -> dict[str, Any]:
        """Return the histogram of the samples' losses after each epoch."""
        return {"loss_edges": list(_EDGES[:-1]), "difficulty": self._histograms}

    def _choose(self, losses: Tensor, step: Step) -> Tensor:
        c = self.config
        if c.strategy == "importance":
            # One noise an epoch: a new choice within it then differs only by what was learnt since.
            generator = seeded(self.context.seed, step.epoch)
            chosen, probability = draw_by_importance(losses, fraction=c.fraction, generator=generator)
            self._probability = torch.where(self._seen, probability, 1.0) if c.unbiased else None
            return chosen
        if c.strategy == "curriculum":
            progress = min(1.0, (step.epoch - c.warmup_epochs) / c.pacing_epochs)
            share = pace(progress, start=c.start, form=c.pacing)
            return select(losses, rule=c.strategy, fraction=share) if share < 1.0 else torch.ones_like(self._seen)
        return select(losses, rule=c.strategy, fraction=c.fraction, low=c.low, high=c.high)

    def state_dict(self) -> dict[str, Any]:
        self._take_in_fresh_losses()
        return {
            "losses": self._losses.clone(),
            "seen": self._seen.clone(),
            "share": self._share,
            "probability": self._probability,
            "histograms": [list(counts) for counts in self._histograms],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._losses = state["losses"].clone()
        self._seen = state["seen"].clone()
        self._share = float(state["share"])
        self._probability = state.get("probability")
        self._histograms = [list(counts) for counts in state["histograms"]]
        self._fresh = []

    def _take_in_fresh_losses(self) -> None:
        """Merge what this and the other ranks saw since the last time, so that all choose alike."""
        indices, losses = self._gather()
        if self.config.clip is not None:
            losses = losses.clamp_max(self.config.clip)
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

"""Adaptive sampling: which samples a selection takes, when it is made, and that all ranks make the same."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from toys import blobs, small_net

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.data import Cut, open_source
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.strategies.adaptive_sampling import (
    AdaptiveSampling,
    Pacing,
    draw_by_importance,
    pace,
    select,
    without_outliers,
)
from muse_spark_ray.strategy import Batch, Context, Step
from muse_spark_ray.testing.ranks import on_ranks
from muse_spark_ray.training.distributed import join_world

T14 = torch.tensor([0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6, 1.0])
NAN, INF = float("nan"), float("inf")
Ranked = Literal["high_loss", "medium_loss", "curriculum"]
RULES: tuple[Ranked, ...] = ("high_loss", "medium_loss", "curriculum")
losses_of_any_kind = st.lists(st.one_of(st.floats(0, 100, width=32), st.sampled_from([NAN, INF, 0.5])), max_size=40)


def _chosen(losses: Tensor, rule: Ranked, **knobs: float) -> set[int]:
    return set(torch.nonzero(select(losses, rule=rule, **knobs)).flatten().tolist())


def test_the_top_share_and_the_middle_band_t14() -> None:
    assert _chosen(T14, "high_loss") == {0, 6, 9}
    assert _chosen(T14, "medium_loss") == {2, 4, 7, 8}
    assert _chosen(T14, "curriculum") == {1, 3, 5}


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("rule", RULES)
def test_losses_that_are_not_finite_are_never_chosen(rule: Ranked, bad: float) -> None:
    assert 9 not in _chosen(torch.cat([T14[:9], torch.tensor([bad])]), rule)
    assert _chosen(torch.full((5,), bad), rule) == set()


@given(values=losses_of_any_kind, fraction=st.floats(0.01, 1), band=st.tuples(st.floats(0, 0.5), st.floats(0.51, 1)))
@pytest.mark.parametrize("rule", RULES)
def test_a_selection_is_finite_and_repeatable(
    rule: Ranked, values: list[float], fraction: float, band: tuple[float, float]
) -> None:
    losses = torch.tensor(values)
    chosen = select(losses, rule=rule, fraction=fraction, low=band[0], high=band[1])
    assert torch.equal(chosen, select(losses.clone(), rule=rule, fraction=fraction, low=band[0], high=band[1]))
    assert bool(torch.isfinite(losses[chosen]).all())
    assert bool(chosen.any()) == bool(torch.isfinite(losses).any())
    if rule == "high_loss" and chosen.any():
        left_out = losses[~chosen & torch.isfinite(losses)]
        assert not len(left_out) or float(losses[chosen].min()) >= float(left_out.max())


@pytest.mark.parametrize("rule", RULES)
def test_ties_are_taken_in_the_order_of_the_samples(rule: Ranked) -> None:
    """Ranks from the smallest of ten equal losses are their positions: the last three, and positions 3 to 6."""
    assert (
        _chosen(torch.full((10,), 0.5), rule)
        == {"high_loss": {7, 8, 9}, "medium_loss": {3, 4, 5, 6}, "curriculum": {0, 1, 2}}[rule]
    )


def _strategy(samples: int = 10, **knobs: Any) -> AdaptiveSampling:
    return AdaptiveSampling(AdaptiveSampling.Config(**knobs), Context(samples))


def _show(strategy: AdaptiveSampling, losses: Tensor, indices: Tensor | None = None) -> None:
    seen = torch.arange(len(losses)) if indices is None else indices
    strategy.loss(losses, None, Batch(losses, losses, seen), Step(0, 0))


def _order(strategy: AdaptiveSampling, epoch: int, samples: int = 10) -> list[int]:
    return strategy.order_samples(torch.arange(samples), Step(epoch, 0)).tolist()  # type: ignore[no-any-return]


def test_samples_not_seen_yet_stay_in() -> None:
    strategy = _strategy(strategy="high_loss")
    _show(strategy, T14[:8])
    assert set(_order(strategy, 1)) == {0, 6, 8, 9}  # two of the eight known, and the two unknown


def test_a_sample_with_a_bad_loss_comes_back_in_a_full_epoch() -> None:
    strategy = _strategy(strategy="high_loss", full_every=3)
    losses = T14.clone()
    losses[9] = NAN
    _show(strategy, losses)
    assert 9 not in _order(strategy, 1)
    assert 9 in _order(strategy, 3)
    _show(strategy, torch.tensor([5.0]), torch.tensor([9]))
    assert 9 in _order(strategy, 4)


def test_losses_are_smoothed() -> None:
    strategy = _strategy(strategy="high_loss", smoothing=0.75)
    _show(strategy, T14)
    _order(strategy, 1)
    _show(strategy, torch.zeros(1), torch.tensor([9]))  # 0.75 * 1.0 + 0.25 * 0.0: now behind 0.9 and 0.8
    _order(strategy, 1)
    assert float(strategy.state_dict()["losses"][9]) == pytest.approx(0.75)
    assert set(_order(strategy, 1)) == {0, 6, 9}
    _show(strategy, torch.zeros(1), torch.tensor([9]))  # 0.5625: behind 0.7 and 0.6
    assert set(_order(strategy, 1)) == {0, 4, 6}


class Recorded(Dataset[Any]):
    """Class blobs that write down which samples were read."""

    def __init__(self, samples: int) -> None:
        self.inputs, self.targets = blobs(samples).tensors
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        return self.inputs[index], self.targets[index]


def _reads_by_epoch(samples: int, epochs: int, **knobs: Any) -> list[Counter[int]]:
    data, net = Recorded(samples), small_net()
    config = {"adaptive_sampling": knobs}
    trainer = MuseSparkTrainer(net, None, nn.CrossEntropyLoss(), DataLoader(data, 4, shuffle=True), None, config)
    reads: list[Counter[int]] = []
    data.read.clear()  # the trainer looked at one sample to count the classes

    def note(_: Any) -> bool:
        reads.append(Counter(data.read))
        data.read.clear()
        return False

    trainer.fit(epochs, on_epoch=note)
    return reads


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("update_freq", [2, 3, 100])
def test_an_epoch_reads_each_sample_at_most_once(rule: Ranked, update_freq: int) -> None:
    for reads in _reads_by_epoch(58, 4, strategy=rule, update_freq=update_freq):
        assert max(reads.values()) == 1


def test_every_so_many_epochs_all_samples_are_read() -> None:
    reads = _reads_by_epoch(40, 8, strategy="high_loss", full_every=3, warmup_epochs=2)
    assert [len(epoch) == 40 for epoch in reads] == [True, True, False, True, False, False, True, False]


def test_a_selection_without_a_new_one_keeps_its_share() -> None:
    counts = [len(epoch) for epoch in _reads_by_epoch(40, 3, strategy="high_loss", fraction=0.3, update_freq=100)]
    assert counts == [40, 12, 12]


def test_the_rest_of_an_epoch_is_chosen_anew_from_fresh_losses() -> None:
    """After two updates of two samples, samples 0 to 3 turn out to be hard: they are taken next, and 8, 9 no more."""
    strategy = _strategy(strategy="high_loss", fraction=0.6, update_freq=2, smoothing=0.0)
    _show(strategy, torch.arange(10.0))
    source = open_source(
        DataLoader(TensorDataset(torch.arange(10.0), torch.zeros(10)), 2, shuffle=False),
        Cut(batch_size=2, accumulation=1),
    )
    windows = source.windows(1, lambda left: strategy.order_samples(left, Step(1, 0)), strategy.reorder_every)
    first = [next(windows), next(windows)]
    assert [w.batches[0].indices.tolist() for w in first] == [[4, 5], [6, 7]]  # type: ignore[union-attr]
    _show(strategy, torch.full((4,), 100.0), torch.arange(4))
    later = [w.batches[0].indices.tolist() for w in windows]  # type: ignore[union-attr]
    assert later == [[0, 1], [2, 3], [8, 9]]


# ---------------------------------------------------------------- curriculum, importance, outliers


@pytest.mark.parametrize(
    ("form", "shares"),
    [
        ("linear", [0.2, 0.4, 0.6, 0.8, 1.0]),
        ("root", [0.2, 0.52915, 0.72111, 0.87178, 1.0]),
        ("step", [0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_a_curriculum_grows_to_all_samples(form: Pacing, shares: list[float]) -> None:
    assert [pace(p, start=0.2, form=form) for p in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(shares, abs=1e-5)


def test_a_step_holds_between_its_steps() -> None:
    assert pace(0.49, start=0.2, form="step") == pytest.approx(0.4)


def test_a_curriculum_takes_the_easy_ones_first() -> None:
    strategy = _strategy(strategy="curriculum", start=0.3, pacing_epochs=7)
    _show(strategy, T14)
    assert set(_order(strategy, 1)) == {1, 3, 5}
    assert set(_order(strategy, 4)) == {1, 3, 5, 7, 2, 8}
    assert set(_order(strategy, 5)) == {1, 3, 5, 7, 2, 8, 4}  # no full epoch on the way
    assert len(_order(strategy, 8)) == len(_order(strategy, 50)) == 10


def test_importance_draws_by_the_size_of_the_loss() -> None:
    """One of three with losses 1, 2, 5 is drawn with probabilities 1/8, 2/8, 5/8."""
    generator = torch.Generator().manual_seed(0)
    losses, counts = torch.tensor([1.0, 2.0, 5.0, NAN]), torch.zeros(4)
    for _ in range(4000):
        chosen, probability = draw_by_importance(losses, fraction=0.3, generator=generator)
        counts += chosen
    assert (counts / 4000).tolist() == pytest.approx([0.125, 0.25, 0.625, 0.0], abs=0.031)  # 4 sigma
    assert probability[:3].tolist() == pytest.approx([0.125, 0.25, 0.625])


@given(values=losses_of_any_kind, fraction=st.floats(0.01, 1), seed=st.integers(0, 99))
def test_importance_draws_its_share_and_nothing_that_is_not_finite(
    values: list[float], fraction: float, seed: int
) -> None:
    losses = torch.tensor(values)
    drawn = [draw_by_importance(losses, fraction=fraction, generator=torch.Generator().manual_seed(seed)) for _ in "ab"]
    finite = int(torch.isfinite(losses).sum())
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert int(drawn[0][0].sum()) == (max(1, round(fraction * finite)) if finite else 0)
    assert bool(torch.isfinite(losses[drawn[0][0]]).all())
    assert bool(((drawn[0][1] > 0) & (drawn[0][1] <= 1)).all())


def test_every_epoch_draws_anew_and_every_rank_alike() -> None:
    def orders(rank: int) -> list[list[int]]:
        config = AdaptiveSampling.Config(strategy="importance", fraction=0.5)
        strategy = AdaptiveSampling(config, Context(10, seed=3, rank=rank))
        _show(strategy, T14)
        return [_order(strategy, epoch) for epoch in (1, 2, 3, 4)]

    assert orders(0) == orders(1)
    assert len({tuple(order) for order in orders(0)}) > 1


def test_unbiased_weights_undo_the_choice_and_keep_the_batchs_weight() -> None:
    strategy = _strategy(3, strategy="importance", fraction=0.4, unbiased=True)
    batch = Batch(torch.zeros(3), torch.zeros(3), torch.arange(3))
    assert strategy.transform_batch(batch, Step(0, 0)) is batch
    _show(strategy, torch.tensor([1.0, 2.0, 5.0]))
    _order(strategy, 1, samples=3)
    weights = strategy.transform_batch(batch, Step(1, 0)).weights
    assert weights is not None
    assert float(weights.sum()) == pytest.approx(3.0)
    assert (weights[0] / weights).tolist() == pytest.approx([1.0, 2.0, 5.0])
    _order(strategy, 5, samples=3)  # a full epoch: all weigh the same again
    assert strategy.transform_batch(batch, Step(5, 0)) is batch


def test_outliers_are_never_taken() -> None:
    assert torch.isnan(without_outliers(T14, 0.2)).nonzero().flatten().tolist() == [0, 9]
    strategy = _strategy(strategy="high_loss", outliers=0.2)
    _show(strategy, T14)
    assert set(_order(strategy, 1)) == {4, 6}


def _choice_of_a_rank(losses: list[float]) -> list[int]:
    world = join_world("cpu")
    own = torch.arange(world.rank, 10, world.size)
    config = AdaptiveSampling.Config(strategy="high_loss")
    strategy = AdaptiveSampling(config, Context(10, rank=world.rank, world_size=world.size))
    _show(strategy, torch.tensor(losses)[own], own)
    if world.rank == 1:  # a rank without a sample of its own repeats one of another rank
        _show(strategy, torch.tensor([0.0]), torch.tensor([0]))
    return _order(strategy, 1)


def test_ranks_choose_alike_from_what_all_of_them_saw() -> None:
    assert "RANK" not in os.environ
    alone = _choice_of_a_rank(T14.tolist())
    assert alone == [0, 6, 9]
    assert on_ranks(_choice_of_a_rank, 2, T14.tolist()) == [alone, alone]


def test_a_loader_with_an_order_of_its_own_is_refused() -> None:
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 12, 12)
    loader = DataLoader(blobs(12), 4, sampler=sampler)
    with pytest.raises(ConfigError, match=r"adaptive_sampling needs .*order the trainer controls"):
        MuseSparkTrainer(small_net(), None, None, loader, None, {"adaptive_sampling": True})


def test_a_criterion_without_single_losses_is_refused() -> None:
    def scalar(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(ConfigError, match=r"adaptive_sampling needs .*one loss per sample"):
        MuseSparkTrainer(small_net(), None, scalar, blobs(12), None, {"adaptive_sampling": True})


def test_a_closed_band_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"low \(0.7\) must be below high \(0.7\)"):
        MuseSparkTrainer(small_net(), None, None, blobs(12), None, {"adaptive_sampling": {"low": 0.7}})


def _sees(scoring: str, tmp_path: Path, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return the losses known after a selection by another model's or the model's own pass, and the true ones."""
    net, data = small_net(), blobs()
    (tmp_path / "small.py").write_text(
        "import torch\nfrom torch import nn\ndef proxy():\n    torch.manual_seed(7)\n    return nn.Linear(4, 3)\n"
    )
    proxy = {"proxy": str(tmp_path / "small.py")} if scoring == "proxy" else {}
    block = {"adaptive_sampling": {"scoring": scoring, "full_every": 100, **proxy, **settings}}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    trainer = MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), data, None, {"strategies": block})
    trainer.fit(2)
    torch.manual_seed(7)
    judge = net if scoring == "full" else nn.Linear(4, 3)
    expected = nn.functional.cross_entropy(judge.eval()(data.tensors[0]), data.tensors[1], reduction="none")
    return trainer._run.stack.state_dict()["adaptive_sampling"]["losses"], expected.detach()


@pytest.mark.parametrize("scoring", ["full", "proxy"])
def test_scores_come_from_a_pass_over_all_samples(scoring: str, tmp_path: Path) -> None:
    known, expected = _sees(scoring, tmp_path)
    assert torch.allclose(known, expected, atol=1e-6)


def test_losses_above_the_clip_count_as_the_clip(tmp_path: Path) -> None:
    known, expected = _sees("full", tmp_path, clip=0.8)
    assert torch.allclose(known, expected.clamp_max(0.8), atol=1e-6)


def test_a_proxy_must_be_named() -> None:
    with pytest.raises(ConfigError, match="scoring: proxy and proxy"):
        train_config({"strategies": {"adaptive_sampling": {"scoring": "proxy"}}})


def test_the_report_has_the_difficulty_of_the_samples_over_time() -> None:
    data = blobs()
    block = {"strategies": {"adaptive_sampling": {"strategy": "high_loss", "fraction": 0.5, "full_every": 100}}}
    report = MuseSparkTrainer(small_net(), None, None, data, None, {**block, "batch_size": 8}).fit(4)
    histograms = report["strategy_reports"]["adaptive_sampling"]["difficulty"]
    assert [sum(counts) for counts in histograms] == [60] * 4
    assert [epoch["selected_share"] for epoch in report["history"]] == [1.0, 0.5, 0.5, 0.5]
    assert report["history"][3]["difficulty_p50"] < report["history"][0]["difficulty_p50"]
    assert all(epoch["difficulty_p10"] <= epoch["difficulty_p90"] for epoch in report["history"])

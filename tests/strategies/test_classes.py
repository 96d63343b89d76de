"""Classes of different size: balanced sampling, class weights, logit adjustment."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from images import FIRST, batch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.data import Cut, open_source
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.strategies.class_weights import weights_of
from muse_spark_ray.strategies.logit_adjustment import adjusted_cross_entropy
from muse_spark_ray.strategy import Context, Step, Strategy, strategies
from muse_spark_ray.testing.states import assert_same


def build(name: str, targets: Tensor, **settings: Any) -> Strategy:
    config = train_config({"strategies": {name: settings}}).strategies.switched_on()[name]
    return strategies()[name](config, Context(len(targets), int(targets.max()) + 1, targets=targets))


TWO = torch.arange(200) % 2


def _own_draws(world_size: int, draws: int, *, batch_size: int = 50) -> list[list[list[int]]]:
    """Return the batches of each rank in an epoch of weighted draws."""
    strategy = build("balanced_sampling", TWO, class_weights=[1.0, 3.0], draws=draws)
    ranks = []
    for rank in range(world_size):
        data = TensorDataset(torch.zeros(200, 1), TWO)
        source = open_source(data, Cut(batch_size, 1, rank=rank, world_size=world_size))
        windows = source.windows(0, lambda order: strategy.order_samples(order, FIRST))
        ranks.append([b.indices.tolist() for window in windows for b in window.batches if b.indices is not None])
    return ranks


def test_weighted_draws_over_two_ranks_samp_1() -> None:
    first, second = (list(chain(*batches)) for batches in _own_draws(2, 4000))
    assert len(first) == len(second) == 2000
    assert first != second
    assert sum(index % 2 for index in first + second) / 4000 == pytest.approx(0.75, abs=0.0274)


def test_ranks_share_the_draws_of_an_epoch_samp_3() -> None:
    ranks = _own_draws(4, 2000)
    assert [len(list(chain(*batches))) for batches in ranks] == [500] * 4
    assert [len(batches) for batches in ranks] == [10] * 4


def test_adaptive_losses_are_the_same_bits_after_a_resume_samp_3(tmp_path: Any) -> None:
    def trainer() -> MuseSparkTrainer:
        net = nn.Linear(1, 2)
        config = {"strategies": {"adaptive_sampling": True}, "checkpoint": {"save_dir": str(tmp_path)}}
        return MuseSparkTrainer(net, None, None, TensorDataset(torch.randn(200, 1), TWO), None, config)

    first = trainer()
    first.fit(2)
    assert_same(first._run.stack.state_dict(), trainer()._run.stack.state_dict())


def test_draws_differ_between_epochs_and_repeat_after_a_restart() -> None:
    order = torch.arange(200)
    strategy, again = (build("balanced_sampling", TWO) for _ in range(2))
    epochs = [strategy.order_samples(order, Step(epoch, 0)).tolist() for epoch in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert again.order_samples(order, Step(2, 0)).tolist() == epochs[2]


@pytest.mark.parametrize(("power", "share"), [(0.0, 0.1), (1.0, 0.5), (0.5, 0.25)])
def test_power_sets_how_often_a_rare_class_is_drawn(power: float, share: float) -> None:
    targets = (torch.arange(2000) % 10 == 0).long()
    strategy = build("balanced_sampling", targets, power=power, draws=20_000)
    drawn = strategy.order_samples(torch.arange(2000), FIRST)
    assert float(targets[drawn].float().mean()) == pytest.approx(share, abs=0.015)


class Named(Dataset[Any]):
    """A map-style data set; its targets are only known if it has the attribute."""

    def __init__(self, *, knows: bool) -> None:
        if knows:
            self.targets = TWO.tolist()

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index)]), index % 2


def test_a_data_set_says_its_classes_by_an_attribute() -> None:
    block = {"strategies": {"balanced_sampling": {"draws": 64}, "class_weights": True}}
    report = MuseSparkTrainer(
        nn.Linear(1, 2), None, None, DataLoader(Named(knows=True), 32, shuffle=True), None, block
    ).fit(2)
    assert report["history"][1]["samples"] == 64
    with pytest.raises(
        ConfigError, match=r"class_weights needs the class of each training sample|balanced_sampling needs"
    ):
        MuseSparkTrainer(nn.Linear(1, 2), None, None, DataLoader(Named(knows=False), 32), None, block)


def test_draws_do_not_go_with_a_selection_that_counts_each_sample_once() -> None:
    block = {"strategies": {"balanced_sampling": True, "adaptive_sampling": True}}
    with pytest.raises(ConfigError, match="does not work with samples drawn several times an epoch"):
        MuseSparkTrainer(nn.Linear(1, 2), None, None, TensorDataset(torch.zeros(200, 1), TWO), None, block)


@pytest.mark.parametrize("odds", [[1.0], [0.0, 0.0], [-1.0, 2.0]])
def test_odds_that_cannot_be_drawn_from_are_refused(odds: list[float]) -> None:
    with pytest.raises(ConfigError, match="class_weights"):
        build("balanced_sampling", TWO, class_weights=odds)


def test_a_schedule_ends_with_the_last_of_more_updates() -> None:
    config = {"strategies": {"balanced_sampling": {"draws": 800}}, "schedule": {"type": "cosine"}, "batch_size": 100}
    data = TensorDataset(torch.zeros(200, 1), TWO)
    history = MuseSparkTrainer(nn.Linear(1, 2), None, None, data, None, config).fit(2)["history"]
    assert history[0]["lr"] == pytest.approx(0.025)
    assert history[1]["lr"] == pytest.approx(0.0, abs=1e-9)


# ---------------------------------------------------------------- class weights


def test_class_weights_average_one_over_the_samples() -> None:
    counts = torch.tensor([80, 15, 5, 0])
    for rule in ("balanced", "sqrt", "effective"):
        weights = weights_of(counts, rule=rule, beta=0.99)
        assert float((weights * counts).sum()) == pytest.approx(100.0, rel=1e-5)
        assert weights[3] == 0
        assert weights[0] < weights[1] < weights[2]
    assert weights_of(counts, rule="balanced", beta=0.0)[:3].tolist() == pytest.approx([100 / 240, 100 / 45, 100 / 15])
    assert weights_of(counts, rule="effective", beta=0.0)[:3].tolist() == pytest.approx([1.0] * 3)


def test_a_soft_target_has_the_mean_weight_of_its_classes() -> None:
    targets = torch.tensor([0, 0, 0, 1])
    strategy = build("class_weights", targets, rule="given", weights=[1.0, 5.0])
    mixed = batch(2).with_(targets=torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    assert strategy.loss(torch.ones(2), torch.zeros(2, 2), mixed, FIRST).tolist() == pytest.approx([1.5, 0.5])


# ---------------------------------------------------------------- logit adjustment


def test_logit_adjustment_is_the_cross_entropy_of_shifted_scores() -> None:
    scores, prior = torch.randn(4, 3), torch.tensor([0.7, 0.2, 0.1])
    targets = torch.tensor([0, 1, 2, 2])
    expected = nn.functional.cross_entropy(scores + 0.5 * prior.log(), targets, reduction="none")
    soft = nn.functional.one_hot(targets, 3).float()
    assert torch.allclose(adjusted_cross_entropy(scores, soft, prior.log(), tau=0.5), expected)


def test_two_losses_in_place_of_the_criterions_are_refused() -> None:
    block = {"strategies": {"logit_adjustment": True, "robust_loss": True}}
    with pytest.raises(ConfigError, match="does not work with another loss in place of the criterion's"):
        MuseSparkTrainer(nn.Linear(1, 2), None, None, TensorDataset(torch.zeros(200, 1), TWO), None, block)


@pytest.mark.parametrize("strategy", ["logit_adjustment", "class_weights", "balanced_sampling"])
def test_each_lifts_the_recall_of_a_rare_class(strategy: str) -> None:
    torch.manual_seed(0)
    targets = (torch.arange(1000) % 20 == 0).long()
    inputs = torch.randn(1000, 2) + 1.2 * targets[:, None]

    def recall(block: dict[str, Any]) -> float:
        torch.manual_seed(0)
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        MuseSparkTrainer(net, optimizer, None, TensorDataset(inputs, targets), None, {"strategies": block}).fit(15)
        return float((net(inputs[targets == 1]).argmax(1) == 1).float().mean())

    plain, helped = recall({}), recall({strategy: True})
    assert plain < 0.3
    assert helped > 0.7


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(1), 0)] * 4)


def test_a_stream_has_no_classes_to_balance() -> None:
    with pytest.raises(ConfigError, match="balanced_sampling needs"):
        MuseSparkTrainer(
            nn.Linear(1, 2), None, None, DataLoader(Stream(), 2), None, {"strategies": {"balanced_sampling": True}}
        )

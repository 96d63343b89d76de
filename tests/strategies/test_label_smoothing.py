"""Label smoothing: the targets, the loss they give, and what class weights do to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategies.label_smoothing import smooth_targets

SCORES = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
TARGETS = torch.tensor([0, 2, 1])
WEIGHTS = torch.tensor([1.0, 2.0, 4.0])


class Scores(nn.Module):
    """Returns its input; its one parameter is 0 and adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def _loss(*, weights: Tensor | None, batch_size: int = 3, accumulation: int = 1, epsilon: float | None = 0.1) -> Any:
    model = Scores()
    config = {
        "batch_size": batch_size,
        "gradient_accumulation_steps": accumulation,
        "strategies": {"label_smoothing": {"epsilon": epsilon} if epsilon is not None else False},
    }
    data = TensorDataset(SCORES, TARGETS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = MuseSparkTrainer(model, optimizer, nn.CrossEntropyLoss(weight=weights), data, None, config)
    return trainer.fit(1)["history"][0]["train_loss"]


def test_a_target_gives_its_mass_to_all_classes() -> None:
    assert smooth_targets(torch.tensor([1]), classes=4, epsilon=0.2).tolist() == [
        pytest.approx([0.05, 0.85, 0.05, 0.05])
    ]


def test_soft_targets_are_smoothed_as_well() -> None:
    soft = smooth_targets(torch.tensor([[0.5, 0.5, 0.0, 0.0]]), classes=4, epsilon=0.2)
    assert soft.tolist() == [pytest.approx([0.45, 0.45, 0.05, 0.05])]


@given(epsilon=st.floats(0, 0.99), targets=st.lists(st.integers(0, 6), min_size=1, max_size=9))
def test_rows_stay_probabilities_and_the_true_class_stays_first(epsilon: float, targets: list[int]) -> None:
    soft = smooth_targets(torch.tensor(targets), classes=7, epsilon=epsilon)
    assert torch.allclose(soft.sum(1), torch.ones(len(targets)), atol=1e-5)
    assert bool((soft >= 0).all())
    assert soft.argmax(1).tolist() == targets


def test_the_loss_is_that_of_torch_without_class_weights_loss_1() -> None:
    assert _loss(weights=None) == pytest.approx(0.704608, abs=1e-6)
    own = nn.functional.cross_entropy(SCORES, TARGETS, label_smoothing=0.1)
    assert _loss(weights=None) == pytest.approx(float(own), abs=1e-6)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(3, 1), (2, 2), (1, 3)])
def test_the_true_class_weighs_the_whole_term_loss_1(batch_size: int, accumulation: int) -> None:
    found = _loss(weights=WEIGHTS, batch_size=batch_size, accumulation=accumulation)
    assert found == pytest.approx(0.676465, abs=1e-6)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(3, 1), (2, 2)])
def test_class_weights_alone_loss_1_loss_3(batch_size: int, accumulation: int) -> None:
    found = _loss(weights=WEIGHTS, batch_size=batch_size, accumulation=accumulation, epsilon=None)
    assert found == pytest.approx(0.605036, abs=1e-6)


def test_evaluation_sees_hard_targets() -> None:
    model, data = Scores(), TensorDataset(SCORES, TARGETS)
    config = {"strategies": {"label_smoothing": {"epsilon": 0.3}}}
    trainer = MuseSparkTrainer(model, torch.optim.SGD(model.parameters(), lr=0.0), None, data, data, config)
    hard = float(nn.functional.cross_entropy(SCORES, TARGETS))
    assert trainer.fit(1)["history"][0]["val_loss"] == pytest.approx(hard, abs=1e-6)


def test_real_targets_are_refused_before_training() -> None:
    data = TensorDataset(torch.randn(4, 2), torch.randn(4, 1))
    with pytest.raises(ConfigError, match=r"label_smoothing needs integer class targets"):
        MuseSparkTrainer(nn.Linear(2, 1), None, None, data, None, {"strategies": {"label_smoothing": True}})

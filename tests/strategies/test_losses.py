"""Focal and robust losses, selective backprop: values from their papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import FIRST, batch, build
from torch import Tensor, nn
from toys import blobs, trained

from muse_spark_ray.strategies.focal_loss import focus
from muse_spark_ray.strategies.robust_loss import generalised_cross_entropy, symmetric_cross_entropy
from muse_spark_ray.strategies.selective_backprop import hardest, selected

HALF = torch.tensor([[0.0, 0.0]])  # each class has the probability 1/2
FIRST_CLASS = torch.tensor([[1.0, 0.0]])


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, targets, reduction="none")


def test_focal_loss_at_a_half() -> None:
    losses = cross_entropy(HALF, FIRST_CLASS)
    assert focus(losses, HALF, FIRST_CLASS, gamma=2.0).tolist() == [pytest.approx(0.25 * math.log(2))]


@given(st.floats(-20, 20), st.floats(0, 5))
def test_focal_loss_never_exceeds_the_loss_and_gamma_zero_is_off(score: float, gamma: float) -> None:
    scores = torch.tensor([[score, 0.0]])
    losses = cross_entropy(scores, FIRST_CLASS)
    assert float(focus(losses, scores, FIRST_CLASS, gamma=gamma)) <= float(losses) + 1e-6
    assert torch.equal(focus(losses, scores, FIRST_CLASS, gamma=0.0), losses)


def test_generalised_cross_entropy_lies_between_cross_entropy_and_absolute_error() -> None:
    scores, targets = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    probability = float(scores.softmax(1)[0, 1])
    assert float(generalised_cross_entropy(scores, targets, q=1.0)) == pytest.approx(1 - probability, abs=1e-6)
    assert float(generalised_cross_entropy(scores, targets, q=0.001)) == pytest.approx(-math.log(probability), rel=0.01)
    assert float(generalised_cross_entropy(scores, targets, q=0.5)) == pytest.approx(
        2 * (1 - probability**0.5), abs=1e-6
    )


def test_symmetric_cross_entropy_adds_the_reverse_with_log_zero_as_minus_four() -> None:
    found = symmetric_cross_entropy(HALF, FIRST_CLASS, alpha=2.0, beta=3.0)
    assert float(found) == pytest.approx(2.0 * math.log(2) + 3.0 * 0.5 * 4.0)


def test_a_wrong_label_costs_at_most_a_bounded_amount() -> None:
    certain = torch.tensor([[50.0, 0.0]])
    wrong = torch.tensor([[0.0, 1.0]])
    assert float(cross_entropy(certain, wrong)) > 49
    assert float(generalised_cross_entropy(certain, wrong, q=0.5)) <= 2.0
    assert float(symmetric_cross_entropy(certain, wrong, alpha=0.0, beta=1.0)) <= 4.0


# ---------------------------------------------------------------- selective backprop


def test_the_hardest_samples_are_chosen_in_the_order_of_the_batch() -> None:
    losses = torch.tensor([0.1, 5.0, math.nan, 2.0, math.inf, 3.0])
    assert hardest(losses, torch.ones(6), 0.5).tolist() == [1, 3, 5]
    assert hardest(losses, torch.tensor([1.0, 0, 1, 1, 1, 0]), 0.5).tolist() == [0, 3]
    assert hardest(torch.full((4,), math.nan), torch.ones(4), 0.5).numel() == 1


@given(st.lists(st.floats(0, 10), min_size=2, max_size=12), st.floats(0.05, 1.0), st.integers(0, 99))
def test_what_is_chosen_weighs_what_all_weighed(given_weights: list[float], fraction: float, seed: int) -> None:
    torch.manual_seed(seed)
    plain = batch(len(given_weights), weights=torch.tensor(given_weights))
    assert plain.weights is not None
    if plain.weight == 0:
        return
    part = selected(plain, hardest(torch.rand(plain.size), plain.weights, fraction))
    assert part.weight == pytest.approx(plain.weight, rel=1e-4)
    assert 1 <= part.size <= plain.size


def test_scoring_leaves_modes_statistics_and_random_numbers_alone() -> None:
    strategy = build("selective_backprop", warmup_epochs=0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(72), nn.Dropout(0.5), nn.Linear(72, 3))
    model[1].eval()  # frozen by its owner
    strategy.prepare_model(model)
    model[1].training = False
    state, stream = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    part = strategy.transform_batch(batch(6), FIRST)
    assert part.size == 3
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert torch.equal(stream, torch.get_rng_state())


def test_backward_passes_are_saved_and_samples_are_counted_whole() -> None:
    passed: list[int] = []

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                passed.append(len(x))
            return super().forward(x)

    report = trained(
        Counting(4, 3),
        blobs(),
        epochs=3,
        batch_size=20,
        strategies={"selective_backprop": {"fraction": 0.25, "warmup_epochs": 1}},
    ).get_training_report()
    assert sum(passed) == 60 + 15 + 15
    assert [epoch["samples"] for epoch in report["history"]] == [60, 60, 60]

"""SWA, lookahead and magnitude pruning: what they do to weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import FIRST, build
from torch import Tensor, nn
from toys import Line, blobs, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.strategies.magnitude_pruning import magnitude_mask, prunable, sparsity_at, two_of_four_mask
from muse_spark_ray.strategies.swa import add_to_mean
from muse_spark_ray.strategy import Step, Strategy
from muse_spark_ray.training.checkpoint import load_state


def walk(strategy: Strategy, line: Line, *values: float, epoch: int = 0) -> list[float]:
    """Set the one weight after each update as an optimizer would; return what the strategy made of it."""
    left = []
    for value in values:
        with torch.no_grad():
            line.w.fill_(value)
        strategy.after_update(line, Step(epoch, 0))
        left.append(float(line.w.detach()))
    return left


def test_a_running_mean_is_the_mean() -> None:
    mean, line = Line(), Line()
    for seen, value in enumerate([1.0, 2.0, 6.0]):
        line.w.data.fill_(value)
        add_to_mean(mean, line, seen=seen)
    assert mean.w.tolist() == pytest.approx([3.0])


def test_swa_averages_every_nth_update_since_its_first_epoch() -> None:
    strategy, line = build("swa", start_epoch=2, every=2), Line()
    strategy.prepare_model(line)
    walk(strategy, line, 100.0, 100.0, epoch=1)
    assert strategy.evaluation_model(line) is line
    assert walk(strategy, line, 1.0, 2.0, 3.0, 4.0, epoch=2) == [1, 2, 3, 4]
    assert float(strategy.evaluation_model(line).w) == pytest.approx(3.0)  # type: ignore[arg-type]


def test_swa_copies_batch_norm_statistics() -> None:
    strategy, model = build("swa", start_epoch=0, every=1), nn.BatchNorm1d(2)
    strategy.prepare_model(model)
    model(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    strategy.after_update(model, FIRST)
    shown = strategy.evaluation_model(model)
    assert torch.equal(shown.running_mean, model.running_mean)  # type: ignore[arg-type]
    assert int(shown.num_batches_tracked) == 1  # type: ignore[arg-type]


def test_lookahead_goes_back_part_of_the_way_every_k_updates() -> None:
    strategy, line = build("lookahead", every=3, alpha=0.5), Line()
    strategy.prepare_model(line)
    # Slow weights: 0, then 0 + (6 - 0) / 2 = 3, then 3 + (5 - 3) / 2 = 4.
    assert walk(strategy, line, 2.0, 4.0, 6.0, 3.0, 4.0, 5.0) == [2, 4, 3, 3, 4, 4]


def test_with_alpha_one_lookahead_changes_nothing() -> None:
    plain = trained(small_net(), blobs(), epochs=2)
    ahead = trained(small_net(), blobs(), epochs=2, strategies={"lookahead": {"alpha": 1.0}})
    assert torch.allclose(weights(plain.get_best_model()), weights(ahead.get_best_model()), atol=1e-7)


# ---------------------------------------------------------------- pruning


@pytest.mark.parametrize(("update", "share"), [(0, 0.0), (99, 0.0), (100, 0.0), (150, 0.7), (200, 0.8), (999, 0.8)])
def test_sparsity_rises_along_a_cubic(update: int, share: float) -> None:
    assert sparsity_at(update, final=0.8, begin=100, end=200) == pytest.approx(share)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=40), st.floats(0, 0.99))
def test_exactly_the_smallest_weights_go(values: list[float], sparsity: float) -> None:
    tensor = torch.tensor(values)
    mask = magnitude_mask(tensor, sparsity)
    assert int((~mask).sum()) == round(sparsity * len(values))
    if mask.any() and not mask.all():
        assert float(tensor[~mask].abs().max()) <= float(tensor[mask].abs().min())


def test_two_of_four_neighbours_stay() -> None:
    row = torch.tensor([[1.0, -5.0, 0.5, 2.0, 9.0, 8.0, -7.0, 6.0, 0.1]])
    assert two_of_four_mask(row).int().tolist() == [[0, 1, 0, 1, 1, 1, 0, 0, 1]]
    kernel = torch.randn(3, 2, 2, 2)
    assert two_of_four_mask(kernel).shape == kernel.shape
    assert float(two_of_four_mask(kernel).float().mean()) == 0.5


def test_biases_and_normalisation_stay_whole() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    assert set(prunable(model)) == {"0.weight", "3.weight"}


def _zeros(model: nn.Module) -> float:
    parts: list[Tensor] = [weight.flatten() for weight in prunable(model).values()]
    return float((torch.cat(parts) == 0).float().mean())


def _pruned(folder: Path, pattern: str, epochs: int) -> MuseSparkTrainer:
    settings: dict[str, Any] = {"pattern": pattern, "sparsity": 0.75, "begin": 2, "end": 20, "every": 3}
    return trained(
        small_net(),
        blobs(),
        epochs=epochs,
        batch_size=20,
        validation=blobs(),
        checkpoint={"save_dir": str(folder)},
        strategies={"magnitude_pruning": settings, "ema": {"decay": 0.5}},
    )


@pytest.mark.parametrize(("pattern", "share"), [("unstructured", 0.75), ("2:4", 0.5)])
def test_zeros_stay_zero_in_training_evaluation_and_checkpoint(tmp_path: Path, pattern: str, share: float) -> None:
    trainer = _pruned(tmp_path, pattern, 12)
    assert trainer.get_training_report()["best_val_acc"] > 80
    saved = load_state(tmp_path / "epoch_000012")["model"]
    plain = small_net()
    plain.load_state_dict(saved)
    assert _zeros(plain) == pytest.approx(share, abs=0.02)


def test_pruning_goes_on_after_a_resume_as_without_one(tmp_path: Path) -> None:
    _pruned(tmp_path / "whole", "unstructured", 8)
    _pruned(tmp_path / "parts", "unstructured", 4)
    _pruned(tmp_path / "parts", "unstructured", 8)
    whole, parts = (load_state(tmp_path / name / "epoch_000008")["model"] for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)

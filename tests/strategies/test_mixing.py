"""Mixup, CutMix, and the exactness of mixed targets under sample weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import FIRST, batch, build
from torch import nn
from torch.utils.data import DataLoader
from toys import blobs, small_net, trained

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategies.cutmix import draw_box, paste
from muse_spark_ray.strategy import as_probabilities, mix


def test_class_ids_become_probabilities_and_probabilities_stay() -> None:
    assert as_probabilities(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    soft = torch.tensor([[0.2, 0.8]])
    assert as_probabilities(soft, 2) is soft


@given(st.integers(1, 8), st.floats(0, 1), st.integers(0, 99), st.booleans())
def test_the_loss_of_a_mixture_is_the_mixture_of_the_weighted_losses(
    count: int, share: float, seed: int, has_weights: bool
) -> None:
    torch.manual_seed(seed)
    weights = torch.rand(count) * (torch.rand(count) > 0.3) if has_weights else None
    plain, partners = batch(count, weights=weights), torch.randperm(count)
    mixed = mix(plain, partners, torch.tensor(share), plain.inputs, classes=3)
    scores = torch.randn(count, 3)
    losses = nn.functional.cross_entropy(scores, mixed.targets, reduction="none")
    own = torch.ones(count) if weights is None else weights
    hard = [nn.functional.cross_entropy(scores, t, reduction="none") for t in (plain.targets, plain.targets[partners])]
    expected = share * own * hard[0] + (1 - share) * own[partners] * hard[1]
    found = losses if mixed.weights is None else losses * mixed.weights
    assert torch.allclose(found, expected, atol=1e-5)
    assert mixed.weight == pytest.approx(plain.weight, abs=1e-4)


def test_mixup_mixes_inputs_and_targets_by_the_same_share() -> None:
    torch.manual_seed(1)
    plain = batch()
    mixed = build("mixup", alpha=1.0).transform_batch(plain, FIRST)
    pixels = mixed.inputs[:, 0, 0, 0]
    assert bool(((pixels >= 1) & (pixels <= 6)).all())
    assert not torch.equal(pixels, plain.inputs[:, 0, 0, 0])
    assert torch.allclose(mixed.targets.sum(1), torch.ones(6))
    # Each pixel is share * own + (1 - share) * partner with one share for all, so the batch's mean stays.
    assert float(pixels.mean()) == pytest.approx(3.5, abs=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.75, 1.0])
def test_a_box_covers_about_what_is_asked_and_stays_inside(share: float) -> None:
    torch.manual_seed(0)
    for _ in range(50):
        rows, columns = draw_box(20, 30, share)
        assert 0 <= rows.start <= rows.stop <= 20
        assert 0 <= columns.start <= columns.stop <= 30
        assert (rows.stop - rows.start) * (columns.stop - columns.start) <= (1 - share) * 600 + 1e-6


def test_a_pasted_box_is_the_partners_and_the_share_is_its_area() -> None:
    images = batch(2, side=4).inputs
    mixed, share = paste(images, torch.tensor([1, 0]), (slice(1, 3), slice(0, 4)))
    assert share == 0.5
    assert mixed[0, 0, :, 0].tolist() == [1, 2, 2, 1]
    assert mixed[1, 0, :, 3].tolist() == [2, 1, 1, 2]
    assert images[0].unique().tolist() == [1.0]


def test_cutmix_mixes_targets_by_the_area_that_was_pasted() -> None:
    strategy = build("cutmix", probability=1.0)
    for seed in range(20):
        torch.manual_seed(seed)
        mixed = strategy.transform_batch(batch(), FIRST)
        for image, target, own in zip(mixed.inputs[:, 0], mixed.targets, range(6), strict=True):
            kept = float((image == own + 1).float().mean())
            assert float(target[own % 3]) >= kept - 1e-5
            assert float(target.sum()) == pytest.approx(1.0, abs=1e-5)


def test_probability_zero_leaves_every_batch_alone() -> None:
    plain = batch()
    assert build("cutmix", probability=0.0).transform_batch(plain, FIRST) is plain


def test_evaluation_and_reported_accuracy_see_unmixed_samples() -> None:
    trainer = trained(small_net(), blobs(), epochs=40, validation=blobs(), strategies={"mixup": {"alpha": 1.0}})
    report = trainer.get_training_report()
    assert report["best_val_acc"] > 80
    assert report["history"][-1]["train_loss"] > report["history"][-1]["val_loss"]


def test_images_are_needed_where_pixels_are_moved() -> None:
    for name in ("cutmix", "cutout", "crop_flip", "progressive_resizing", "channels_last"):
        with pytest.raises(ConfigError, match=f"{name} needs .*images"):
            MuseSparkTrainer(small_net(), None, None, blobs(), config={"strategies": {name: True}})


def test_inputs_that_are_no_numbers_cannot_be_mixed() -> None:
    tokens = DataLoader([(torch.tensor([1, 2, 3]), 0), (torch.tensor([3, 2, 1]), 1)], 2)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(ConfigError, match="mixup mixes float tensors"):
        trained(model, tokens, epochs=1, strategies={"mixup": True})

"""Cutout, crops and flips, progressive resizing, channels last: what happens to pixels."""

from __future__ import annotations

import pytest
import torch
from images import FIRST, LATER, batch, build
from torch import nn
from torch.utils.data import TensorDataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.strategies.crop_flip import shift
from muse_spark_ray.strategies.cutout import blank_squares
from muse_spark_ray.strategies.progressive_resizing import resized, side_share


def test_a_square_is_blanked_around_its_centre_and_cut_off_at_the_border() -> None:
    images = torch.ones(2, 3, 5, 5)
    cut = blank_squares(images, torch.tensor([[2, 2], [0, 4]]), 3)
    assert [int((image[0] == 0).sum()) for image in cut] == [9, 4]
    assert bool((cut[0, :, 1:4, 1:4] == 0).all())
    assert bool((cut[1, :, :2, 3:] == 0).all())


def test_cutout_blanks_all_channels_of_each_image_at_its_own_place() -> None:
    torch.manual_seed(0)
    cut = build("cutout", size=0.5).transform_batch(batch(20, side=8), FIRST).inputs
    blank = cut == 0
    assert torch.equal(blank[:, 0], blank[:, 1])
    assert all(4 <= int(image.sum()) <= 16 for image in blank[:, 0])
    assert len({tuple(image.flatten().tolist()) for image in blank[:, 0]}) > 5


def test_a_shift_moves_pixels_and_pads_with_zeros() -> None:
    image = torch.arange(9.0).view(1, 1, 3, 3)
    assert torch.equal(shift(image, torch.tensor([[1, 1]]), 1), image)
    assert shift(image, torch.tensor([[0, 1]]), 1)[0, 0].tolist() == [[0, 0, 0], [0, 1, 2], [3, 4, 5]]
    assert shift(image, torch.tensor([[1, 2]]), 1)[0, 0].tolist() == [[1, 2, 0], [4, 5, 0], [7, 8, 0]]


def test_each_image_is_shifted_by_its_own_offset_like_one_cut_by_hand() -> None:
    torch.manual_seed(0)
    images, offsets = torch.randn(5, 2, 4, 6), torch.randint(5, (5, 2))
    padded = nn.functional.pad(images, (2, 2, 2, 2))
    by_hand = [padded[i, :, y : y + 4, x : x + 6] for i, (y, x) in enumerate(offsets.tolist())]
    assert torch.equal(shift(images, offsets, 2), torch.stack(by_hand))


def test_about_half_of_the_images_are_mirrored() -> None:
    torch.manual_seed(0)
    images = torch.arange(4.0).expand(400, 1, 2, 4).clone()
    plain = batch(400).with_(inputs=images)
    flipped = build("crop_flip", padding=0).transform_batch(plain, FIRST).inputs
    share = float((flipped[:, 0, 0, 0] == 3).float().mean())
    assert share == pytest.approx(0.5, abs=0.1)  # 4 sigma
    assert torch.equal(build("crop_flip", padding=0, flip=False).transform_batch(plain, FIRST).inputs, images)


@pytest.mark.parametrize(("epoch", "share"), [(0, 0.5), (2, 0.7), (5, 1.0), (9, 1.0)])
def test_sides_grow_linearly_to_the_full_size(epoch: int, share: float) -> None:
    assert side_share(epoch, start=0.5, epochs=5) == pytest.approx(share)


@pytest.mark.parametrize(("side", "multiple", "expected"), [(0.5, 4, 16), (0.6, 4, 20), (0.01, 4, 4), (1.0, 4, 32)])
def test_sides_are_rounded_to_a_multiple(side: float, multiple: int, expected: int) -> None:
    assert resized(torch.ones(2, 1, 32, 32), side, multiple=multiple).shape == (2, 1, expected, expected)


def test_resizing_acts_on_training_images_of_early_epochs_only() -> None:
    strategy = build("progressive_resizing", start=0.5, epochs=5)
    assert strategy.transform_batch(batch(side=16), FIRST).inputs.shape[-2:] == (8, 8)
    plain = batch(side=16)
    assert strategy.transform_batch(plain, LATER) is plain


def test_a_pooling_network_trains_through_all_sizes() -> None:
    seen = []

    class Pooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((self.training, x.shape[-1]))
            return self.head(x.mean((2, 3)))

    data = TensorDataset(torch.randn(8, 1, 16, 16), torch.arange(8) % 2)
    config = {"batch_size": 8, "strategies": {"progressive_resizing": {"start": 0.5, "epochs": 2}}}
    MuseSparkTrainer(Pooling(), None, None, data, data, config).fit(3)
    assert [side for is_training, side in seen if is_training] == [8, 12, 16]
    assert {side for is_training, side in seen if not is_training} == {16}


def test_channels_last_changes_the_order_in_memory_and_nothing_else() -> None:
    strategy, model = build("channels_last"), nn.Conv2d(2, 4, 3)
    before = model.weight.detach().clone()
    model = strategy.prepare_model(model)  # type: ignore[assignment]
    changed = strategy.transform_batch(batch(), FIRST).inputs
    assert changed.is_contiguous(memory_format=torch.channels_last)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(model.weight, before)
    assert torch.equal(changed, batch().inputs)

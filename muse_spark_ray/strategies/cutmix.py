"""CutMix: paste a box of one image into another and mix the targets by area."""

from __future__ import annotations

import torch
from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, knob, mix


def draw_box(height: int, width: int, share: float) -> tuple[slice, slice]:
    """Draw a box that covers about `1 - share` of an image; at the border it is cut off.

    Args:
        height: Pixels.
        width: Pixels.
        share: What is to be left of the image, in [0, 1].

    Returns:
        Rows and columns of the box.

    Source: Yun et al. 2019, CutMix, section 3.1: both sides scale by sqrt(1 - share), the centre is uniform.
    """
    side = (1.0 - share) ** 0.5
    tall, wide = int(height * side), int(width * side)
    y, x = int(torch.randint(height, ())), int(torch.randint(width, ()))
    rows = slice(max(y - tall // 2, 0), min(y - tall // 2 + tall, height))
    return rows, slice(max(x - wide // 2, 0), min(x - wide // 2 + wide, width))


def paste(images: Tensor, partners: Tensor, box: tuple[slice, slice]) -> tuple[Tensor, float]:
    """Replace a box of each image by its partner's.

    Args:
        images: [B, C, H, W].
        partners: [B] int64.
        box: Rows and columns.

    Returns:
        (new images, share of each image that is still its own).
    """
    rows, columns = box
    mixed = images.clone()
    mixed[..., rows, columns] = images[partners][..., rows, columns]
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return mixed, 1.0 - area / (images.shape[-2] * images.shape[-1])


class CutMix(Strategy):
    """Paste a box of one image into another and mix the targets by area."""

    stage = Stage.BATCH
    needs = frozenset({Trait.CLASS_TARGETS, Trait.IMAGES})
    makes = frozenset({Trait.CHANGED_INPUTS, Trait.SOFT_TARGETS})
    card = Card(
        saves="accuracy that would take more data",
        costs="one copy of the batch",
        pays="long trainings on images whose object fills the frame",
        hurts="short trainings, small objects",
        source="Yun et al. 2019, CutMix",
    )

    class Config(StrategyConfig):
        """Settings of CutMix."""

        alpha: float = knob(
            1.0, gt=0, le=10, search=(0.1, 1.0, "log"), doc="both parameters of the Beta distribution of the shares"
        )
        probability: float = knob(0.5, ge=0, le=1, search=(0.2, 1.0), doc="share of the micro-batches that are mixed")

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        if float(torch.rand(())) >= self.config.probability:
            return batch
        images: Tensor = batch.inputs
        wanted = float(torch.distributions.Beta(self.config.alpha, self.config.alpha).sample())
        partners = torch.randperm(batch.size).to(images.device)
        mixed, share = paste(images, partners, draw_box(images.shape[-2], images.shape[-1], wanted))
        return mix(batch, partners, torch.tensor(share, device=images.device), mixed, classes=self.context.classes)

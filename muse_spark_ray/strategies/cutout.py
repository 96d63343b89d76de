"""Cutout: blank a square of each image."""

from __future__ import annotations

import torch
from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, knob


def blank_squares(images: Tensor, centres: Tensor, side: int) -> Tensor:
    """Set a square of each image to 0, the mean of standardised inputs.

    Args:
        images: [B, C, H, W].
        centres: [B, 2] int64 rows and columns; what lies outside the image is cut off.
        side: Pixels.

    Returns:
        [B, C, H, W].

    Source: DeVries and Taylor 2017, Cutout.
    """
    first = centres - side // 2
    rows = torch.arange(images.shape[-2], device=images.device)
    columns = torch.arange(images.shape[-1], device=images.device)
    in_rows = (rows >= first[:, :1]) & (rows < first[:, :1] + side)
    in_columns = (columns >= first[:, 1:]) & (columns < first[:, 1:] + side)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0.0)


class Cutout(Strategy):
    """Blank a square of each image at a random place."""

    stage = Stage.BATCH
    makes = frozenset({Trait.CHANGED_INPUTS})
    needs = frozenset({Trait.IMAGES})
    card = Card(
        saves="accuracy that would take more data",
        costs="one pass over the batch in memory, on the device",
        pays="images, trainings that over-fit",
        hurts="short trainings, objects smaller than the square",
        source="DeVries and Taylor 2017, Cutout",
    )

    class Config(StrategyConfig):
        """Settings of cutout."""

        size: float = knob(0.4, gt=0, le=1, search=(0.2, 0.6), doc="side of the square as a share of the image's side")

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        images: Tensor = batch.inputs
        height, width = images.shape[-2:]
        centres = torch.stack([torch.randint(height, (batch.size,)), torch.randint(width, (batch.size,))], dim=1)
        side = max(1, round(self.config.size * min(height, width)))
        return batch.with_(inputs=blank_squares(images, centres.to(images.device), side))

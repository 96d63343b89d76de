"""Progressive resizing: train on small images first."""

from __future__ import annotations

import torch
from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, knob


def side_share(epoch: int, *, start: float, epochs: int) -> float:
    """Return the side of the images in an epoch as a share of the full one: `start` first, then linearly to 1."""
    return min(1.0, start + (1.0 - start) * epoch / epochs)


def resized(images: Tensor, share: float, *, multiple: int) -> Tensor:
    """Scale images [B, C, H, W] by a share of their side, rounded to a multiple, with bilinear interpolation."""
    height, width = (max(multiple, round(side * share / multiple) * multiple) for side in images.shape[-2:])
    if (height, width) == tuple(images.shape[-2:]):
        return images
    return torch.nn.functional.interpolate(images, (height, width), mode="bilinear", antialias=share < 1.0)


class ProgressiveResizing(Strategy):
    """Train on small images first and on full ones later; evaluation always sees full ones.

    The network must take images of any size: pooling before its last linear layer.
    """

    stage = Stage.BATCH
    makes = frozenset({Trait.CHANGED_INPUTS})
    needs = frozenset({Trait.IMAGES})
    card = Card(
        saves="compute of early epochs: half the side is a quarter of the work",
        costs="one interpolation of each batch",
        pays="large images, convolutional networks that pool at their end",
        hurts="networks whose last layer has a fixed size; images whose meaning is in single pixels",
        source="Karras et al. 2018, Progressive Growing; https://docs.mosaicml.com/projects/composer/en/stable/method_cards/progressive_resizing.html",
    )

    class Config(StrategyConfig):
        """Settings of progressive resizing."""

        start: float = knob(
            0.5, gt=0, le=1, search=(0.3, 0.8), doc="side in the first epoch, as a share of the full one"
        )
        epochs: int = knob(5, ge=1, search=(2, 20), doc="epochs until images have their full size")
        multiple: int = knob(4, ge=1, doc="sides are rounded to a multiple of so many pixels")

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        share = side_share(step.epoch, start=self.config.start, epochs=self.config.epochs)
        return (
            batch if share == 1.0 else batch.with_(inputs=resized(batch.inputs, share, multiple=self.config.multiple))
        )

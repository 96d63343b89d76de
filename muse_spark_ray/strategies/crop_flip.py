"""Random crops and flips of a whole batch at once, on the device where it lies."""

from __future__ import annotations

import torch
from torch import Tensor

from muse_spark_ray.strategy import Batch, Card, Stage, Step, Strategy, StrategyConfig, Trait, knob


def shift(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """Cut a window of the old size out of each zero-padded image.

    Args:
        images: [B, C, H, W].
        offsets: [B, 2] int64 first row and column of the window in the padded image, in [0, 2 * padding];
            `padding` leaves an image as it is.
        padding: Pixels added at each border.

    Returns:
        [B, C, H, W].
    """
    count, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    rows = offsets[:, :1] + torch.arange(height, device=images.device)
    columns = offsets[:, 1:] + torch.arange(width, device=images.device)
    samples = torch.arange(count, device=images.device)[:, None, None, None]
    planes = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[samples, planes, rows[:, None, :, None], columns[:, None, None, :]]


class CropFlip(Strategy):
    """Shift each image by some pixels and mirror half of them."""

    stage = Stage.BATCH
    makes = frozenset({Trait.CHANGED_INPUTS})
    needs = frozenset({Trait.IMAGES})
    card = Card(
        saves="accuracy that would take more data; loader workers, since whole batches are changed on the device",
        costs="one gather of the batch",
        pays="photographs and objects that may stand anywhere",
        hurts="digits and text (flip), images whose place matters",
        source="Krizhevsky et al. 2012, section 4.1; He et al. 2016, section 4.2",
    )

    class Config(StrategyConfig):
        """Settings of crops and flips."""

        padding: int = knob(2, ge=0, le=64, search=(0, 4), doc="largest shift in pixels, up, down, left and right")
        flip: bool = knob(True, search=[False, True], doc="mirror each image left to right with probability 0.5")

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        images: Tensor = batch.inputs
        padding = self.config.padding
        if padding:
            offsets = torch.randint(2 * padding + 1, (batch.size, 2)).to(images.device)
            images = shift(images, offsets, padding)
        if self.config.flip:
            mirrored = (torch.rand(batch.size) < 0.5).to(images.device)
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        return batch.with_(inputs=images)

"""In-memory data sets: what a source returns and what the loader slices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.data import TensorDataset


class TensorSet(TensorDataset):
    """Inputs and targets held as two tensors, handed out in batches without touching single samples.

    Args:
        inputs: [N, ...] float32 samples.
        targets: [N] int64 class ids or [N, ...] float32 values.
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        super().__init__(inputs, targets)
        self.inputs = inputs
        self.targets = targets


@dataclass(frozen=True, slots=True)
class Task:
    """A data set split into a training and a validation part.

    Args:
        train: Training samples.
        validation: Validation samples.
        classes: Number of classes, None for regression.
        shape: Shape of one input.
        about: What using a model of this data needs, as JSON can hold it: `labels`, the names of the classes, and
            `preprocessing`, what was done to the inputs.
    """

    train: TensorSet
    validation: TensorSet
    classes: int | None
    shape: tuple[int, ...]
    about: dict[str, Any] = field(default_factory=dict)

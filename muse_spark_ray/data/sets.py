"""Data sets as a source returns them: tensors in memory, and a task's two parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

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


Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Task(Generic[Part]):
    """A data set split into a training and a validation part.

    Args:
        train: Training samples: a TensorSet, or a StreamPart where they are read as they are needed.
        validation: Validation samples, likewise.
        classes: Number of classes, None for regression.
        shape: Shape of one input.
        about: What using a model of this data needs, as JSON can hold it: `labels`, the names of the classes, and
            `preprocessing`, what was done to the inputs.
    """

    train: Part
    validation: Part
    classes: int | None
    shape: tuple[int, ...]
    about: dict[str, Any] = field(default_factory=dict)

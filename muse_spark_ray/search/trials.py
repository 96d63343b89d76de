"""What the engine remembers of each trial while it is not finished for good."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Trial:
    """One trial of a sweep, over all its attempts.

    Args:
        name: Its id, such as `t0007`.
        number: Its place in the order of drawing.
        values: {dotted path: value} as drawn.
        config: Its TrainConfig as JSON.
        identity: Hash of the config.
        epochs: Epochs it is to train.
        attempt: Starts before this one.
        metrics: Those of the last epoch reported.
        epoch: Epochs reported.
        started: UTC seconds of the first start of this attempt, None while it waits.
    """

    name: str
    number: int
    values: dict[str, Any]
    config: str
    identity: str
    epochs: int
    attempt: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    started: float | None = None


@dataclass(frozen=True, slots=True)
class News:
    """One thing that happened to a trial.

    Args:
        trial: Its id.
        what: finished, stopped, failed, or again when it will run once more.
        epoch: Epochs done.
        metrics: Those of its last epoch, costs included.
        reason: Why, if it did not finish.
    """

    trial: str
    what: str
    epoch: int
    metrics: dict[str, Any]
    reason: str = ""


def trial_name(number: int) -> str:
    """Return the id of the trial with a number; ids sort as the numbers do."""
    return f"t{number:04d}"

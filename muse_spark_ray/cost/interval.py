"""The record that every cost is computed from: what was held, how much of it, when, and for what."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from muse_spark_ray.errors import ConfigError


class Phase(StrEnum):
    """What a second was spent on.

    train       steps of the training itself
    data_wait   waiting for the next batch
    evaluate    validation
    checkpoint  the part of saving that the training waits for
    compile     compiling the model
    start       starting workers and loading data, first attempt
    restart     the same after a preemption or failure
    lost        work done after the last checkpoint and thrown away by a failure
    wait        waiting for resources: nothing is held, so it is neither billed nor counted as held
    idle        held by a gang that has no trial: billed
    shared      work for several trials at once
    overhead    everything else between the first and the last second of a trial
    """

    train = "train"
    data_wait = "data_wait"
    evaluate = "evaluate"
    checkpoint = "checkpoint"
    compile = "compile"
    start = "start"
    restart = "restart"
    lost = "lost"
    wait = "wait"
    idle = "idle"
    shared = "shared"
    overhead = "overhead"


@dataclass(frozen=True, slots=True)
class Interval:
    """One resource held for one phase of one trial.

    Args:
        trial: id of the trial; "" for what belongs to no trial, such as idle gangs.
        resource: "cpu" (logical CPUs, billed), "host_cpu" (those of a host that the accelerator's price includes:
            recorded, never billed), "gpu", "gpu:H100", "gpu:H100@lambda" or "gpu:H100@lambda:spot"
            (accelerator@cloud:market).
        amount: units held; a fraction for a part of a device.
        start: seconds of any one clock, UTC seconds since 1970 in the ledger.
        end: seconds of the same clock, not before `start`.
        phase: what the time was spent on.
        attempt: 0 for the first launch of the trial, one more after each restart.
        device: which unit, if it is known, such as a GPU's UUID.

    Raises:
        ConfigError: for a negative or not finite number, an end before the start, or an unknown phase.
    """

    trial: str
    resource: str
    amount: float
    start: float
    end: float
    phase: Phase | str
    attempt: int = 0
    device: str = ""

    def __post_init__(self) -> None:
        for name in ("amount", "start", "end"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise ConfigError(f"interval.{name} of trial {self.trial!r} is {value}; it must be a finite number")
        if self.amount < 0:
            raise ConfigError(f"interval.amount of trial {self.trial!r} is {self.amount}; it must be 0 or more")
        if self.end < self.start:
            raise ConfigError(
                f"interval.end of trial {self.trial!r} is {self.end}, before its start {self.start}",
                hint="Take both from one monotonic clock, such as PhaseClock.",
            )
        if not self.resource:
            raise ConfigError(f"interval.resource of trial {self.trial!r} is empty; name one, such as cpu or gpu:H100")
        object.__setattr__(self, "phase", parse_phase(self.phase))

    @property
    def seconds(self) -> float:
        """Length in seconds, whatever the phase."""
        return self.end - self.start

    @property
    def resource_seconds(self) -> float:
        """Units times seconds held; 0 while waiting for resources."""
        return 0.0 if self.phase == Phase.wait else self.amount * self.seconds


def parse_phase(name: str) -> Phase:
    """Return the phase of that name; ConfigError names the nearest one if there is none."""
    try:
        return Phase(name)
    except ValueError:
        near = difflib.get_close_matches(str(name), list(Phase), 1)
        raise ConfigError(
            f"phase is {name!r}; it must be one of {', '.join(Phase)}",
            hint=f"Did you mean {near[0]}?" if near else None,
        ) from None


def resource_kind(resource: str) -> str:
    """Return what is held without its type, cloud and market: "gpu" of "gpu:H100@lambda:spot"."""
    return resource.partition(":")[0].partition("@")[0]


def is_billed(resource: str) -> bool:
    """Say whether a resource has a price of its own; a host's CPUs are in the price of its accelerators."""
    return resource_kind(resource) != "host_cpu"


def distinct(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in their order, each exact repeat of a row dropped: it is one interval written twice.

    Two like units held at the same time are one row with amount 2, or two rows with their `device`.
    """
    return list(dict.fromkeys(intervals))


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return how many seconds lie in at least one of the (start, end) spans."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def restarts(intervals: Iterable[Interval]) -> dict[str, int]:
    """Return how often each trial was started again: its distinct attempts less one."""
    attempts: dict[str, set[int]] = {}
    for interval in intervals:
        attempts.setdefault(interval.trial, set()).add(interval.attempt)
    return {trial: len(seen) - 1 for trial, seen in attempts.items()}

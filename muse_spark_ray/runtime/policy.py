"""What to do after a failure: pure functions from facts to a decision, without Ray.

Preemptions and lost nodes are nobody's fault, a bug in a trial is: the two never share a budget. What a trial raises
costs that trial only; what kills workers restarts the gang; only a gang that keeps dying without finishing anything,
or cannot start at all, is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DEVICE_MARKERS = (
    "CUDA error",
    "CUDA out of memory",
    "cuDNN error",
    "CUBLAS_STATUS",
    "NCCL error",
    "device-side assert",
)
DEVICE_TYPES = ("OutOfMemoryError", "AcceleratorError", "DistBackendError")


@dataclass(frozen=True)
class Keep:
    """The worker group goes on with the next job."""


@dataclass(frozen=True)
class Restart:
    """The worker group is replaced by one of `workers` workers, after a pause."""

    workers: int
    delay_seconds: float = 0.0


@dataclass(frozen=True)
class GiveUp:
    """The gang is not started again."""

    reason: str


Decision = Keep | Restart | GiveUp


@dataclass(frozen=True)
class TrialFacts:
    """One rank's view of how a job ended.

    Args:
        failed: whether this rank's runner raised.
        is_unhealthy: whether what it raised leaves the process unfit (memory, device).
        signature: where and what it raised, equal on ranks that failed at the same point; 0 without a failure.
    """

    failed: bool
    is_unhealthy: bool = False
    signature: int = 0


@dataclass(frozen=True)
class GangFacts:
    """What is known of a gang whose worker group has just gone.

    Args:
        start_failures: failed starts since it last ran.
        losses_in_a_row: worker groups lost since a job last ended by itself on this gang.
        is_closing: whether the pool is being closed.
    """

    start_failures: int
    losses_in_a_row: int
    is_closing: bool = False


@dataclass(frozen=True)
class RestartLimits:
    """How often a gang may fail in a row before it is given up; the pause doubles from failure to failure."""

    start_failures: int = 3
    losses_in_a_row: int = 5
    first_delay_seconds: float = 0.1
    longest_delay_seconds: float = 30.0


def after_trial(facts: Sequence[TrialFacts]) -> Decision:
    """Decide whether a worker group may run another job after this one.

    Args:
        facts: one entry per rank that answered, in rank order; a rank that did not answer is the caller's Restart.
    """
    if not any(rank.failed for rank in facts):
        return Keep()
    if any(rank.is_unhealthy for rank in facts):
        return Restart(len(facts))
    # Ranks that failed at different points may have left half a collective behind in the process group.
    alike = all(rank.failed for rank in facts) and len({rank.signature for rank in facts}) == 1
    return Keep() if alike else Restart(len(facts))


def after_loss(facts: GangFacts, workers: int, *, limits: RestartLimits, reason: str) -> Decision:
    """Decide whether a gang whose worker group has gone is started again.

    Args:
        facts: what is known of the gang.
        workers: size of the worker group to start.
        limits: how much is tolerated in a row.
        reason: why the last worker group went, for people.
    """
    if facts.is_closing:
        return GiveUp("the pool is closing")
    if facts.start_failures >= limits.start_failures:
        return GiveUp(f"it did not start in {facts.start_failures} tries: {reason}")
    if facts.losses_in_a_row >= limits.losses_in_a_row:
        return GiveUp(f"it was lost {facts.losses_in_a_row} times in a row without ending a job: {reason}")
    return Restart(workers, _delay(facts, limits))


def is_unhealthy(error: BaseException) -> bool:
    """Whether an error leaves the process unfit for another trial: out of memory, or a broken device context."""
    if isinstance(error, MemoryError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint(DEVICE_TYPES) or any(marker in str(error) for marker in DEVICE_MARKERS)


def _delay(facts: GangFacts, limits: RestartLimits) -> float:
    failures = facts.start_failures + facts.losses_in_a_row
    return min(limits.first_delay_seconds * 2.0 ** max(failures - 1, 0), limits.longest_delay_seconds)

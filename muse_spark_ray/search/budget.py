"""When a sweep ends: pure functions from what was spent to a reason to stop."""

from __future__ import annotations

from dataclasses import dataclass

from muse_spark_ray.spec.sweep import Budget

FAILURES_WITHOUT_A_SUCCESS = 10


@dataclass(frozen=True, slots=True)
class Spent:
    """What a sweep has used so far, over all its runs.

    Args:
        cost_usd: Money for all that was held; None if some of it has no price.
        gpu_hours: GPU-hours.
        wall_seconds: Time in which a driver was running.
        finished: Trials that ended well, stopped ones included.
        failed: Trials that failed for good.
    """

    cost_usd: float | None
    gpu_hours: float
    wall_seconds: float
    finished: int
    failed: int


def exhausted(budget: Budget, spent: Spent) -> str | None:
    """Return which limit of money, GPU-hours or time is reached, None while there is room."""
    limits = {"cost_usd": budget.cost_usd, "gpu_hours": budget.gpu_hours, "wall_seconds": budget.wall_seconds}
    for name, limit in limits.items():
        used = getattr(spent, name)
        if limit is not None and used is not None and used >= limit:
            return f"budget.{name} of {limit:g} is reached ({used:.6g} used)"
    return None


def hopeless(budget: Budget, spent: Spent) -> str | None:
    """Return why more trials make no sense, None if they do."""
    if budget.max_failed is not None and spent.failed >= budget.max_failed:
        return f"budget.max_failed of {budget.max_failed} is reached"
    if budget.max_failed is None and spent.finished == 0 and spent.failed >= FAILURES_WITHOUT_A_SUCCESS:
        return f"the first {spent.failed} trials all failed"
    return None

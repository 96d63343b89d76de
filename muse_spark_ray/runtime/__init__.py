"""Gangs of workers on Ray: start or join Ray, keep worker groups alive, lease them to trials.

Names are loaded when first used, so that `muse_spark_ray.runtime.lease` can be imported without ray and torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muse_spark_ray.runtime.book import GangSpan, GangState, GangStatus
    from muse_spark_ray.runtime.gang import GangShape
    from muse_spark_ray.runtime.lease import (
        Event,
        Failed,
        Finished,
        Job,
        LeaseClient,
        Reported,
        Started,
        WorkerContext,
    )
    from muse_spark_ray.runtime.policy import RestartLimits
    from muse_spark_ray.runtime.pool import Pool
    from muse_spark_ray.runtime.session import RaySession, open_ray

_HOMES = {
    "Event": "lease",
    "Failed": "lease",
    "Finished": "lease",
    "GangShape": "gang",
    "GangSpan": "book",
    "GangState": "book",
    "GangStatus": "book",
    "Job": "lease",
    "LeaseClient": "lease",
    "Pool": "pool",
    "RaySession": "session",
    "Reported": "lease",
    "RestartLimits": "policy",
    "Started": "lease",
    "WorkerContext": "lease",
    "open_ray": "session",
}

__all__ = [
    "Event",
    "Failed",
    "Finished",
    "GangShape",
    "GangSpan",
    "GangState",
    "GangStatus",
    "Job",
    "LeaseClient",
    "Pool",
    "RaySession",
    "Reported",
    "RestartLimits",
    "Started",
    "WorkerContext",
    "open_ray",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

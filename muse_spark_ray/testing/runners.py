"""Tiny runners for tests and benchmarks of gangs: they cost nothing and show one behaviour each."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from muse_spark_ray.runtime.lease import Emit, Job, WorkerContext

WAIT_LIMIT_SECONDS = 120.0


def report_twice(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any]:
    """Report two epochs and return."""
    for epoch in range(2):
        emit({"epoch": epoch, "trial": job.trial})
    return {"world_size": context.world_size, "incarnation": context.incarnation}


def describe(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any]:
    """Return what the worker was told, the config it read, and how often its process ran this."""
    import torch

    context.cache["runs"] = context.cache.get("runs", 0) + 1
    emit({"rank": context.rank})
    return {
        "config": json.loads(job.config),
        "device": context.device,
        "resources": context.resources,
        "gang": context.gang,
        "runs": context.cache["runs"],
        "threads": torch.get_num_threads(),
        "pid": os.getpid(),
    }


def sum_ranks(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any]:
    """Add up rank + 1 over all ranks with the training's own process group."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([context.rank + 1.0])
    if context.world_size > 1:
        dist.all_reduce(total)
    emit({"total": total.item()})
    return {"total": total.item()}


def report_until_stopped(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any]:
    """Report every few milliseconds until told to stop."""
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    epoch = 0
    while time.monotonic() < deadline:
        if emit({"epoch": epoch}):
            return {"stopped_after": epoch}
        epoch += 1
        time.sleep(0.005)
    raise TimeoutError(f"trial {job.trial!r} was not stopped within {WAIT_LIMIT_SECONDS} s")


def fail(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any]:
    """Report once, then raise on the ranks listed in the config's "ranks" (all by default)."""
    emit({"epoch": 0})
    if context.rank in json.loads(job.config).get("ranks", range(context.world_size)):
        raise ValueError(f"on purpose in trial {job.trial}")
    return {"rank": context.rank}


def exhaust_memory(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any]:
    """Raise MemoryError."""
    raise MemoryError(f"on purpose in trial {job.trial}")


def hang(job: Job, emit: Emit, context: WorkerContext) -> dict[str, Any] | None:
    """Report once, then look at no stop flag until the time limit of these runners."""
    emit({"epoch": 0})
    threading.Event().wait(WAIT_LIMIT_SECONDS)
    return None

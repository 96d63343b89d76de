"""What runs in the worker processes of a gang: a loop that takes job after job.

Rank 0 asks the broker and shares the answer; all ranks run the job at the same time. With one worker there is no
collective at all. With more, two small gloo groups stand beside the training's own process group: `control` carries
jobs and stop flags, `verdict` one exchange per job, waited for only briefly by a rank that failed, so that one
rank's error cannot leave the others waiting inside a half-done collective for ever.
"""

from __future__ import annotations

import os
import time
import traceback
import zlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from muse_spark_ray.runtime.book import Member, Raised, Returned
from muse_spark_ray.runtime.lease import Job, Reported, WorkerContext, resolve_runner
from muse_spark_ray.runtime.policy import Keep, TrialFacts, after_trial, is_unhealthy

# A rank that failed waits this long for the others to have failed alike before the worker group is replaced.
VERDICT_SECONDS = 5.0
# Longest silence between ranks: an idle gang is spoken to at every poll of the broker, a busy one at every report.
CONTROL_TIMEOUT = timedelta(hours=24)


class WorkerGroupUnfitError(RuntimeError):
    """Raised out of the train function so that Ray Train replaces the worker group; the job has ended already."""


@dataclass(frozen=True)
class GangConfig:
    """What the train function of a gang needs to know.

    Args:
        broker: handle of the pool's broker.
        gang: name of this gang.
        cpus_per_worker: logical CPUs, also the number of torch threads (at least 1).
        gpus_per_worker: GPUs of each worker.
    """

    broker: Any
    gang: str
    cpus_per_worker: float
    gpus_per_worker: float


def run_gang(config: dict[str, Any]) -> None:
    """Take and run jobs until the broker says to finish (the train function handed to Ray Train)."""
    gang = GangConfig(**config)
    ranks = _Ranks.join()
    context = _introduce(gang, ranks)
    while True:
        goes_on, job = _next_job(gang, ranks, context.incarnation)
        if not goes_on:
            return
        if job is not None:
            _run_job(job, gang, ranks, context)


class _Ranks:
    """The few things that ranks tell each other; every method is called on all ranks in the same order."""

    def __init__(self, rank: int, local_rank: int, world_size: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self._control: Any = None
        self._verdict: Any = None

    @classmethod
    def join(cls) -> _Ranks:
        import ray.train

        context = ray.train.get_context()
        ranks = cls(context.get_world_rank(), context.get_local_rank(), context.get_world_size())
        if ranks.world_size > 1:
            import torch.distributed as dist

            ranks._control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
            ranks._verdict = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        return ranks

    def share(self, value: Any) -> Any:
        """The value of rank 0."""
        if self.world_size == 1:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def share_flag(self, flag: bool) -> bool:
        """The flag of rank 0."""
        if self.world_size == 1:
            return flag
        import torch
        import torch.distributed as dist

        box = torch.tensor([flag], dtype=torch.uint8)
        dist.broadcast(box, src=0, group=self._control)
        return bool(box.item())

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""
        if self.world_size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def exchange(self, mine: TrialFacts) -> list[TrialFacts]:
        """How the job ended on every rank.

        Raises:
            WorkerGroupUnfitError: this rank failed and another did not come to the end of the job in time.
        """
        if self.world_size == 1:
            return [mine]
        import torch
        import torch.distributed as dist

        sent = torch.tensor([mine.failed, mine.is_unhealthy, mine.signature], dtype=torch.int64)
        received = [torch.zeros_like(sent) for _ in range(self.world_size)]
        work = dist.all_gather(received, sent, group=self._verdict, async_op=True)
        try:
            work.wait(timedelta(seconds=VERDICT_SECONDS) if mine.failed else CONTROL_TIMEOUT)
        except Exception as error:
            raise WorkerGroupUnfitError(f"rank {self.rank}: the other ranks did not end the job: {error}") from error
        return [TrialFacts(bool(row[0]), bool(row[1]), int(row[2])) for row in received]


class _Reporter:
    """`emit` of one job: rank 0 sends without waiting, every rank learns the same stop flag."""

    def __init__(self, job: Job, gang: GangConfig, ranks: _Ranks, incarnation: int) -> None:
        self._broker = gang.broker
        self._address = (job.key, gang.gang, incarnation)
        self._ranks = ranks
        self._sent = 1
        self._stop_call = self._broker.begin.remote(*self._address, time.time()) if ranks.rank == 0 else None
        self._has_stopped = False

    def emit(self, report: dict[str, Any]) -> bool:
        """Send one report; True when the trial should stop."""
        if self._stop_call is not None:
            self._broker.report.remote(*self._address, self._sent, Reported(report))
            self._sent += 1
            self._has_stopped = self._has_stopped or self._is_stop_known()
        return self._ranks.share_flag(self._has_stopped)

    def finish(self, payload: dict[str, Any] | None) -> None:
        """Tell the broker that the job returned (rank 0)."""
        self._broker.end.remote(*self._address, self._sent, Returned(payload, time.time()))

    def fail(self, error: BaseException) -> None:
        """Tell the broker that the job raised (any rank), and wait for its answer.

        This process may be replaced before a message that is only on its way has left.
        """
        import ray

        reason = f"{type(error).__name__} on rank {self._ranks.rank}: {error}"
        message = Raised(reason, "".join(traceback.format_exception(error)), time.time())
        if self._ranks.rank == 0:
            ray.get(self._broker.end.remote(*self._address, self._sent, message))
        else:
            ray.get(self._broker.fail.remote(*self._address, message))

    def _is_stop_known(self) -> bool:
        import ray

        ready, _ = ray.wait([self._stop_call], timeout=0)
        return bool(ready)


def _introduce(gang: GangConfig, ranks: _Ranks) -> WorkerContext:
    import ray

    device, resources = _prepare_device(gang)
    node = ray.get_runtime_context().get_node_id()
    members = ranks.gather(Member(ranks.rank, os.getpid(), node, resources))
    incarnation = ranks.share(ray.get(gang.broker.hello.remote(gang.gang, members)) if ranks.rank == 0 else None)
    return WorkerContext(
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        world_size=ranks.world_size,
        device=device,
        resources=resources,
        gang=gang.gang,
        node=node,
        incarnation=incarnation,
    )


def _prepare_device(gang: GangConfig) -> tuple[str, dict[str, float]]:
    """Choose this worker's device and set its threads; returns the device and what the worker holds."""
    import torch

    threads = max(int(gang.cpus_per_worker), 1)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    if gang.gpus_per_worker <= 0:
        return "cpu", {"cpu": gang.cpus_per_worker}
    import ray.train.torch

    device = ray.train.torch.get_device()
    name = torch.cuda.get_device_name(device)
    return str(device), {f"gpu:{name}": gang.gpus_per_worker, "host_cpu": gang.cpus_per_worker}


def _next_job(gang: GangConfig, ranks: _Ranks, incarnation: int) -> tuple[bool, Job | None]:
    import ray

    answer = ray.get(gang.broker.next_job.remote(gang.gang, incarnation)) if ranks.rank == 0 else None
    shared: tuple[bool, Job | None] = ranks.share(answer)
    return shared


def _run_job(job: Job, gang: GangConfig, ranks: _Ranks, context: WorkerContext) -> None:
    reporter = _Reporter(job, gang, ranks, context.incarnation)
    payload = None
    mine = TrialFacts(failed=False)
    try:
        payload = resolve_runner(job.runner)(job, reporter.emit, context)
    except Exception as error:
        mine = TrialFacts(failed=True, is_unhealthy=is_unhealthy(error), signature=_signature(error))
        reporter.fail(error)
    facts = ranks.exchange(mine)
    if ranks.rank == 0 and not any(rank.failed for rank in facts):
        reporter.finish(payload)
    if not isinstance(after_trial(facts), Keep):
        failed = [rank for rank, fact in enumerate(facts) if fact.failed]
        raise WorkerGroupUnfitError(f"after trial {job.trial!r} attempt {job.attempt} failed on ranks {failed}")


def _signature(error: BaseException) -> int:
    """A number that is equal on ranks that raised the same error at the same line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = (frames[-1].filename, frames[-1].lineno) if frames else ("", 0)
    return zlib.crc32(repr((type(error).__name__, where)).encode())

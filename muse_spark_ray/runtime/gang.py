"""A gang: a Ray Train worker group that stays alive and runs trial after trial, kept alive by a thread of the driver.

The thread starts the worker group, waits until it ends, asks `policy.after_loss` what to do and does it. Everything
about jobs goes straight between workers and broker; this thread only sees worker groups come and go.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.runtime.controller import Placement, trainer_class
from muse_spark_ray.runtime.policy import GiveUp, RestartLimits, after_loss
from muse_spark_ray.runtime.worker import run_gang

ANSWER_SECONDS = 20.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GangShape:
    """What one gang is made of.

    Args:
        workers: processes that train one trial together.
        cpus_per_worker: logical CPUs of each, also its torch threads.
        gpus_per_worker: GPUs of each; 0 trains on the CPU with gloo.
    """

    workers: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"gang.workers is {self.workers}; it must be at least 1")
        if self.cpus_per_worker < 0 or self.gpus_per_worker < 0:
            raise ConfigError(
                f"a gang's worker holds {self.cpus_per_worker} CPUs and {self.gpus_per_worker} GPUs; neither may be < 0"
            )
        if self.cpus_per_worker + self.gpus_per_worker <= 0:
            raise ConfigError("a gang's worker must hold some CPU or GPU; both are 0")


class Gang:
    """One gang and the thread that keeps it alive.

    Args:
        name: unique in its pool.
        shape: size of the worker group.
        broker: handle of the pool's broker.
        storage_dir: where Ray Train keeps its few small files.
        limits: how much failure in a row is tolerated.
        worker_env: environment variables the workers need and would not inherit; None when they inherit all.
    """

    def __init__(
        self,
        name: str,
        shape: GangShape,
        broker: Any,
        *,
        storage_dir: str,
        limits: RestartLimits,
        worker_env: dict[str, str] | None,
    ) -> None:
        self.name = name
        self._shape = shape
        self._broker = broker
        self._storage_dir = storage_dir
        self._limits = limits
        self._worker_env = worker_env
        self._closing = threading.Event()
        self._placement = Placement(lambda: self._tell("hold"))
        self._thread = threading.Thread(target=self._live, name=f"gang-{name}", daemon=True)

    def start(self) -> None:
        """Begin to start the worker group; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Do not start another worker group after the present one."""
        self._closing.set()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; True when the worker group is gone."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Remove what the worker group runs on, which kills its workers."""
        self._closing.set()
        self._placement.remove_all()

    def _live(self) -> None:
        reason = "closed"
        try:
            while True:
                failure = self._run_worker_group()
                if failure is None:
                    break
                decision = self._decide(failure)
                if isinstance(decision, GiveUp):
                    reason = decision.reason
                    break
                _logger.warning("gang %s restarts: %s", self.name, failure)
                if self._closing.wait(getattr(decision, "delay_seconds", 0.0)):
                    break
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if not self._closing.is_set() and reason != "closed":
            _logger.error("gang %s is given up: %s", self.name, reason)
        self._tell("bury", reason)

    def _run_worker_group(self) -> str | None:
        """Run one worker group to its end; returns why it failed, or None when it was told to finish."""
        try:
            self._make_trainer().fit()
        except Exception as error:
            return describe_failure(error)
        finally:
            self._placement.remove_all()
        return None

    def _make_trainer(self) -> Any:
        import ray.train
        from ray.train.torch import TorchConfig

        # Ray's stubs give the first version of this class.
        no_retries: Any = ray.train.FailureConfig
        on_gpu = self._shape.gpus_per_worker > 0
        resources = {"CPU": self._shape.cpus_per_worker, "GPU": self._shape.gpus_per_worker}
        trainer = trainer_class()(
            run_gang,
            train_loop_config={
                "broker": self._broker,
                "gang": self.name,
                "cpus_per_worker": self._shape.cpus_per_worker,
                "gpus_per_worker": self._shape.gpus_per_worker,
            },
            torch_config=TorchConfig(backend="nccl" if on_gpu else "gloo"),
            scaling_config=ray.train.ScalingConfig(
                num_workers=self._shape.workers,
                use_gpu=on_gpu,
                resources_per_worker={name: amount for name, amount in resources.items() if amount > 0},
            ),
            run_config=ray.train.RunConfig(
                name=self.name,
                storage_path=self._storage_dir,
                # The budget is ours: every failure comes back to this thread and to `policy.after_loss`.
                failure_config=no_retries(max_failures=0, controller_failure_limit=0),
            ),
        )
        trainer.placement = self._placement
        trainer.worker_env = self._worker_env
        return trainer

    def _decide(self, failure: str) -> Any:
        import ray

        facts = ray.get(self._broker.restart.remote(self.name, failure))
        if self._closing.is_set():
            return GiveUp("closed")
        return after_loss(facts, self._shape.workers, limits=self._limits, reason=failure)

    def _tell(self, method: str, *args: Any) -> None:
        """Tell the broker something; a broker that is gone is the end of the pool and noticed by its callers."""
        import ray

        try:
            ray.get(getattr(self._broker, method).remote(self.name, *args), timeout=ANSWER_SECONDS)
        except Exception as error:
            _logger.debug("gang %s could not tell the broker %s: %s", self.name, method, error)


def describe_failure(error: BaseException) -> str:
    """One line that says why a worker group ended, from Ray Train's nested errors."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, inner = min(failures.items())
        return f"rank {rank}: {_first_line(inner)}"
    return _first_line(getattr(error, "controller_failure", error))


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "_base_exc", None) or getattr(error, "health_check_failure", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"

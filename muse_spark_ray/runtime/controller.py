"""Ray Train's own controller, run in a thread of the driver instead of in an actor of its own.

`TorchTrainer.fit()` starts, for each worker group, a controller actor that imports torch again, a placement-group
cleaner, a data-set manager and an autoscaling coordinator. A gang needs none of these: it lives no longer than its
driver, so Ray removes its placement group when the driver's job ends; it has no Ray Data sets; its size is fixed.
Started this way a gang is ready several seconds sooner and four processes (about 1 GB) lighter.

This leans on internals of Ray Train V2. Where they are missing, `trainer_class` gives the plain TorchTrainer, which
behaves the same and starts slower. Also left out with the cleaner: its use of the State API, which may ask another
cluster on the same host and then remove the placement group of a healthy run.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

_logger = logging.getLogger(__name__)


class Placement:
    """The placement groups a gang's controller has made, so that a pool can remove them from outside.

    Args:
        on_granted: called when the resources of a worker group are there and its workers are about to start.
    """

    def __init__(self, on_granted: Callable[[], None]) -> None:
        self.on_granted = on_granted
        self._handles: list[Any] = []

    def add(self, handle: Any) -> None:
        """Remember a placement group's handle."""
        self._handles.append(handle)

    def remove_all(self) -> None:
        """Remove every placement group, which kills the workers in it."""
        for handle in self._handles:
            handle.shutdown()
        self._handles.clear()


@functools.cache
def trainer_class() -> type[Any]:
    """The trainer a gang uses: Ray's TorchTrainer with its controller in the calling thread, where Ray allows it."""
    from ray.train.torch import TorchTrainer

    try:
        return _in_thread_trainer_class()
    except (ImportError, AttributeError) as error:
        _logger.warning("Ray Train's internals have changed (%s); gangs start more slowly", error)
        return TorchTrainer


def _in_thread_trainer_class() -> type[Any]:
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
    from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback

    for name in ("_create_default_callbacks", "_initialize_and_run_controller"):
        getattr(TorchTrainer, name)
    make_controller = _controller_factory()

    class InThreadTrainer(TorchTrainer):
        """TorchTrainer whose `fit` runs the controller itself."""

        placement: Placement | None = None
        worker_env: dict[str, str] | None = None
        poll_seconds = 0.5

        def _create_default_callbacks(self) -> list[Any]:
            settings: Any = self  # Ray's stubs describe the first version of this class
            return [
                AcceleratorSetupCallback(settings.backend_config, settings.scaling_config),
                BackendSetupCallback(settings.backend_config),
            ]

        def _initialize_and_run_controller(self, **settings: Any) -> Any:
            settings["scaling_policy"] = _fixed_size(self.scaling_config)
            controller = make_controller(self.placement, self.worker_env)(**settings)
            controller._health_check_interval_s = self.poll_seconds
            asyncio.run(controller.run())
            return controller.get_result()

    return InThreadTrainer


def _fixed_size(scaling_config: Any) -> Any:
    from ray.train.v2._internal.execution.scaling_policy.fixed import FixedScalingPolicy

    class FixedSize(FixedScalingPolicy):
        """A fixed number of workers, asked of the scheduler only and not of Ray Data's autoscaling coordinator."""

        def after_controller_start(self, train_run_context: Any) -> None:
            pass

        async def before_controller_shutdown(self) -> None:
            pass

        def before_controller_abort(self) -> None:
            pass

        def _maybe_send_resource_request(self) -> None:
            pass

    return FixedSize(scaling_config)


def _controller_factory() -> Callable[[Placement | None, dict[str, str] | None], type[Any]]:
    import ray
    from ray.train.v2._internal.execution.controller.controller import TrainController
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

    for name in ("_create_placement_group", "_create_workers", "_init_train_context_on_workers"):
        getattr(WorkerGroup, name)

    def make(placement: Placement | None, worker_env: dict[str, str] | None) -> type[Any]:
        class GangWorkers(WorkerGroup):
            def _create_placement_group(self, *args: Any) -> Any:
                handle = super()._create_placement_group(*args)
                if placement is not None:
                    placement.add(handle)
                return handle

            def _create_workers(self, *args: Any, **kwargs: Any) -> Any:
                if placement is not None:
                    placement.on_granted()
                return super()._create_workers(*args, **kwargs)

            @staticmethod
            def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
                # Without a runtime environment the workers may use processes that Ray has already started.
                env = dict(custom_runtime_env)
                return {**env, "env_vars": worker_env} if worker_env else env

            def _init_train_context_on_workers(self, workers: Any, sync_actor: Any, context_args: Any) -> None:
                # Ray passes the controller's own actor handle here, which a thread of the driver does not have;
                # workers use it only to list checkpoints of Ray Train, and gangs report none.
                calls = [
                    worker.actor.init_train_context.remote(
                        train_run_context=self._train_run_context,
                        distributed_context=worker.distributed_context,
                        synchronization_actor=sync_actor,
                        storage_context=self._storage_context,
                        worker_callbacks=self._worker_callbacks_to_propagate,
                        controller_actor=None,
                        **{name: values[index] for name, values in context_args.items()},
                    )
                    for index, worker in enumerate(workers)
                ]
                ray.get(calls)

        class GangController(TrainController):
            worker_group_cls = GangWorkers

        return GangController

    return make

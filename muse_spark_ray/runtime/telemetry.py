"""What the GPUs of a gang did during an epoch, as metrics; None on a machine without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from muse_spark_ray.cost import GpuReading, GpuSampler
from muse_spark_ray.runtime.lease import WorkerContext


class GangTelemetry:
    """Reads this rank's GPU, found by the unique id that torch tells, and joins the readings of all ranks.

    The sampler lives as long as the worker process; a new trial only begins a new reading.

    Args:
        context: The worker.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._is_gpu = context.device.startswith("cuda")
        self._world_size = context.world_size
        if "gpu_sampler" not in context.cache:
            sampler = _sampler(context.device) if self._is_gpu else GpuSampler(cuda_visible_devices="")
            sampler.start()
            context.cache["gpu_sampler"] = sampler
        self._sampler: GpuSampler = context.cache["gpu_sampler"]
        self._sampler.read()

    def metrics(self) -> dict[str, float | None]:
        """Return the gang's GPU metrics since the last call; every rank must call it.

        Returns:
            gpu_utilisation_percent (mean over GPUs), gpu_memory_mb (largest), gpu_power_watts and gpu_energy_joules
            (summed over GPUs).
        """
        return joined(self._of_all_ranks(self._sampler.read()))

    def _of_all_ranks(self, own: GpuReading) -> Sequence[GpuReading]:
        if not self._is_gpu or self._world_size == 1:
            return [own]
        import torch.distributed as dist

        readings: list[GpuReading] = [own] * self._world_size
        dist.all_gather_object(readings, own)
        return readings


def joined(readings: Sequence[GpuReading]) -> dict[str, float | None]:
    """Join the readings of several GPUs; what one of them does not tell is None for all."""
    return {
        "gpu_utilisation_percent": _over([r.utilisation_percent for r in readings], fmean),
        "gpu_memory_mb": _over([r.memory_mb for r in readings], max),
        "gpu_power_watts": _over([r.power_watts for r in readings], sum),
        "gpu_energy_joules": _over([r.energy_joules for r in readings], sum),
    }


def _over(values: Sequence[float | None], join: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    return join(known) if known and len(known) == len(values) else None


def _sampler(device: str) -> GpuSampler:
    import torch

    from muse_spark_ray.training.devices import uuid_of

    return GpuSampler(uuid=uuid_of(torch.device(device)))

"""Numbers beside the metrics while a training runs: how busy the GPU is, what was spent, and what is left."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from muse_spark_ray.cost import GpuSampler
from muse_spark_ray.spec.train import LoggingConfig
from muse_spark_ray.training.devices import uuid_of
from muse_spark_ray.training.distributed import World
from muse_spark_ray.training.records import Metrics

_SECONDS_PER_HOUR = 3600.0


class Gauges:
    """Reads this rank's GPU, and counts the hours of all devices.

    Args:
        world: This rank among its peers; only the first one, which logs, samples its GPU.
        config: The price of a device, if the user says one.
    """

    def __init__(self, world: World, config: LoggingConfig) -> None:
        self._world = world
        self._price = config.usd_per_device_hour
        is_sampled = world.is_first and world.device.type == "cuda"
        self._sampler = GpuSampler(uuid=uuid_of(world.device)) if is_sampled else GpuSampler(cuda_visible_devices="")
        self._sampler.start()

    def numbers(self, history: Sequence[Metrics], *, epochs_left: int) -> Metrics:
        """Return what is logged of the epoch that ended.

        Args:
            history: The metrics of the epochs done.
            epochs_left: Epochs that follow.

        Returns:
            The epoch's metrics; GPU utilisation (percent), memory (MB) and power (watts) of the first rank;
            `training_seconds_left`, `device_hours` of all ranks so far, and at a known price `cost_usd` and
            `cost_usd_left`. Evaluation is not in them.
        """
        seconds = [float(e["samples"]) / s for e in history if (s := e["samples_per_second"]) and e["samples"]]
        left = epochs_left * sum(seconds) / len(seconds) if seconds else None
        spent = self._device_hours(sum(seconds))
        gpu = self._sampler.read()
        return {
            **history[-1],
            "peak_gpu_memory_mb": peak_gpu_memory_mb(self._world.device),
            "gpu_utilisation_percent": gpu.utilisation_percent,
            "gpu_memory_mb": gpu.memory_mb,
            "gpu_power_watts": gpu.power_watts,
            "training_seconds_left": left,
            "device_hours": spent,
            "cost_usd": self._cost(spent),
            "cost_usd_left": None if left is None else self._cost(self._device_hours(left)),
        }

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.close()

    def _device_hours(self, seconds: float) -> float:
        return seconds * self._world.size / _SECONDS_PER_HOUR

    def _cost(self, hours: float) -> float | None:
        return None if self._price is None else hours * self._price


def peak_gpu_memory_mb(device: torch.device) -> float | None:
    """Return the most memory that this process's tensors took, in MB; None without a GPU."""
    return torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None

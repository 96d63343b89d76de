"""What a GPU really did: utilisation, memory, power and energy of the one that the worker uses."""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from muse_spark_ray.cost.devices import SLICES_PER_GPU, gpu_fraction, visible_devices

_log = logging.getLogger(__name__)
_BYTES_PER_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What was measured since the last reading; None for what the device or driver does not tell, never 0 for it.

    Args:
        utilisation_percent: mean share of the time in which the GPU computed anything, 0 to 100.
        memory_mb: largest use of device memory by all processes, MiB.
        power_watts: mean power of the device.
        energy_joules: energy of the device: its own counter where it has one, else power summed over time.
    """

    utilisation_percent: float | None = None
    memory_mb: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None


class GpuSampler:
    """Samples the physical GPU that this process computes on; on a machine without one it is quiet and reads None.

    A slice of a GPU (MIG) is sampled itself: what its driver tells only for the whole GPU is None.

    >>> GpuSampler(cuda_visible_devices="").read()
    GpuReading(utilisation_percent=None, memory_mb=None, power_watts=None, energy_joules=None)

    Args:
        local_index: CUDA's index of the GPU in this process.
        uuid: the GPU's unique id ("GPU-..." or "MIG-..."), such as torch tells it; it wins over the index, whose
            order may be another one in the driver.
        cuda_visible_devices: as in the environment, and read from there if None.
        nvml: the driver's library, the module pynvml if None.
        monotonic: seconds of a clock that never goes back.

    Attributes:
        source: "nvml", or "none" if there is nothing to sample.
        uuid: unique id of the device sampled, "" if there is none.
        device_name: what the driver calls it, None if there is none; see `accelerator_name`.
        fraction: the part of a physical GPU that it is, below 1 for a slice.
    """

    def __init__(
        self,
        *,
        local_index: int = 0,
        uuid: str | None = None,
        cuda_visible_devices: str | None = None,
        nvml: Any = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source, self.uuid, self.fraction = "none", "", 1.0
        self.device_name: str | None = None
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._stop, self._thread = threading.Event(), None
        self._nvml, self._handle = nvml, None
        self._window = _Window()
        shown = os.environ.get("CUDA_VISIBLE_DEVICES") if cuda_visible_devices is None else cuda_visible_devices
        if uuid is None and shown == "":
            return
        is_expected = uuid is not None or bool(shown)
        try:
            self._open(local_index, uuid, shown)
        except Exception as error:  # Whatever the driver does, the training goes on.
            _report(error, is_expected=is_expected)

    def sample(self) -> None:
        """Take one sample; nothing happens where there is no GPU."""
        if self._handle is not None:
            with self._lock:
                self._window.take(_measured(self._nvml, self._handle), self._monotonic())

    def read(self) -> GpuReading:
        """Take one sample and return what was measured since the last reading."""
        if self._handle is None:
            return GpuReading()
        with self._lock:
            self._window.take(_measured(self._nvml, self._handle), self._monotonic())
            reading, self._window = self._window.reading(), self._window.successor()
        return reading

    def start(self, every_seconds: float = 1.0) -> None:
        """Sample in the background from now on until `close`."""
        if self._handle is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(every_seconds,), name="gpu-sampler", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop sampling; readings are None after it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._handle is not None:
            self._handle = None
            _quietly(self._nvml, self._nvml.nvmlShutdown)

    def __enter__(self) -> GpuSampler:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, every_seconds: float) -> None:
        while not self._stop.wait(every_seconds):
            self.sample()

    def _open(self, local_index: int, uuid: str | None, shown: str | None) -> None:
        if self._nvml is None:
            self._nvml = importlib.import_module("pynvml")
        nvml = self._nvml
        nvml.nvmlInit()
        handle = _by_uuid(nvml, uuid) if uuid is not None else _by_index(nvml, local_index, shown)
        if handle is None:
            _quietly(nvml, nvml.nvmlShutdown)
            return
        self.uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        name = _quietly(nvml, nvml.nvmlDeviceGetName, handle)
        self.device_name = None if name is None else _text(name)
        self.fraction = _fraction(nvml, handle, self.device_name or "")
        # Energy counts from here on.
        self._window.before = (self._monotonic(), _measured(nvml, handle))
        self._handle, self.source = handle, "nvml"


@dataclass(frozen=True, slots=True)
class _Sample:
    utilisation_percent: float | None
    memory_mb: float | None
    power_watts: float | None
    counter_joules: float | None


@dataclass(slots=True)
class _Window:
    """Samples since the last reading, and the one before them, from which energy is counted."""

    before: tuple[float, _Sample] | None = None
    samples: list[tuple[float, _Sample]] = field(default_factory=list)

    def take(self, sample: _Sample, now: float) -> None:
        self.samples.append((now, sample))

    def successor(self) -> _Window:
        return _Window(before=self.samples[-1])

    def reading(self) -> GpuReading:
        taken = [sample for _, sample in self.samples]
        return GpuReading(
            _mean([sample.utilisation_percent for sample in taken]),
            max((sample.memory_mb for sample in taken if sample.memory_mb is not None), default=None),
            _mean([sample.power_watts for sample in taken]),
            self._joules(),
        )

    def _joules(self) -> float | None:
        timeline = [self.before, *self.samples] if self.before else self.samples
        first, last = timeline[0][1].counter_joules, timeline[-1][1].counter_joules
        # The counter begins anew when the driver is loaded again.
        if first is not None and last is not None and last >= first:
            return last - first
        powers = [(now, sample.power_watts) for now, sample in timeline if sample.power_watts is not None]
        if len(powers) < 2:
            return None
        pairs = itertools.pairwise(powers)
        return sum((now - then) * (watts + before) / 2 for (then, before), (now, watts) in pairs)


def _measured(nvml: Any, handle: Any) -> _Sample:
    use = _quietly(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _quietly(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    milliwatts = _quietly(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    millijoules = _quietly(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return _Sample(
        None if use is None else float(use.gpu),
        None if memory is None else memory.used / _BYTES_PER_MB,
        None if milliwatts is None else milliwatts / 1000,
        None if millijoules is None else millijoules / 1000,
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_uuid(nvml: Any, uuid: str) -> Any:
    # torch gives the id without its prefix.
    return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


def _by_index(nvml: Any, local_index: int, shown: str | None) -> Any:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    slices = _slices(nvml, handles) if "MIG-" in (shown or "") else {}
    visible = visible_devices(
        shown,
        [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles],
        parents={uuid: index for uuid, (index, _) in slices.items()},
    )
    if local_index >= len(visible):
        return None
    entry = (shown or "").split(",")[local_index].strip() if shown else ""
    return slices[entry][1] if entry in slices else handles[visible[local_index]]


def _slices(nvml: Any, handles: list[Any]) -> dict[str, tuple[int, Any]]:
    """Return {unique id of a slice: (index of its GPU, its handle)}."""
    found = {}
    for index, handle in enumerate(handles):
        for number in range(_quietly(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = _quietly(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if part is not None:
                found[_text(nvml.nvmlDeviceGetUUID(part))] = (index, part)
    return found


def _fraction(nvml: Any, handle: Any, name: str) -> float:
    if not _quietly(nvml, nvml.nvmlDeviceIsMigDeviceHandle, handle):
        return 1.0
    attributes = _quietly(nvml, nvml.nvmlDeviceGetAttributes, handle)
    total = 4 if "A30" in name else SLICES_PER_GPU
    return 1.0 if attributes is None else gpu_fraction(attributes.gpuInstanceSliceCount, total)


def _quietly(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """Return the answer of a query, None if the device does not support it or the driver refuses."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _report(error: Exception, *, is_expected: bool) -> None:
    is_plain = isinstance(error, ImportError) or type(error).__name__.startswith("NVMLError_LibraryNotFound")
    if is_plain and not is_expected:
        return
    _warn_once(
        f"GPU use and energy are not measured: {type(error).__name__}: {error}. "
        "Cost is computed from reserved GPUs and time all the same."
    )


@cache
def _warn_once(message: str) -> None:
    _log.warning(message)

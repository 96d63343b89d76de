from __future__ import annotations

import logging
import types

import pynvml
import pytest

from muse_spark_ray.cost import GpuReading, GpuSampler
from muse_spark_ray.cost import energy as energy_module

MB = 1 << 20


class FakeNvml:
    """A driver with some GPUs and the real library's errors; handles are unique ids."""

    NVMLError = pynvml.NVMLError

    def __init__(self, uuids, *, missing=(), slices=None, init_error=None):
        self.uuids, self.missing, self.slices, self.init_error = list(uuids), set(missing), slices or {}, init_error
        self.use = {uuid: 10 * (number + 1) for number, uuid in enumerate(uuids)}
        self.used_mb = dict.fromkeys(uuids, 100)
        self.milliwatts = dict.fromkeys(uuids, 50_000)
        self.millijoules = dict.fromkeys(uuids, 1_000_000)
        self.is_open = False

    def _answer(self, what, value):
        if what in self.missing:
            raise pynvml.NVMLError_NotSupported
        return value

    def nvmlInit(self):  # noqa: N802
        if self.init_error is not None:
            raise self.init_error
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid not in self.uuids and uuid not in self.slices:
            raise pynvml.NVMLError_NotFound
        return uuid

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return "NVIDIA A100-SXM4-80GB"

    def nvmlDeviceIsMigDeviceHandle(self, handle):  # noqa: N802
        return handle in self.slices

    def nvmlDeviceGetAttributes(self, handle):  # noqa: N802
        return types.SimpleNamespace(gpuInstanceSliceCount=self.slices[handle])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):  # noqa: N802
        return 7 if handle == self.uuids[-1] else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):  # noqa: N802
        if index >= len(self.slices):
            raise pynvml.NVMLError_NotFound
        return list(self.slices)[index]

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return self._answer("use", types.SimpleNamespace(gpu=self.use.get(handle)))

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return self._answer("memory", types.SimpleNamespace(used=self.used_mb.get(handle, 7) * MB))

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self._answer("power", self.milliwatts.get(handle))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self._answer("energy", self.millijoules.get(handle))


FOUR = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


class FakeTime:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture(autouse=True)
def _forget_warnings():
    energy_module._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("visible", "local_index", "uuid"),
    [("1", 0, "GPU-b"), ("3,2", 0, "GPU-d"), ("3,2", 1, "GPU-c"), ("GPU-c", 0, "GPU-c")],
)
def test_samples_the_gpu_that_torch_uses(visible, local_index, uuid):
    """C5: never index 0 by accident."""
    nvml = FakeNvml(FOUR)
    sampler = GpuSampler(local_index=local_index, cuda_visible_devices=visible, nvml=nvml)
    assert (sampler.source, sampler.uuid) == ("nvml", uuid)
    assert sampler.read().utilisation_percent == nvml.use[uuid]


def test_unique_id_wins_over_the_index_and_may_lack_its_prefix():
    sampler = GpuSampler(uuid="c", cuda_visible_devices="0", nvml=FakeNvml(FOUR))
    assert sampler.uuid == "GPU-c"


def test_means_peaks_and_counted_energy_since_the_last_reading():
    nvml, clock = FakeNvml(["GPU-a"]), FakeTime()
    sampler = GpuSampler(cuda_visible_devices="0", nvml=nvml, monotonic=clock)
    nvml.use["GPU-a"], nvml.used_mb["GPU-a"] = 90, 900
    sampler.sample()
    nvml.use["GPU-a"], nvml.used_mb["GPU-a"] = 30, 200
    nvml.millijoules["GPU-a"] += 5_000
    assert sampler.read() == GpuReading(60.0, 900.0, 50.0, 5.0)
    nvml.millijoules["GPU-a"] += 2_000
    assert sampler.read() == GpuReading(30.0, 200.0, 50.0, 2.0)


def test_energy_from_power_where_there_is_no_counter():
    nvml, clock = FakeNvml(["GPU-a"], missing=["energy"]), FakeTime()
    sampler = GpuSampler(cuda_visible_devices="0", nvml=nvml, monotonic=clock)
    clock.seconds, nvml.milliwatts["GPU-a"] = 2.0, 150_000
    assert sampler.read().energy_joules == pytest.approx(2 * 100)
    clock.seconds = 5.0
    assert sampler.read().energy_joules == pytest.approx(3 * 150)


def test_what_is_not_supported_is_none_never_zero():
    """COST-4."""
    nvml = FakeNvml(["GPU-a"], missing=["use", "memory", "power", "energy"])
    sampler = GpuSampler(cuda_visible_devices="0", nvml=nvml)
    assert sampler.source == "nvml"
    assert sampler.read() == GpuReading(None, None, None, None)


def test_slice_is_sampled_itself_and_is_a_part_of_its_gpu():
    """COST-4."""
    nvml = FakeNvml(FOUR, slices={"MIG-x": 3, "MIG-y": 2}, missing=["use", "power", "energy"])
    sampler = GpuSampler(local_index=1, cuda_visible_devices="MIG-x,MIG-y", nvml=nvml)
    assert sampler.uuid == "MIG-y"
    assert sampler.fraction == pytest.approx(2 / 7)
    assert sampler.read() == GpuReading(memory_mb=7.0)


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVMLError_LibraryNotFound,
        pynvml.NVMLError_DriverNotLoaded,
        pynvml.NVMLError_LibRmVersionMismatch,
        pynvml.NVMLError_NoPermission,
    ],
)
def test_a_driver_that_fails_costs_one_warning_and_no_run(error, caplog):
    """COST-5: here the process was given a GPU, so that something is wrong."""
    for _ in range(2):
        with GpuSampler(cuda_visible_devices="0", nvml=FakeNvml(FOUR, init_error=error())) as sampler:
            assert sampler.source == "none"
            assert sampler.read() == GpuReading()
            sampler.sample()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert error.__name__.removeprefix("NVMLError_") in record.message


def test_a_machine_without_gpu_is_quiet(caplog, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plain = FakeNvml([], init_error=pynvml.NVMLError_LibraryNotFound())
    assert GpuSampler(nvml=plain).read() == GpuReading()
    assert GpuSampler(cuda_visible_devices="", nvml=FakeNvml(FOUR)).source == "none"
    assert GpuSampler(nvml=FakeNvml([])).source == "none"
    assert not caplog.records


def test_an_old_library_without_a_query_is_a_warning_not_an_error(caplog):
    nvml = FakeNvml(FOUR)
    nvml.nvmlDeviceGetPowerUsage = None
    assert GpuSampler(cuda_visible_devices="0", nvml=nvml).read() == GpuReading()
    assert len(caplog.records) == 1


def test_close_gives_the_driver_back():
    nvml = FakeNvml(FOUR)
    with GpuSampler(cuda_visible_devices="0", nvml=nvml) as sampler:
        assert nvml.is_open
    assert not nvml.is_open
    assert sampler.read() == GpuReading()
    sampler.close()

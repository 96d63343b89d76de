"""What trials use and cost: intervals, the clock that makes them, prices, totals, GPU readings."""

from __future__ import annotations

from muse_spark_ray.cost.accelerators import accelerator_name
from muse_spark_ray.cost.clock import PhaseClock, Span
from muse_spark_ray.cost.devices import gpu_fraction, visible_devices
from muse_spark_ray.cost.energy import GpuReading, GpuSampler
from muse_spark_ray.cost.interval import Interval, Phase, distinct, restarts, union_seconds
from muse_spark_ray.cost.prices import PriceBook
from muse_spark_ray.cost.totals import Totals, goodput, running_totals, totals

__all__ = [
    "GpuReading",
    "GpuSampler",
    "Interval",
    "Phase",
    "PhaseClock",
    "PriceBook",
    "Span",
    "Totals",
    "accelerator_name",
    "distinct",
    "goodput",
    "gpu_fraction",
    "restarts",
    "running_totals",
    "totals",
    "union_seconds",
    "visible_devices",
]

"""The front of any number of objectives, its hypervolume, and how to pick one row: pure functions on tables."""

from __future__ import annotations

from muse_spark_ray.pareto.bounds import Bound, parse_bound, total_violation
from muse_spark_ray.pareto.front import front
from muse_spark_ray.pareto.hypervolume import hypervolume, hypervolume_trace, reference_point
from muse_spark_ray.pareto.objectives import Direction
from muse_spark_ray.pareto.pick import best_below, best_within, cheapest_above, knee

__all__ = [
    "Bound",
    "Direction",
    "best_below",
    "best_within",
    "cheapest_above",
    "front",
    "hypervolume",
    "hypervolume_trace",
    "knee",
    "parse_bound",
    "reference_point",
    "total_violation",
]

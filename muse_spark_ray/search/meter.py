"""Running sums of what a sweep and each of its trials have used, kept up while the intervals come in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from muse_spark_ray.cost import Interval, Phase, PriceBook

SECONDS_PER_HOUR = 3600.0
_NOT_HELD = (Phase.wait, Phase.idle)


@dataclass(slots=True)
class Use:
    """What was used: USD (None once something without a price is in it), GPU-hours, CPU-core-hours, hours held."""

    cost_usd: float | None = 0.0
    gpu_hours: float = 0.0
    cpu_core_hours: float = 0.0
    hours: float = 0.0

    def add(self, interval: Interval, usd: float | None) -> None:
        """Take in one interval and its price."""
        amount = interval.resource_seconds / SECONDS_PER_HOUR
        self.cost_usd = None if self.cost_usd is None or usd is None else self.cost_usd + usd
        if interval.resource.startswith("gpu"):
            self.gpu_hours += amount
        else:
            self.cpu_core_hours += amount


class Meter:
    """Sums per trial and for the sweep.

    Args:
        prices: What each resource costs.
    """

    def __init__(self, prices: PriceBook) -> None:
        self.price = prices.usd
        self.trials: defaultdict[str, Use] = defaultdict(Use)
        self.sweep = Use()

    def add(self, intervals: Iterable[Interval]) -> None:
        """Take in intervals; those of a trial count for it unless nothing was held or its gang was idle."""
        seen: set[tuple[str, float, float]] = set()
        for interval in intervals:
            usd = self.price(interval)
            self.sweep.add(interval, usd)
            if not interval.trial or interval.phase in _NOT_HELD:
                continue
            use = self.trials[interval.trial]
            use.add(interval, usd)
            span = (interval.trial, interval.start, interval.end)
            if span not in seen:  # several resources held over the same span are one stretch of time
                seen.add(span)
                use.hours += interval.seconds / SECONDS_PER_HOUR

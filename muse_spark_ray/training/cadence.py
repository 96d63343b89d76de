"""When a state is due to be saved: often enough to lose little, seldom enough to cost little."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import CheckpointConfig

logger = logging.getLogger(__name__)

MOST_SHARE = 0.01
"""Most of the training time that saving may take where the interval is chosen here."""

SECONDS_PER_FAILURE = 86_400.0
"""What is assumed of the time between failures before any was seen."""


def best_interval(cost: float, between_failures: float, *, most_lost: float) -> float:
    """Return the seconds between two saves.

    Args:
        cost: Seconds that training waits for a save.
        between_failures: Mean seconds between two failures.
        most_lost: Longest interval, unless saving would then take more than `MOST_SHARE` of the time.

    Source: Young 1974, A First Order Approximation to the Optimum Checkpoint Interval; Daly 2006.
    """
    return max(cost / MOST_SHARE, min(most_lost, math.sqrt(2.0 * cost * between_failures)))


class Cadence:
    """Says whether it is time to save.

    Args:
        config: The user's wishes.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._last = time.monotonic()
        self._cost: float | None = None
        self._says_more_is_lost = True
        self.failures = 0

    def interval(self, trained: float) -> float:
        """Return the seconds after which a state is due within an epoch, infinite if it never is.

        Args:
            trained: Seconds of training so far, from which, with the failures, their rate is estimated.
        """
        c = self._config
        if isinstance(c.save_freq, int | float):
            return float(c.save_freq)
        if c.save_freq == "last" or c.interval is None:
            return math.inf
        if c.interval != "auto":
            return c.interval
        if self._cost is None:
            return c.max_lost_seconds
        between_failures = (SECONDS_PER_FAILURE + trained) / (1 + self.failures)
        chosen = best_interval(self._cost, between_failures, most_lost=c.max_lost_seconds)
        if chosen > c.max_lost_seconds and self._says_more_is_lost:
            self._says_more_is_lost = False
            logger.warning(
                "training waits %.2f s for a checkpoint: one every %.0f s keeps that within %.0f %% of the time, but more "
                "than checkpoint.max_lost_seconds (%.0f) can be lost. Set checkpoint.interval to a number to save more often.",
                self._cost,
                chosen,
                100 * MOST_SHARE,
                c.max_lost_seconds,
            )
        return chosen

    def is_due(self, trained: float) -> bool:
        """Say whether it is time to save within an epoch."""
        return time.monotonic() - self._last >= self.interval(trained)

    def is_due_at_border(self, trained: float, *, is_last: bool) -> bool:
        """Say whether it is time to save at the end of an epoch."""
        return is_last or self._config.save_freq == "epoch" or self.is_due(trained)

    def saved(self, cost: float) -> None:
        """Note a save for which training waited `cost` seconds."""
        self._last = time.monotonic()
        # The first of them creates files and threads; it counts like any other, and fades.
        self._cost = cost if self._cost is None else 0.5 * (self._cost + cost)

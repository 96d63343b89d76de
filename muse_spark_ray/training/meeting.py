"""How ranks agree between two windows on what to do next, without asking each other at every one."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum

import torch
import torch.distributed as dist

from muse_spark_ray.training.distributed import World

_MOST_GROWTH = 4


class Wish(IntEnum):
    """What a rank wants to be done; the largest of all ranks is."""

    NOTHING = 0
    SAVE = 1
    LEAVE = 2


class Meeting:
    """Asks all ranks at the same windows, about every `seconds`; a single process asks itself by the clock.

    All ranks must pass the same windows. The first one's pace says how many windows lie between two meetings.

    Args:
        world: This rank among its peers.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ahead = self._left = 1
        self._last = time.monotonic()

    def pass_window(self, wish: Callable[[], Wish], *, seconds: float) -> Wish:
        """Note a window; return what all ranks are to do, `NOTHING` where they do not meet.

        Args:
            wish: What this rank wants, asked only when they meet.
            seconds: About how long apart meetings are.
        """
        if self._world.size == 1:
            now = time.monotonic()
            if now - self._last < seconds:
                return Wish.NOTHING
            self._last = now
            return wish()
        self._left -= 1
        if self._left > 0:
            return Wish.NOTHING
        return self.meet(wish(), seconds=seconds)

    def meet(self, wish: Wish, *, seconds: float = 1.0) -> Wish:
        """Ask all ranks now; every rank must call it."""
        if self._world.size == 1:
            return wish
        values = torch.tensor([int(wish), self._pace(seconds)], device=self._world.device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        self._ahead = self._left = int(values[1])
        return Wish(int(values[0]))

    def _pace(self, seconds: float) -> int:
        """Return, on the first rank, how many windows the next meeting should be away."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        if not self._world.is_first:
            return 0
        wanted = round(self._ahead * seconds / max(passed, 1e-6))
        return max(1, min(wanted, _MOST_GROWTH * self._ahead))

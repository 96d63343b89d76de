"""Going on with another number of ranks: the global batch is kept, or the learning rate follows it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from muse_spark_ray.training.loop import Run

logger = logging.getLogger(__name__)


def follow_world(run: Run, before: Mapping[str, Any], *, rule: str) -> dict[str, Any] | None:
    """Adapt a training to the ranks that there are now.

    Args:
        run: The training, put back into its saved state.
        before: `size`, the ranks that saved it; `window`, the samples in an update then (of the first epoch, where they
            grow), None if not known; `keeps_window`, whether that was an earlier world's already.
        rule: `keep_batch`: as many samples in an update as before, by other micro-batches or accumulation; `scale_lr`:
            as many as the config says for these ranks, and the learning rate changes in proportion.

    Returns:
        `from`, `to`, `rule`, `window` (samples in an update now) and `lr_factor`; None if nothing changed.
    """
    size, window = run.world.size, before["window"]
    if window is None or (before["size"] == size and not before["keeps_window"]):
        return None
    if rule == "keep_batch":
        run.source.keep_window(window)
        run.keeps_window = True
    now = run.source.window_size(0) or window
    factor = now / window
    if factor != 1.0:
        _stretch(run, factor)
    if before["size"] == size and factor == 1.0:
        return None
    is_scaled = factor != 1.0 and not run.schedule.follows_batch
    if is_scaled:
        run.schedule.rescale(factor)
    logger.warning(
        "%d rank(s) go on with what %d had begun (%s): %d samples in an update, as %s; learning rate x %.4g.",
        size,
        before["size"],
        rule,
        now,
        "before" if now == window else f"against {window} before",
        factor if is_scaled else 1.0,
    )
    return {
        "from": before["size"],
        "to": size,
        "rule": rule,
        "window": now,
        "lr_factor": factor if is_scaled else 1.0,
    }


def _stretch(run: Run, factor: float) -> None:
    """Count the windows of the epoch that is under way in windows of the present size."""
    if run.progress is not None:
        run.progress.position.windows = round(run.progress.position.windows / factor)

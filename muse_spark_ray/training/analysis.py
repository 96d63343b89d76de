"""What a finished training can say of its data: the hardest samples, and where to set decision thresholds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from muse_spark_ray.training.distributed import World

Goal = Literal["f1", "youden", "utility"]


def hardest_samples(
    reviewed: Iterable[tuple[Any, Any, Tensor | None]], world: World, *, count: int
) -> list[dict[str, Any]]:
    """Find the training samples with the largest loss: wrong labels, outliers, rare kinds.

    Args:
        reviewed: (batch, outputs, losses) as a review of the training samples yields them.
        world: This rank among its peers; each brings its share.
        count: Samples to return.

    Returns:
        Largest first: `index` in the training set, `loss`, and for classes `target`, `predicted`, and `probability` of
        the target. The same on every rank.
    """
    found: list[dict[str, Any]] = []
    for batch, outputs, losses in reviewed:
        if losses is None or batch.indices is None:
            continue
        top = torch.nan_to_num(losses, nan=torch.inf).topk(min(count, len(losses))).indices.tolist()
        found += [_described(batch, outputs, losses, row) for row in top]
        found = _largest(found, count)
    if world.size > 1:
        gathered: list[Any] = [None] * world.size
        dist.all_gather_object(gathered, found)
        found = _largest([row for part in gathered for row in part], count)
    return found


def _largest(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (-row["loss"], row["index"]))[:count]


def _described(batch: Any, outputs: Any, losses: Tensor, row: int) -> dict[str, Any]:
    told: dict[str, Any] = {"index": int(batch.indices[row]), "loss": float(losses[row])}
    target = batch.targets[row]
    if isinstance(outputs, Tensor) and outputs.ndim == 2 and target.ndim == 0 and not target.is_floating_point():
        probabilities = outputs[row].float().softmax(0)
        told |= {
            "target": int(target),
            "predicted": int(probabilities.argmax()),
            "probability": float(probabilities[int(target)]),
        }
    return told


def best_thresholds(
    probabilities: np.ndarray[Any, Any],
    targets: np.ndarray[Any, Any],
    *,
    goal: Goal,
    utility: list[list[float]] | None = None,
) -> list[dict[str, float]]:
    """Choose for each class, against the rest, the probability from which it should be answered.

    Args:
        probabilities: [N, C].
        targets: [N] class ids.
        goal: `f1`; `youden`: recall minus false alarm rate; `utility`: mean of a 2 x 2 matrix [no, yes].
        utility: For that goal: row 0 for samples of other classes, row 1 for the class; column 1 for the answer yes.

    Returns:
        One dictionary a class: `class`, `threshold`, `value` of the goal there and `at_half` at 0.5. A class that does
        not occur is left out.
    """
    chosen = []
    for label in range(probabilities.shape[1]):
        p, y = probabilities[:, label], targets == label
        if not y.any():
            continue
        candidates = np.append(np.unique(p), 0.5)
        yes = p[None] >= candidates[:, None] if len(candidates) * len(p) <= 1 << 24 else None
        values = np.array(
            [_goal(p >= c if yes is None else yes[i], y, goal, utility) for i, c in enumerate(candidates)]
        )
        best = int(np.flatnonzero(values == values.max())[-1]) if goal != "f1" else int(values.argmax())
        chosen.append(
            {
                "class": label,
                "threshold": float(candidates[best]),
                "value": float(values[best]),
                "at_half": float(values[-1]),
            }
        )
    return chosen


def _goal(yes: np.ndarray[Any, Any], y: np.ndarray[Any, Any], goal: Goal, utility: list[list[float]] | None) -> float:
    hit, false = int((yes & y).sum()), int((yes & ~y).sum())
    miss, right = int((~yes & y).sum()), int((~yes & ~y).sum())
    if goal == "f1":
        return 2 * hit / max(2 * hit + false + miss, 1)
    if goal == "youden":
        return hit / max(hit + miss, 1) - false / max(false + right, 1)
    matrix = utility or [[0.0, -1.0], [-1.0, 1.0]]
    return (right * matrix[0][0] + false * matrix[0][1] + miss * matrix[1][0] + hit * matrix[1][1]) / len(y)

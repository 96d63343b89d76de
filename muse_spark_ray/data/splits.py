"""Seeded splits into training and validation rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from muse_spark_ray.errors import DataError

if TYPE_CHECKING:
    from muse_spark_ray.data.config import DataConfig

Rows = np.ndarray[Any, np.dtype[np.int64]]
Values = np.ndarray[Any, Any]


def split_rows(targets: Values, config: DataConfig, *, fixed: int | None, keys: Values | None) -> tuple[Rows, Rows]:
    """Split rows as a config says.

    Args:
        targets: [N] class ids or values.
        config: Kind, share or folds, seed.
        fixed: The first so many rows are for training where the source has a split of its own.
        keys: [N] groups or times.

    Returns:
        (training rows, held-out rows), disjoint, neither empty. Together they are all rows, except in a nested
        cross-validation, where the outer fold is in neither.

    Raises:
        DataError: If there are fewer groups or rows than folds.
    """
    if fixed is not None and config.folds is None:
        return np.arange(fixed), np.arange(fixed, len(targets))
    stratified = config.split == "stratified" or (config.split == "auto" and np.issubdtype(targets.dtype, np.integer))
    if config.folds is None or config.fold is None:
        if config.split == "time" and keys is not None:
            return time_split(keys, fraction=config.validation_fraction)
        if config.split == "group" and keys is not None:
            return group_split(keys, fraction=config.validation_fraction, seed=config.split_seed)
        return random_split(targets, fraction=config.validation_fraction, seed=config.split_seed, stratified=stratified)
    numbers = fold_numbers(targets, config, keys=keys, stratified=stratified)
    rest, held_out = np.flatnonzero(numbers != config.fold), np.flatnonzero(numbers == config.fold)
    if config.inner_fold is None:
        return rest, held_out
    inner = fold_numbers(
        targets[rest], config, keys=None if keys is None else keys[rest], stratified=stratified, level=1
    )
    return rest[inner != config.inner_fold], rest[inner == config.inner_fold]


def random_split(targets: Values, *, fraction: float, seed: int, stratified: bool) -> tuple[Rows, Rows]:
    """Split rows at random, by class where asked.

    Args:
        targets: [N] class ids, or any values if not `stratified`.
        fraction: Share of the rows that are held out, in (0, 1).
        seed: Seed of the split.
        stratified: Keep the share of each class in both parts.

    Returns:
        (training rows, held-out rows), both shuffled, disjoint, together all rows, neither empty.
    """
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(targets))
    if stratified:
        # Sorting the shuffled rows by class and taking each k-th one holds out every class in proportion.
        by_class = shuffled[np.argsort(targets[shuffled], kind="stable")]
        marks = np.floor((np.arange(len(targets)) + 1) * fraction) > np.floor(np.arange(len(targets)) * fraction)
        held_out = by_class[marks] if marks.any() else by_class[:1]
    else:
        held_out = shuffled[: max(1, round(fraction * len(targets)))]
    held_out = held_out[: len(targets) - 1]
    is_held_out = np.zeros(len(targets), dtype=bool)
    is_held_out[held_out] = True
    return shuffled[~is_held_out[shuffled]], shuffled[is_held_out[shuffled]]


def group_split(groups: Values, *, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Hold out whole groups, drawn at random until about `fraction` of the rows are held out.

    Raises:
        DataError: If there is only one group.
    """
    names, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise DataError(f"split: group, but all {len(groups)} rows are of one group, {names[0]!r}; 2 are needed.")
    order = np.random.default_rng(seed).permutation(len(names))
    count = int(np.searchsorted(np.cumsum(sizes[order]), fraction * len(groups))) + 1
    held_out = np.isin(number, order[: min(count, len(names) - 1)])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def time_split(times: Values, *, fraction: float) -> tuple[Rows, Rows]:
    """Hold out the latest rows; those of one time stay together.

    Raises:
        DataError: If all rows are of one time.
    """
    order = np.argsort(times, kind="stable")
    border = times[order[min(len(times) - 1, round((1.0 - fraction) * len(times)))]]
    is_late = times >= border if (times < border).any() else times > border
    if not is_late.any():
        raise DataError(f"split: time, but all {len(times)} rows are of one time, {border!r}.")
    return order[~is_late[order]], order[is_late[order]]


def fold_numbers(targets: Values, config: DataConfig, *, keys: Values | None, stratified: bool, level: int = 0) -> Rows:
    """Return the fold of each row, from 0: folds of nearly equal size, by class or by group where asked; time in order.

    Raises:
        DataError: If there are fewer rows or groups than folds.
    """
    folds, generator = int(config.folds or 0), np.random.default_rng([config.split_seed, level])
    units = len(targets) if config.split != "group" or keys is None else len(np.unique(keys))
    if units < folds:
        raise DataError(f"task.data.folds is {folds}, but there are only {units} rows or groups to deal out.")
    if config.split == "time" and keys is not None:
        rank = np.empty(len(keys), dtype=np.int64)
        rank[np.argsort(keys, kind="stable")] = np.arange(len(keys))
        return rank * folds // len(keys)
    if config.split == "group" and keys is not None:
        names, number, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        return _deal_out(sizes, generator.permutation(len(names)), folds)[number]
    shuffled = generator.permutation(len(targets))
    ordered = shuffled[np.argsort(targets[shuffled], kind="stable")] if stratified else shuffled
    numbers = np.empty(len(targets), dtype=np.int64)
    numbers[ordered] = np.arange(len(targets)) % folds
    return numbers


def _deal_out(sizes: Values, order: Rows, folds: int) -> Rows:
    """Give each group, the largest first, to the fold that has the fewest rows."""
    rows, fold = np.zeros(folds, dtype=np.int64), np.empty(len(sizes), dtype=np.int64)
    for group in sorted(order, key=lambda group: -sizes[group]):
        fold[group] = int(rows.argmin())
        rows[fold[group]] += sizes[group]
    return fold

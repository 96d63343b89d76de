"""The front as columns of text and sort keys: one source for the terminal table and the HTML table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from muse_spark_ray.pareto import Direction, knee
from muse_spark_ray.report.formats import axis_title, clean, quantity, setting
from muse_spark_ray.report.settings import Config, flatten, short_names

EXCLUDED_WORDS = {"nan": "with NaN", "inf": "infinite"}


@dataclass(frozen=True)
class Column:
    """One column of a table: what is shown, what it sorts by, and whether it may be left out when space is short."""

    title: str
    cells: tuple[str, ...]
    sort_keys: tuple[Any, ...]
    is_number: bool = True
    is_optional: bool = False


def ordered(front: pd.DataFrame, objectives: Mapping[str, Direction]) -> pd.DataFrame:
    """Return the front ordered by its first minimised objective, else from the best of the first one down."""
    minimised = [name for name, direction in objectives.items() if direction == "min"]
    by = minimised[0] if minimised else next(iter(objectives))
    return front.sort_values(by, ascending=bool(minimised), kind="stable")


def front_columns(
    front: pd.DataFrame, objectives: Mapping[str, Direction], *, differing: list[str], configs: Mapping[str, Config]
) -> list[Column]:
    """Return the columns of the front table, the settings that differ last.

    Args:
        front: Non-dominated rows [trial, epoch, objectives..., hours, tie].
        objectives: Name to `min` or `max`.
        differing: Dotted paths of the settings to show.
        configs: Trial name to its nested config.
    """
    rows = ordered(front, objectives)
    knee_label = knee(front, objectives) if len(front) else None
    columns = [
        _text("trial", [clean(str(trial)) for trial in rows["trial"]]),
        _numbers("stop at", list(rows["epoch"]), [f"{epoch:g}" for epoch in rows["epoch"]]),
    ]
    shown = [*objectives, *(["hours"] if "hours" in rows and "hours" not in objectives else [])]
    columns += [
        _numbers(column_title(name), list(rows[name]), [quantity(name, v) for v in rows[name]]) for name in shown
    ]
    columns.append(_text("note", _notes(rows, knee_label)))
    flats = {str(trial): flatten(configs.get(str(trial), {})) for trial in rows["trial"]}
    for path, short in short_names(differing).items():
        columns.append(_setting_column(short, [flats[str(trial)].get(path) for trial in rows["trial"]]))
    return columns


def candidates(points: pd.DataFrame, front: pd.DataFrame) -> pd.DataFrame:
    """Return the points that took part: all but those which the front names as excluded."""
    labels = [label for rows in front.attrs.get("excluded_rows", {}).values() for label in rows]
    return points.drop(index=labels, errors="ignore")


def column_title(name: str) -> str:
    """Return the title of a column whose cells carry their unit: `cost_usd` is `cost`."""
    return {"hours": "time", "cost_usd": "cost"}.get(name, axis_title(name))


def _notes(rows: pd.DataFrame, knee_label: Any) -> list[str]:
    ties = rows["tie"] if "tie" in rows else pd.Series(False, index=rows.index)
    words = [("knee" if label == knee_label else "", "tie" if ties[label] else "") for label in rows.index]
    return [", ".join(word for word in pair if word) for pair in words]


def _numbers(title: str, values: list[Any], cells: list[str]) -> Column:
    return Column(title, tuple(cells), tuple(float(value) for value in values))


def _text(title: str, cells: list[str]) -> Column:
    return Column(title, tuple(cells), tuple(cells), is_number=False)


def _setting_column(title: str, values: list[Any]) -> Column:
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    cells = tuple(setting(value) for value in values)
    return Column(title, cells, tuple(values) if is_number else cells, is_number=is_number, is_optional=True)


def front_summary(front: pd.DataFrame, *, n_dominated: int | None = None, hypervolume: float | None = None) -> str:
    """Return one line: points on the front, dominated, excluded by reason (only those that occur), hypervolume.

    Args:
        front: Front with `.attrs["excluded"]`, reason to count.
        n_dominated: Candidate rows that are not on it.
        hypervolume: Hypervolume of the front in the units of its reference point.
    """
    excluded = {reason: count for reason, count in front.attrs.get("excluded", {}).items() if count}
    parts = [f"{len(front):,} on the front"]
    if n_dominated is not None:
        parts.append(f"{n_dominated:,} dominated")
    parts += [f"{count:,} {EXCLUDED_WORDS.get(reason, clean(reason))} (excluded)" for reason, count in excluded.items()]
    if hypervolume is not None:
        parts.append(f"hypervolume {hypervolume:.4g}")
    return " · ".join(parts)

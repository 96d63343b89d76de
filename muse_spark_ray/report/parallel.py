"""Parallel coordinates of settings and objectives.

Drawn from plain lines, because plotly's own parallel coordinates compile WebGL programs from text, which the
report's Content-Security-Policy forbids and which machines without WebGL cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from muse_spark_ray.pareto import Direction
from muse_spark_ray.report import theme
from muse_spark_ray.report.formats import axis_title, quantity, setting, shortened
from muse_spark_ray.report.settings import Config, flatten, short_names

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_LINES = 300
MAX_AXES = 12
_TICKS = 5


@dataclass(frozen=True)
class Scale:
    """One vertical axis: where each value sits between 0 and 1, and its tick marks."""

    title: str
    places: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]


def parallel_plot(
    points: pd.DataFrame,
    front: pd.DataFrame,
    objectives: Mapping[str, Direction],
    *,
    differing: Sequence[str],
    configs: Mapping[str, Config],
) -> go.Figure:
    """Draw each trial as one line over the settings that differ and the objectives, coloured by the first objective.

    A trial is shown at its point on the front, else at its best epoch; a click on the legend hides the others.

    Args:
        points: Rows [trial, epoch, objectives...].
        front: The non-dominated of them.
        objectives: Name to `min` or `max`.
        differing: Dotted paths of the settings that differ.
        configs: Trial name to its nested config.
    """
    import plotly.graph_objects as go

    title = "Settings and what they led to"
    rows = _one_row_per_trial(points, front, objectives)
    if rows.empty or not differing:
        reason = "No setting differs between trials." if len(rows) else "No trial has reported a finite point yet."
        return theme.empty(go.Figure(), title=title, reason=reason)
    scales = _scales(rows, objectives, differing, configs)
    figure = go.Figure()
    _add_lines(figure, rows, scales, next(iter(objectives)))
    _add_axes(figure, scales)
    caption = f"{len(rows):,} trials, one line each; bold: on the front"
    theme.styled(figure, title=title, caption=caption)
    figure.update_xaxes(visible=False, range=[-0.3, len(scales) - 0.5]).update_yaxes(visible=False, range=[-0.06, 1.14])
    return figure.update_layout(margin={"l": 20, "r": 20, "b": 20})


def _one_row_per_trial(points: pd.DataFrame, front: pd.DataFrame, objectives: Mapping[str, Direction]) -> pd.DataFrame:
    first, direction = next(iter(objectives.items()))
    rows = points[points[list(objectives)].astype(float).map(math.isfinite).all(axis=1)]
    rows = rows.assign(is_front=rows.index.isin(front.index))
    rows = rows.sort_values(["is_front", first], ascending=[False, direction == "min"], kind="stable")
    return rows.drop_duplicates("trial").head(MAX_LINES)


def _scales(
    rows: pd.DataFrame, objectives: Mapping[str, Direction], differing: Sequence[str], configs: Mapping[str, Config]
) -> list[Scale]:
    flats = [flatten(configs.get(str(trial), {})) for trial in rows["trial"]]
    room = max(1, MAX_AXES - len(objectives))
    names = short_names(list(differing)[:room])
    scales = [scale(short, [flat.get(path) for flat in flats]) for path, short in names.items()]
    return scales + [
        replace(scale(name, [float(value) for value in rows[name]]), title=axis_title(name)) for name in objectives
    ]


def scale(name: str, values: Sequence[Any]) -> Scale:
    """Place values on an axis: numbers by size (log over a decade or more), words in order, absent ones below.

    Args:
        name: Setting or objective.
        values: One value per line; None where the trial has no such setting.
    """
    known = [value for value in values if value is not None]
    if not known or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return _word_scale(name, [setting(value) for value in values])
    low, high = min(known), max(known)
    is_log = low > 0 and high > 10 * low
    base = 0.12 if len(known) < len(values) else 0.0
    spread = math.log(high / low) if is_log else high - low

    def place(value: float) -> float:
        share = 0.5 if not spread else (math.log(value / low) if is_log else value - low) / spread
        return base + share * (1 - base)

    ticks = [(place(tick), _tick(name, tick)) for tick in _tick_values(known, is_log=is_log)]
    absent = [(0.0, "none")] if base else []
    return Scale(name, tuple(0.0 if value is None else place(value) for value in values), (*absent, *ticks))


def _tick(name: str, value: float) -> str:
    text = quantity(name, value)
    return text if isinstance(value, int) or text.startswith("$") or "acc" in name else f"{value:.2g}"


def _tick_values(known: Sequence[float], *, is_log: bool) -> list[float]:
    """Return at most five values evenly spread over the axis; whole numbers that occur where all are whole."""
    distinct, low, high = sorted(set(known)), min(known), max(known)
    if len(distinct) <= _TICKS:
        return distinct
    shares = [number / (_TICKS - 1) for number in range(_TICKS)]
    wanted = [low * (high / low) ** share if is_log else low + (high - low) * share for share in shares]
    if not all(isinstance(value, int) for value in known):
        return wanted
    return sorted({min(distinct, key=lambda value: abs(value - want)) for want in wanted})


def _word_scale(name: str, words: list[str]) -> Scale:
    order = sorted(set(words))
    places = {word: 0.5 if len(order) == 1 else number / (len(order) - 1) for number, word in enumerate(order)}
    ticks = tuple((places[word], shortened(word, width=14)) for word in order)
    return Scale(name, tuple(places[word] for word in words), ticks)


def _add_lines(figure: go.Figure, rows: pd.DataFrame, scales: list[Scale], colour_by: str) -> None:
    from plotly.colors import sample_colorscale

    values = rows[colour_by].astype(float)
    span = values.max() - values.min()
    colours = sample_colorscale(theme.SCALE, list((values - values.min()) / span if span else values * 0 + 0.5))
    named: set[str] = set()
    drawn = list(zip(range(len(rows)), rows["trial"], rows["is_front"], colours, strict=True))
    for number, trial, is_front, colour in reversed(drawn):
        group = "on the front" if is_front else "other trials"
        name, value = theme.label(shortened(str(trial))), quantity(colour_by, float(values.iloc[number]))
        text = f"<b>trial {name}</b>, {theme.label(axis_title(colour_by))} {value}"
        figure.add_scatter(
            x=list(range(len(scales))),
            y=[one.places[number] for one in scales],
            mode="lines",
            line={"color": colour, "width": 3 if is_front else 1.2, "shape": "spline", "smoothing": 0.5},
            opacity=1.0 if is_front else 0.45,
            name=group,
            legendgroup=group,
            showlegend=group not in named,
            hovertemplate=f"{text}<extra></extra>",
        )
        named.add(group)
    bar = {"title": {"text": theme.label(axis_title(colour_by))}, "thickness": 14}
    marker = {"color": [values.min(), values.max()], "colorscale": theme.SCALE, "showscale": True, "colorbar": bar}
    figure.add_scatter(x=[None, None], y=[None, None], mode="markers", marker=marker, showlegend=False)


def _add_axes(figure: go.Figure, scales: list[Scale]) -> None:
    for number, one in enumerate(scales):
        figure.add_shape(type="line", x0=number, x1=number, y0=0, y1=1, line={"color": theme.MUTED, "width": 1})
        title = {
            "text": f"<b>{theme.label(shortened(one.title, width=18))}</b>",
            # Titles of many axes are wider than their distance; every other one stands a line higher.
            "y": 1.17 if len(scales) > 7 and number % 2 else 1.1,
            "xanchor": "center",
            "font": {"size": 12},
        }
        figure.add_annotation(x=number, showarrow=False, **title)
        for place, text in one.ticks:
            note = {"text": theme.label(text), "xanchor": "right", "xshift": -5, "font": {"size": 11}}
            figure.add_annotation(x=number, y=place, showarrow=False, bgcolor="rgba(255,255,255,0.75)", **note)

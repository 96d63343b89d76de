"""The plots of a sweep as plotly figures, from plain tables; plotly loads when a plot is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from muse_spark_ray.pareto import Direction, knee
from muse_spark_ray.report import theme
from muse_spark_ray.report.formats import axis_title, duration, money, quantity, setting, shortened
from muse_spark_ray.report.rows import candidates, ordered
from muse_spark_ray.report.settings import Config, flatten, short_names

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_DOTS = 5000
MAX_CURVES = 200
_HOVER_SETTINGS = 10
_ZOOM_MARGIN = 0.5


def front_plot(
    points: pd.DataFrame,
    front: pd.DataFrame,
    objectives: Mapping[str, Direction],
    *,
    differing: Sequence[str] = (),
    configs: Mapping[str, Config] | None = None,
) -> go.Figure:
    """Draw all (trial, epoch) points in grey and the front over them, its knee named.

    Of two objectives the first minimised one is on the x axis; with three or more the first two are the axes and
    the third is the colour of the front; with one, the x axis is the cost or the epoch.

    Args:
        points: Rows [trial, epoch, objectives...].
        front: The non-dominated of them.
        objectives: Name to `min` or `max`.
        differing: Dotted paths of the settings that the hover text shows.
        configs: Trial name to its nested config.
    """
    import plotly.graph_objects as go

    title = "Front: " + " against ".join(theme.label(axis_title(name)) for name in list(objectives)[:2])
    x, y = _axes(points, objectives)
    seen = _finite(candidates(points, front), [x, y])
    if seen.empty:
        return theme.empty(go.Figure(), title=title, reason="No trial has reported a finite point yet.")
    dominated = seen[~seen.index.isin(front.index)]
    dots, rows = _thinned(dominated, MAX_DOTS), _finite(ordered(front, objectives), [x, y]).sort_values(x)
    hover = _Hover(objectives, differing, configs or {})
    figure = go.Figure()
    figure.add_scatter(
        name="path of each trial", **_joined(dots, x, y), **_THIN_LINE, visible="legendonly", hoverinfo="skip"
    )
    figure.add_scatter(name="dominated", x=dots[x], y=dots[y], text=hover.of(dots), **_GREY_DOTS)
    figure.add_scatter(name="front", x=rows[x], y=rows[y], text=hover.of(rows), **_front_look(rows, objectives, x))
    _name_knee(figure, rows, objectives, x, y)
    figure.update_layout(xaxis=theme.axis(x, seen[x], may_be_log=objectives.get(x) != "max"))
    figure.update_layout(yaxis=theme.axis(y, seen[y], may_be_log=objectives.get(y) == "min"))
    n_outside = _zoom_on_front(figure, seen[y], rows[y], objectives.get(y))
    figure.update_layout(meta={"hint": "double-click shows all"} if n_outside else None)
    thinned = f" ({len(dots):,} of {len(dominated):,} dominated drawn)" if len(dots) < len(dominated) else ""
    outside = f"; {n_outside:,} outside the frame" if n_outside else ""
    caption = (
        f"{len(seen):,} points of {seen['trial'].nunique():,} trials, {len(rows):,} on the front{thinned}{outside}"
    )
    return theme.styled(figure, title=title, caption=caption)


_THIN_LINE: dict[str, Any] = {"mode": "lines", "line": {"color": theme.GREY, "width": 1}}
_GREY_DOTS: dict[str, Any] = {
    "mode": "markers",
    "marker": {"color": theme.GREY, "size": 6, "opacity": 0.55},
    "hovertemplate": "%{text}<extra></extra>",
}


def _axes(points: pd.DataFrame, objectives: Mapping[str, Direction]) -> tuple[str, str]:
    names = list(objectives)[:2]
    if len(names) == 1:
        others = [name for name in ("cost_usd", "epoch") if name in points and name != names[0]]
        return others[0], names[0]
    x = next((name for name in names if objectives[name] == "min"), names[0])
    return x, next(name for name in names if name != x)


def _finite(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    kept: pd.DataFrame = table.loc[np.isfinite(table[columns].to_numpy(dtype=float)).all(axis=1)]
    return kept


def _thinned(table: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Return at most `limit` rows, evenly spread over the table."""
    if len(table) <= limit:
        return table
    return table.iloc[np.linspace(0, len(table) - 1, limit).round().astype(int)]


def _joined(rows: pd.DataFrame, x: str, y: str) -> dict[str, list[float | None]]:
    """Return x and y of one line per trial, drawn as one trace with gaps."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for _, trial in rows.sort_values("epoch").groupby("trial", sort=False):
        xs += [*trial[x].astype(float), None]
        ys += [*trial[y].astype(float), None]
    return {"x": xs, "y": ys}


def _zoom_on_front(figure: go.Figure, values: pd.Series[Any], front: pd.Series[Any], direction: str | None) -> int:
    """Start the y axis where the front can be read if bad points would squeeze it; return how many are outside."""
    span = front.max() - front.min()
    worst = front.min() if direction == "max" else front.max()
    margin = max(span, 0.02 * abs(worst)) * _ZOOM_MARGIN
    is_outside = values < worst - margin if direction == "max" else values > worst + margin
    if figure.layout.yaxis.type == "log" or not is_outside.any():
        return 0
    low, high = front.min() - margin, front.max() + margin
    edge = margin * 0.25
    figure.update_yaxes(range=[low, high - margin + edge] if direction == "max" else [low + margin - edge, high])
    return int(is_outside.sum())


def _front_look(rows: pd.DataFrame, objectives: Mapping[str, Direction], x: str) -> dict[str, Any]:
    """A staircase for two objectives; with three or more its projection is no staircase, so only markers."""
    marker: dict[str, Any] = {"color": theme.BLUE, "size": 9, "line": {"color": "white", "width": 1}}
    look: dict[str, Any] = {"mode": "markers", "marker": marker, "hovertemplate": "%{text}<extra></extra>"}
    names = list(objectives)
    if len(names) > 2:
        bar = {"title": {"text": theme.label(axis_title(names[2]))}, "thickness": 14}
        marker |= {"color": rows[names[2]], "colorscale": theme.SCALE, "showscale": True, "colorbar": bar, "size": 11}
    if len(names) == 2:
        shape = "hv" if objectives[x] == "min" else "vh"
        look |= {"mode": "lines+markers", "line": {"color": theme.BLUE, "width": 2.5, "shape": shape}}
    return look


def _name_knee(figure: go.Figure, rows: pd.DataFrame, objectives: Mapping[str, Direction], x: str, y: str) -> None:
    found = knee(rows, objectives) if len(rows) else None
    if found is None:
        return
    row = rows[rows.index == found].iloc[0]
    text = f"knee: {quantity(y, float(row[y]))} at {quantity(x, float(row[x]))}"
    marker = {"color": theme.VERMILLION, "size": 15, "symbol": "diamond-open", "line": {"width": 2.5}}
    note = {"text": ["<b>knee</b>"], "textposition": "top left", "textfont": {"color": theme.VERMILLION, "size": 13}}
    look = {"mode": "markers+text", "marker": marker, "hoverinfo": "skip"}
    figure.add_scatter(name=text, x=[row[x]], y=[row[y]], **look, **note)


class _Hover:
    """Writes the hover text of points: trial, epoch, objectives and the settings that differ."""

    def __init__(
        self, objectives: Mapping[str, Direction], differing: Sequence[str], configs: Mapping[str, Config]
    ) -> None:
        self._objectives = list(objectives)
        self._names = short_names(list(differing)[:_HOVER_SETTINGS])
        self._flats = {trial: flatten(config) for trial, config in configs.items()}

    def of(self, rows: pd.DataFrame) -> list[str]:
        columns = rows[["trial", "epoch", *self._objectives]].itertuples(index=False, name=None)
        return [self._one(str(trial), epoch, values) for trial, epoch, *values in columns]

    def _one(self, trial: str, epoch: float, values: list[Any]) -> str:
        lines = [f"<b>trial {theme.label(trial)}</b>, epoch {epoch:g}"]
        pairs = zip(self._objectives, values, strict=True)
        lines += [f"{theme.label(axis_title(name))}: {quantity(name, float(value))}" for name, value in pairs]
        flat = self._flats.get(trial, {})
        lines += [
            f"{theme.label(short)}: {self._value(flat[path])}" for path, short in self._names.items() if path in flat
        ]
        return "<br>".join(lines)

    @staticmethod
    def _value(value: object) -> str:
        return theme.label(shortened(setting(value), width=60))


def spend_so_far(points: pd.DataFrame, ends: pd.Series[Any]) -> pd.Series[Any]:
    """Return for each point what the whole sweep had spent when it was reported, in USD.

    An epoch counts from the moment its trial reported it, whatever its trial's state.

    Args:
        points: Rows [trial, epoch, cost_usd], the cost being the trial's own running total.
        ends: When each of them was reported, in UTC seconds, on the same index.
    """
    within = points.assign(end=ends).sort_values(["trial", "epoch"], kind="stable")
    within["step_usd"] = within.groupby("trial")["cost_usd"].diff().fillna(within["cost_usd"]).clip(lower=0)
    return within.sort_values("end", kind="stable")["step_usd"].cumsum().reindex(points.index)


def hypervolume_plot(trace: pd.DataFrame, *, order_by: str = "spend_usd", reference: Mapping[str, float]) -> go.Figure:
    """Draw how the hypervolume of the front grew with what was spent.

    Args:
        trace: Rows [order_by, hypervolume] in order.
        order_by: Column on the x axis, the spend of the whole sweep so far in USD.
        reference: Reference point, objective to value.
    """
    import plotly.graph_objects as go

    title = "Hypervolume against spend"
    if trace.empty:
        return theme.empty(go.Figure(), title=title, reason="No trial has reported a finite point yet.")
    shown = _thinned(trace, MAX_DOTS)
    figure = go.Figure()
    figure.add_scatter(
        x=shown[order_by],
        y=shown["hypervolume"],
        mode="lines",
        line={"color": theme.BLUE, "width": 2.5, "shape": "hv"},
        fill="tozeroy",
        fillcolor="rgba(0, 114, 178, 0.10)",
        hovertemplate="after $%{x:.3g}: %{y:.4g}<extra></extra>",
        showlegend=False,
    )
    figure.update_layout(xaxis=theme.axis(order_by, shown[order_by], may_be_log=False))
    figure.update_layout(yaxis={"title": {"text": "hypervolume"}, "rangemode": "tozero", "tickformat": "~g"})
    at = ", ".join(f"{theme.label(axis_title(name))} {quantity(name, value)}" for name, value in reference.items())
    caption = f"{len(trace):,} points; reference point: {at}"
    return theme.styled(figure, title=title, caption=caption)


def phase_plot(seconds_by_phase: Mapping[str, float], usd_by_phase: Mapping[str, float]) -> go.Figure:
    """Draw what each phase cost as bars, dearest on top, with its time and share beside it.

    Args:
        seconds_by_phase: Phase to seconds of trials, added over trials.
        usd_by_phase: Phase to USD.
    """
    import plotly.graph_objects as go

    title = "Cost by phase"
    if not sum(seconds_by_phase.values()):
        return theme.empty(go.Figure(), title=title, reason="Nothing has been spent yet.")
    priced = sum(usd_by_phase.values()) > 0
    weights = usd_by_phase if priced else seconds_by_phase
    total, column = sum(weights.values()), "cost_usd" if priced else "time_seconds"
    phases = sorted(seconds_by_phase, key=lambda phase: weights.get(phase, 0.0))
    values = [weights.get(phase, 0.0) for phase in phases]
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        x=values,
        y=[_phase_label(phase, seconds_by_phase[phase]) for phase in phases],
        marker={"color": [theme.PHASE_COLOURS.get(phase, theme.GREY) for phase in phases]},
        text=[f"{quantity(column, value)} · {value / total:.0%}" for value in values],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{text}<extra></extra>",
    )
    figure.update_layout(xaxis=theme.axis(column, pd.Series(values), may_be_log=False), bargap=0.35)
    figure.update_xaxes(range=[0, max(values) * 1.5], nticks=5)
    used = duration(sum(seconds_by_phase.values()))
    return theme.styled(figure, title=title, caption=f"{money(sum(usd_by_phase.values()))} for {used} of trial time")


def _phase_label(phase: str, seconds: float) -> str:
    small = f"<span style='font-size: 11px; color: {theme.MUTED}'>{duration(seconds)}</span>"
    return f"{theme.label(phase.replace('_', ' '))}<br>{small}"


def curves_plot(points: pd.DataFrame, front: pd.DataFrame, objectives: Mapping[str, Direction]) -> go.Figure:
    """Draw the learning curves: all trials thin and grey, those on the front bold, over epochs or (button) over cost.

    Args:
        points: Rows [trial, epoch, objectives..., cost_usd].
        front: The non-dominated of them; a diamond marks the epoch to stop at.
        objectives: Name to `min` or `max`; the first one is drawn.
    """
    import plotly.graph_objects as go

    y = next(iter(objectives))
    title = f"Learning curves: {theme.label(axis_title(y))}"
    rows = _finite(points, ["epoch", y])
    if rows.empty:
        return theme.empty(go.Figure(), title=title, reason="No trial has reported a finite point yet.")
    bold = list(dict.fromkeys(ordered(front, objectives)["trial"]))
    others = [trial for trial in rows["trial"].unique() if trial not in set(bold)]
    thin = _thinned(pd.DataFrame({"trial": others}), MAX_CURVES)["trial"]
    xs = ["epoch", *(["cost_usd"] if "cost_usd" in rows else [])]
    grey = {x: _joined(rows[rows["trial"].isin(thin)], x, y) for x in xs}
    figure = go.Figure()
    figure.add_scatter(name="other trials", **grey["epoch"], **_THIN_LINE, opacity=0.7, hoverinfo="skip")
    for number, trial in enumerate(bold[:MAX_CURVES]):
        figure.add_trace(_bold_curve(rows[rows["trial"] == trial], front, y, number, len(bold)))
    figure.update_layout(
        xaxis=theme.axis("epoch", rows["epoch"], may_be_log=False),
        yaxis={"title": {"text": theme.label(axis_title(y))}},
    )
    caption = f"{rows['trial'].nunique():,} trials, {len(bold):,} on the front; a diamond marks where to stop"
    theme.styled(figure, title=title, caption=caption)
    if len(xs) > 1:
        _add_axis_buttons(
            figure, rows, [grey, *(rows[rows["trial"] == trial].sort_values("epoch") for trial in bold[:MAX_CURVES])]
        )
    return figure


def _bold_curve(rows: pd.DataFrame, front: pd.DataFrame, y: str, number: int, count: int) -> go.Scatter:
    import plotly.graph_objects as go

    rows = rows.sort_values("epoch")
    trial, is_named = theme.label(shortened(str(rows["trial"].iloc[0]))), count <= len(theme.CYCLE)
    colour = theme.CYCLE[number] if is_named else theme.BLUE
    on_front = set(front.index)
    return go.Scatter(
        name=f"trial {trial}" if is_named else "trials on the front",
        legendgroup=f"bold {number if is_named else 0}",
        showlegend=is_named or number == 0,
        x=rows["epoch"],
        y=rows[y],
        mode="lines+markers",
        line={"color": colour, "width": 2.5},
        marker={"size": [9 if label in on_front else 0 for label in rows.index], "symbol": "diamond", "color": colour},
        hovertemplate=f"trial {trial}: %{{y:.4g}} at %{{x:.4g}}<extra></extra>",
    )


def _add_axis_buttons(figure: go.Figure, rows: pd.DataFrame, traces: list[Any]) -> None:
    buttons = []
    for x, name in (("epoch", "over epochs"), ("cost_usd", "over cost")):
        values = [trace[x]["x"] if isinstance(trace, dict) else list(trace[x].astype(float)) for trace in traces]
        axis = theme.axis(x, rows[x], may_be_log=x == "cost_usd")
        changes = {"xaxis.title.text": axis["title"]["text"], "xaxis.type": axis["type"], "xaxis.autorange": True}
        changes |= {f"xaxis.{key}": axis.get(key) for key in ("tickformat", "tickmode", "tickvals")}
        buttons.append({"label": name, "method": "update", "args": [{"x": values}, changes]})
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "x": 0.5, "xanchor": "center", "y": 0}
    menu |= {"yanchor": "top", "pad": {"t": 58}, "font": {"size": 12}, "showactive": True}
    figure.update_layout(updatemenus=[menu], margin={"b": 105}, height=470)

"""How the difficulty of the samples changed while a trial with adaptive sampling trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from muse_spark_ray.pareto import Direction
from muse_spark_ray.report import theme

if TYPE_CHECKING:
    import plotly.graph_objects as go

PREFIX = "difficulty_from_"


def difficulty_plot(epochs: pd.DataFrame, front: pd.DataFrame, objectives: Mapping[str, Direction]) -> go.Figure:
    """Draw the histogram of the samples' smoothed losses over the epochs of one trial, and the share that was chosen.

    Of the trials that report it, the one that is furthest along the front by the first objective is shown; the longest
    one if none is on the front.

    Args:
        epochs: Rows [trial, epoch, metrics...]; columns `difficulty_from_LOSS` hold the share of the samples whose loss
            is at least LOSS and below the next column's.
        front: The front.
        objectives: Name to `min` or `max`.

    Returns:
        A heat map; without such columns a figure that has no traces.
    """
    import plotly.graph_objects as go

    columns = sorted((c for c in map(str, epochs.columns) if c.startswith(PREFIX)), key=_edge)
    known = epochs.dropna(subset=columns) if columns else epochs.iloc[:0]
    figure = go.Figure()
    if known.empty:
        return figure
    trial = _shown_trial(known, front, objectives)
    rows = known[known["trial"] == trial].sort_values("epoch")
    shares = rows[columns].to_numpy(float)
    figure.add_heatmap(
        x=rows["epoch"],
        y=[_words(columns, i) for i in range(len(columns))],
        z=shares.T,
        colorscale=theme.SCALE,
        colorbar={"title": {"text": "share of samples"}, "tickformat": ".0%"},
        hovertemplate="epoch %{x}<br>loss %{y}<br>%{z:.1%} of the samples<extra></extra>",
    )
    figure.update_layout(
        xaxis={"title": {"text": "epoch"}, "dtick": _tick(len(rows))}, yaxis={"title": {"text": "loss"}}
    )
    caption = f"trial {theme.label(trial)}, losses of the single samples"
    if "selected_share" in rows and rows["selected_share"].notna().any():
        caption += f"; {np.nanmean(rows['selected_share'].to_numpy(float)):.0%} of them trained on in the mean"
    return theme.styled(figure, title="Difficulty of the samples", caption=caption)


def _shown_trial(known: pd.DataFrame, front: pd.DataFrame, objectives: Mapping[str, Direction]) -> Any:
    first, direction = next(iter(objectives.items()))
    there = front[front["trial"].isin(known["trial"])] if len(front) else front
    if len(there):
        return there.sort_values(first, ascending=direction == "min")["trial"].iloc[0]
    return known.groupby("trial")["epoch"].count().idxmax()


def _edge(column: str) -> float:
    return float(column.removeprefix(PREFIX))


def _words(columns: list[str], index: int) -> str:
    low = columns[index].removeprefix(PREFIX)
    return f"{low} – {columns[index + 1].removeprefix(PREFIX)}" if index + 1 < len(columns) else f"{low} and more"


def _tick(epochs: int) -> int:
    return max(1, round(epochs / 10))

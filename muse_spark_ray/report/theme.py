"""The one look of all plots: colour-blind safe colours, light ground, readable type, units on every axis.

Colours are the palette of Okabe and Ito, "Color Universal Design" (2008); ordered values use Cividis
(Nunez, Anderton, Renslow, PLoS ONE 13(7), 2018).
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from muse_spark_ray.report.formats import axis_title, clean

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, INK, MUTED, GREY, GRID = "#CC79A7", "#56B4E9", "#1F2933", "#52606D", "#A9B4C0", "#E6EAEE"
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
SCALE = "Cividis"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
PHASE_COLOURS = {
    "train": BLUE,
    "evaluate": SKY,
    "data_wait": "#8FB8DE",
    "checkpoint": GREEN,
    "compile": PURPLE,
    "start": ORANGE,
    "restart": "#B97A00",
    "lost": VERMILLION,
}


def label(value: object) -> str:
    """Return a name as plotly shows it literally: plotly reads a little HTML in every text."""
    return escape(clean(str(value)), quote=False)


def styled(figure: go.Figure, *, title: str, caption: str) -> go.Figure:
    """Return the figure with the shared look, its title and a caption that says what was counted."""
    figure.update_layout(
        template="plotly_white",
        title={
            "text": f"<b>{title}</b>",
            "subtitle": {"text": caption, "font": {"size": 12.5, "color": MUTED}},
            "font": {"size": 17, "color": INK},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 0.96,
            "yanchor": "top",
        },
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 70, "r": 24, "t": 92, "b": 60},
        paper_bgcolor="white",
        plot_bgcolor="white",
        hoverlabel={"bgcolor": "white", "bordercolor": GREY, "align": "left", "font": {"size": 12.5, "color": INK}},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 12}},
        modebar={"bgcolor": "rgba(255, 255, 255, 0.85)", "color": MUTED, "activecolor": BLUE},
        height=440,
        autosize=True,
    )
    axis = {"gridcolor": GRID, "linecolor": GREY, "ticks": "outside", "tickcolor": GREY, "zeroline": False}
    figure.update_xaxes(automargin=True, title_standoff=10, **axis)
    return figure.update_yaxes(automargin=True, title_standoff=8, **axis)


def empty(figure: go.Figure, *, title: str, reason: str) -> go.Figure:
    """Return the figure as a blank that says why there is nothing to show."""
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    figure.add_annotation(text=reason, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 14})
    styled(figure, title=title, caption="")
    return figure.update_layout(height=260)


def axis(name: str, values: pd.Series[Any], *, may_be_log: bool) -> dict[str, Any]:
    """Return title, type and tick format of an axis; logarithmic where positive values span more than a decade.

    Args:
        name: Column on the axis.
        values: Values on it; those that are not finite were dropped.
        may_be_log: Whether the column is one where ratios count, such as a cost.
    """
    is_log = bool(may_be_log and len(values) and values.min() > 0 and values.max() > 10 * values.min())
    title = axis_title(name) + (", log scale" if is_log else "")
    layout: dict[str, Any] = {"title": {"text": label(title)}, "type": "log" if is_log else "linear"}
    layout |= {"tickformat": "$~g" if name.endswith("_usd") else "~g", "tickmode": "auto"}
    return layout | {"tickmode": "array", "tickvals": log_ticks(values.min(), values.max())} if is_log else layout


def log_ticks(low: float, high: float) -> list[float]:
    """Return ones and threes of each decade, or ones alone over many: labels of small amounts are long.

    Args:
        low: Smallest value, above zero.
        high: Largest value.
    """
    steps = (1, 3) if high < 300 * low else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        float(f"{step}e{decade}")
        for decade in decades
        for step in steps
        if 0.8 * low <= step * 10.0**decade <= 1.2 * high
    ]

"""A plot as a PNG or SVG picture, drawn by matplotlib where it is installed."""

from __future__ import annotations

import io
from importlib import import_module
from typing import TYPE_CHECKING, Any

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.report.page import words

if TYPE_CHECKING:
    import plotly.graph_objects as go

_STEPS = {"hv": "steps-post", "vh": "steps-pre"}
_SIZE_INCHES = (8.0, 5.0)
_DOTS_PER_INCH = 150


def front_image(figure: go.Figure, *, kind: str) -> bytes:
    """Return the points, lines and staircases of a plotly figure as a picture.

    Args:
        figure: Figure made of scatter traces, such as `plots.front_plot` returns.
        kind: `png` or `svg`.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        drawing = import_module("matplotlib.figure").Figure(figsize=_SIZE_INCHES, layout="constrained")
    except ImportError as error:
        raise ConfigError(
            f"a .{kind} picture needs matplotlib, which is not installed", hint='pip install "muse-spark-ray[plot]"'
        ) from error
    axes = drawing.subplots()
    for trace in figure.data:
        if trace.type == "scatter" and trace.visible != "legendonly":
            _draw(axes, trace)
    _dress(axes, figure)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH)
    return buffer.getvalue()


def _draw(axes: Any, trace: Any) -> None:
    mode, name = trace.mode or "lines", _words(trace.name) if trace.name and trace.showlegend is not False else None
    if "lines" in mode:
        xs, ys = ([float("nan") if value is None else value for value in values] for values in (trace.x, trace.y))
        style = _STEPS.get(trace.line.shape, "default")
        colour, width = trace.line.color, trace.line.width or 2
        axes.plot(xs, ys, color=colour, linewidth=width * 0.8, drawstyle=style, label=name, zorder=2)
        name = None
    if "markers" in mode:
        is_open = str(trace.marker.symbol or "").endswith("-open")
        colour, size = trace.marker.color, trace.marker.size
        area = [value**2 * 0.6 for value in size] if isinstance(size, tuple) else (size or 6) ** 2 * 0.6
        look = _colours(colour, is_open=is_open)
        marker = "D" if "diamond" in str(trace.marker.symbol or "") else "o"
        axes.scatter(trace.x, trace.y, s=area, alpha=trace.marker.opacity, marker=marker, label=name, zorder=3, **look)


def _colours(colour: Any, *, is_open: bool) -> dict[str, Any]:
    if is_open:
        return {"facecolors": "none", "edgecolors": colour}
    return {"color": colour} if isinstance(colour, str) else {"c": list(colour), "cmap": "cividis"}


def _dress(axes: Any, figure: go.Figure) -> None:
    layout = figure.layout
    axes.set_xlabel(_words(layout.xaxis.title.text))
    axes.set_ylabel(_words(layout.yaxis.title.text))
    axes.set_xscale("log" if layout.xaxis.type == "log" else "linear")
    axes.set_yscale("log" if layout.yaxis.type == "log" else "linear")
    if layout.yaxis.range and layout.yaxis.type != "log":
        axes.set_ylim(*layout.yaxis.range)
    axes.set_title(f"{_words(layout.title.text)}\n{_words(layout.title.subtitle.text)}", loc="left", fontsize=11)
    axes.grid(color="#e6eaee")
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)


def _words(marked: str | None) -> str:
    """Return plotly's text without its tags; matplotlib would read a dollar sign as mathematics."""
    return words(marked).replace("$", r"\$")

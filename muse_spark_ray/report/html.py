"""The report of a sweep as one offline HTML file, and single plots as HTML, PNG or SVG files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto import hypervolume_trace
from muse_spark_ray.report import parallel, plots
from muse_spark_ray.report.difficulty import difficulty_plot
from muse_spark_ray.report.formats import duration, money
from muse_spark_ray.report.image import front_image
from muse_spark_ray.report.page import page, plot_section, text, words, write_atomically
from muse_spark_ray.report.rows import EXCLUDED_WORDS, Column, candidates, front_columns, front_summary
from muse_spark_ray.report.settings import Config, differing_settings

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from muse_spark_ray.sweep import Sweep

_CLASSES = {"front": "wide", "curves": "wide", "parallel": "wide broad"}
MAX_FAILED_ROWS = 200


def write_report(sweep: Sweep, path: str | Path) -> Path:
    """Write the report of a sweep as one HTML file that needs no network, and return its path.

    Args:
        sweep: Any sweep, running or empty ones included.
        path: File to write; an older one is replaced in one step.

    Raises:
        ConfigError: The file cannot be written.
    """
    target = Path(path)
    points, front, trials = sweep.points(), sweep.front(), sweep.trials()
    configs = sweep.settings()
    differing = differing_settings(configs.values())
    figures = _figures(sweep, points, front, differing, configs)
    parts = [_header(sweep, front), "<main>", _notice(front, trials)]
    parts += [_front_section(sweep, points, front, differing, configs), _plot_sections(figures)]
    parts += [_excluded_section(front, trials), _spec_section(sweep), "</main>", _footer()]
    write_atomically(target, page(f"{sweep.name}: cost and accuracy", "\n".join(parts), figures).encode())
    return target


def write_plot(figure: go.Figure, path: str | Path) -> Path:
    """Write one plot, as an offline HTML file or as a picture, by the ending of the path.

    Args:
        figure: Any figure of `plots`; pictures show its points and lines.
        path: File ending in `.html`, `.png` or `.svg`.

    Raises:
        ConfigError: Another ending, matplotlib is missing for a picture, or the file cannot be written.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in (".html", ".png", ".svg"):
        raise ConfigError(
            f"--plot {target} ends in {target.suffix or 'nothing'}; it can end in .html, .png or .svg",
            hint=f"--plot {target.with_suffix('.html')}",
        )
    if kind == ".html":
        body = f"<main>{plot_section('one', figure)}</main>"
        write_atomically(target, page(words(figure.layout.title.text), body, {"one": figure}).encode())
    else:
        write_atomically(target, front_image(figure, kind=kind[1:]))
    return target


def _figures(
    sweep: Sweep, points: pd.DataFrame, front: pd.DataFrame, differing: list[str], configs: Mapping[str, Config]
) -> dict[str, go.Figure]:
    objectives, totals, reference = sweep.objectives, sweep.totals(), sweep.reference()
    points = points.assign(**{name: float("nan") for name in objectives if name not in points})
    shown = candidates(points, front)
    details: dict[str, Any] = {"differing": differing, "configs": configs}
    figures = {
        "front": plots.front_plot(points, front, objectives, **details),
        "hypervolume": plots.hypervolume_plot(_spend_trace(sweep, points, shown, reference), reference=reference),
        "phases": plots.phase_plot(totals.seconds_by_phase, totals.usd_by_phase),
        "curves": plots.curves_plot(points, front, objectives),
        "difficulty": difficulty_plot(sweep.epochs(), front, objectives),
        "parallel": parallel.parallel_plot(shown, front, objectives, **details),
    }
    return {name: figure for name, figure in figures.items() if figure.data}


def _spend_trace(
    sweep: Sweep, points: pd.DataFrame, shown: pd.DataFrame, reference: Mapping[str, float]
) -> pd.DataFrame:
    if shown.empty or not reference:
        return pd.DataFrame({"spend_usd": [], "hypervolume": []})
    ends = points[["trial", "epoch"]].merge(
        sweep.epochs()[["trial", "epoch", "end"]], on=["trial", "epoch"], how="left"
    )
    spend = plots.spend_so_far(points, ends["end"].set_axis(points.index))
    table = shown.assign(spend_usd=spend.reindex(shown.index))
    return hypervolume_trace(table, sweep.objectives, order_by="spend_usd", reference=reference)


def _header(sweep: Sweep, front: pd.DataFrame) -> str:
    status = sweep.status()
    spend, trials, budget = status["spend"], status["trials"], status["budget"]
    state = text(status["state"])
    others = ", ".join(f"{count} {name}" for name, count in trials.items() if count and name != "finished")
    facts = [
        ("trials finished", f"{trials.get('finished', 0)}", others),
        ("on the front", f"{len(front)}", "points"),
        ("hypervolume", f"{sweep.hypervolume():.4g}", ""),
        ("spend", money(spend["usd"]), f"of {money(budget['cost_usd'])}" if budget.get("cost_usd") else ""),
        ("wall time", duration(spend["wall_seconds"]), ""),
        _hours_fact(spend),
    ]
    directions = ", ".join(f"{name} ({way})" for name, way in sweep.objectives.items())
    cells = "".join(f"<div><dt>{text(a)}</dt><dd>{text(b)}<small>{text(c)}</small></dd></div>" for a, b, c in facts)
    return (
        f'<header><h1>{text(sweep.name)}<span class="state {state}">{state}</span></h1>'
        f'<p class="lead">Objectives: {text(directions)}</p><dl class="facts">{cells}</dl></header>'
    )


def _hours_fact(spend: Mapping[str, float]) -> tuple[str, str, str]:
    if spend["gpu_hours"]:
        return "GPU-hours", f"{spend['gpu_hours']:.3g}", f"{spend['cpu_core_hours']:.3g} CPU-core-hours"
    return "CPU-core-hours", f"{spend['cpu_core_hours']:.3g}", "no GPU was used"


def _notice(front: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Return why the front is empty, said plainly; nothing where it is not."""
    if len(front):
        return ""
    n_failed = int((trials["state"] == "failed").sum())
    if trials.empty:
        reason = "No trial has been started yet."
    elif n_failed == len(trials):
        reason = f"All {n_failed} trials failed; the reasons are below."
    else:
        reason = str(front.attrs.get("message") or "No trial has reported a usable point yet.")
    return f'<section class="notice"><h2>The front is empty</h2><p>{text(reason)}</p></section>'


def _front_section(
    sweep: Sweep, points: pd.DataFrame, front: pd.DataFrame, differing: list[str], configs: Mapping[str, Config]
) -> str:
    if front.empty:
        return ""
    columns = front_columns(front, sweep.objectives, differing=differing, configs=configs)
    n_dominated = len(candidates(points, front)) - len(front)
    summary = front_summary(front, n_dominated=n_dominated, hypervolume=sweep.hypervolume())
    return (
        f'<section><h2>The front</h2><div class="scroll">{html_table(columns)}</div>'
        f'<p class="summary">{text(summary)}. “stop at” is the epoch after which to stop the trial.</p></section>'
    )


def html_table(columns: list[Column]) -> str:
    """Return columns as an HTML table that sorts by a click on a header; the knee's row is marked.

    Args:
        columns: Columns of equal length, as `rows.front_columns` makes them.
    """
    kinds = ["number" if column.is_number else "" for column in columns]
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{text(column.title)}</button></th>'
        for kind, column in zip(kinds, columns, strict=True)
    )
    notes = next((column.cells for column in columns if column.title == "note"), ())
    body = []
    for number in range(len(columns[0].cells)):
        cells = "".join(
            f'<td class="{kind}" data-key="{text(column.sort_keys[number])}">{text(column.cells[number])}</td>'
            for kind, column in zip(kinds, columns, strict=True)
        )
        mark = ' class="knee"' if notes and "knee" in notes[number] else ""
        body.append(f"<tr{mark}>{cells}</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _plot_sections(figures: Mapping[str, go.Figure]) -> str:
    sections = [plot_section(name, figure, classes=_CLASSES.get(name, "")) for name, figure in figures.items()]
    return f'<div class="plots">{"".join(sections)}</div>' if sections else ""


def _excluded_section(front: pd.DataFrame, trials: pd.DataFrame) -> str:
    excluded = {reason: count for reason, count in front.attrs.get("excluded", {}).items() if count}
    failed = trials[trials["state"] == "failed"]
    if not excluded and failed.empty:
        return ""
    words = ", ".join(f"{count:,} {EXCLUDED_WORDS.get(reason, reason)}" for reason, count in excluded.items())
    pairs = failed[["trial", "error"]].head(MAX_FAILED_ROWS).itertuples(index=False)
    rows = "".join(
        f'<tr><td>{text(trial)}</td><td class="prose">{text(_reason(error))}</td></tr>' for trial, error in pairs
    )
    table = f"<table><thead><tr><th>failed trial</th><th>reason</th></tr></thead><tbody>{rows}</tbody></table>"
    more = f"<p>and {len(failed) - MAX_FAILED_ROWS:,} more</p>" if len(failed) > MAX_FAILED_ROWS else ""
    lead = f'<p class="summary">Not candidates: {text(words)}. What they cost is in the spend.</p>' if words else ""
    return f'<section><h2>Left out</h2><div class="scroll">{table if rows else ""}</div>{more}{lead}</section>'


def _reason(error: object) -> str:
    return error if isinstance(error, str) else "no reason was recorded"


def _spec_section(sweep: Sweep) -> str:
    import yaml

    spec = yaml.safe_dump(dict(sweep.spec), sort_keys=False, allow_unicode=True)
    return f"<section><details><summary>Specification</summary><pre>{text(spec)}</pre></details></section>"


def _footer() -> str:
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made_by = f"muse_spark_ray {text(version('muse-spark-ray'))}, written {written}."
    return f"<footer>{made_by} Works without a network.</footer>"

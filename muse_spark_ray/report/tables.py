"""Tables for the terminal, as rich renderables that fit the width and stay readable without colour or Unicode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml
from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from muse_spark_ray.cost import goodput
from muse_spark_ray.pareto import Direction
from muse_spark_ray.report.formats import ABSENT, axis_title, clean, duration, money, quantity, sparkline
from muse_spark_ray.report.rows import Column, front_columns, front_summary
from muse_spark_ray.report.settings import Config

_CURVE_ROWS = 14


@dataclass(frozen=True)
class FittedTable:
    """A table that leaves out optional columns from the right until it fits, and says which."""

    columns: list[Column]
    summary: str = ""
    marked_rows: frozenset[int] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self.columns)
        while shown and _width(self._table(shown), console, options) > options.max_width:
            optional = [column for column in shown if column.is_optional]
            if not optional:
                break
            shown.remove(optional[-1])
        yield self._table(shown)
        if self.summary:
            yield _plain(self.summary, options)
        left_out = [column.title for column in self.columns if column not in shown]
        if left_out:
            yield _plain(f"left out at this width: {', '.join(left_out)}", options, style="dim")

    def _table(self, shown: list[Column]) -> Table:
        table = _table()
        for column in shown:
            justify: JustifyMethod = "right" if column.is_number else "left"
            table.add_column(Text(column.title), justify=justify, no_wrap=True, overflow="crop")
        for number, cells in enumerate(zip(*(column.cells for column in shown), strict=True)):
            table.add_row(*map(Text, cells), style="bold" if number in self.marked_rows else "")
        return table


@dataclass(frozen=True)
class Line:
    """Text that falls back to ASCII separators where the terminal has no Unicode."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _plain(self.text, options, style=self.style)


@dataclass(frozen=True)
class Spark:
    """A sparkline with a label and its two ends."""

    label: str
    values: tuple[float, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = sparkline(self.values, ascii_only=options.ascii_only)
        first, last = (quantity(self.label, value) for value in (self.values[0], self.values[-1]))
        yield Text(f"{axis_title(self.label)}  {first} {drawn} {last}", no_wrap=True, overflow="crop")


@dataclass(frozen=True)
class Bar:
    """A horizontal bar whose length is a share of its cell."""

    share: float
    width: int = 20

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        block = "#" if options.ascii_only else "█"
        yield Text(block * max(1 if self.share > 0 else 0, round(self.share * self.width)), style="blue")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


def front_table(
    front: pd.DataFrame,
    objectives: Mapping[str, Direction],
    *,
    differing: list[str],
    configs: Mapping[str, Config],
    n_dominated: int | None = None,
    hypervolume: float | None = None,
) -> RenderableType:
    """Return the front as a table: trial, epoch to stop at, objectives, time, knee and ties, settings that differ.

    Args:
        front: Non-dominated rows [trial, epoch, objectives..., hours, tie], `.attrs["excluded"]` by reason.
        objectives: Name to `min` or `max`.
        differing: Dotted paths of the settings that differ between trials.
        configs: Trial name to its nested config.
        n_dominated: Candidate (trial, epoch) points that are not on it.
        hypervolume: Hypervolume of the front.
    """
    summary = front_summary(front, n_dominated=n_dominated, hypervolume=hypervolume)
    if front.empty:
        return Line(f"No point is on the front yet: {summary}")
    columns = front_columns(front, objectives, differing=differing, configs=configs)
    notes = next(column for column in columns if column.title == "note").cells
    marked = frozenset(number for number, note in enumerate(notes) if "knee" in note)
    return FittedTable(columns, summary=summary, marked_rows=marked)


def sweeps_table(sweeps: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Return the sweeps of a store, one per line.

    Args:
        sweeps: One status per sweep: `name`, `state`, `trials` {state: count}, `spend` {usd, wall_seconds}.
    """
    rows = list(sweeps)
    if not rows:
        return Line("No sweeps in this store. Start one with: muse-spark sweep experiments/digits.yaml")
    table = _table("sweep", "state", "finished", "failed", "spend", "wall time", right=("finished", "failed"))
    for row in rows:
        trials, spend = row.get("trials", {}), row.get("spend", {})
        cells = (row["name"], row["state"], _done(trials), trials.get("failed", 0))
        table.add_row(*_cells(*cells, money(spend.get("usd")), duration(spend.get("wall_seconds"))))
    return table


def _done(trials: Mapping[str, int]) -> str:
    return f"{trials.get('finished', 0)}/{sum(trials.values())}"


def status_panel(name: str, status: Mapping[str, Any]) -> RenderableType:
    """Return where a sweep stands: state, trials by state, spend against each budget.

    Args:
        name: Name of the sweep.
        status: `{"state", "trials", "spend": {usd, gpu_hours, cpu_core_hours, wall_seconds}, "budget"}`.
    """
    spend, budget, trials = status["spend"], status.get("budget") or {}, status["trials"]
    grid = Table.grid(padding=(0, 2))
    counts = ", ".join(f"{count} {state}" for state, count in trials.items() if count) or "none yet"
    grid.add_row("state", Text(clean(str(status["state"]))))
    grid.add_row("trials", Text(clean(counts + (f" of {budget['trials']}" if budget.get("trials") else ""))))
    for label, key, limit_key in _SPEND_LINES:
        limit = budget.get(limit_key)
        text = _amount(key, spend.get(key)) + (f" of {_amount(key, limit)}" if limit is not None else "")
        if limit is not None or spend.get(key):
            grid.add_row(label, Group(Text(text), Bar(_share(spend.get(key), limit))) if limit else Text(text))
    return Panel(grid, title=Text(clean(name)), title_align="left", box=box.ROUNDED, expand=False)


_SPEND_LINES = (
    ("spend", "usd", "cost_usd"),
    ("GPU-hours", "gpu_hours", "gpu_hours"),
    ("CPU-core-hours", "cpu_core_hours", "cpu_core_hours"),
    ("wall time", "wall_seconds", "wall_seconds"),
)


def _amount(key: str, value: float | None) -> str:
    if key == "usd":
        return money(value)
    return duration(value) if key == "wall_seconds" else (ABSENT if value is None else f"{value:.4g}")


def _share(used: float | None, limit: float | None) -> float:
    return min(1.0, (used or 0.0) / limit) if limit else 0.0


def trial_view(
    trial: str,
    config: Config,
    epochs: pd.DataFrame,
    *,
    objectives: Mapping[str, Direction],
    seconds_by_phase: Mapping[str, float],
    usd_by_phase: Mapping[str, float],
    checkpoint: str | None = None,
    error: str | None = None,
) -> RenderableType:
    """Return one trial: its config as YAML, its curve, its cost by phase, its checkpoint and error.

    Args:
        trial: Name of the trial.
        config: Its nested config.
        epochs: Its rows [epoch, metrics..., cost_usd].
        objectives: Name to `min` or `max`; these columns are drawn.
        seconds_by_phase: Phase to seconds.
        usd_by_phase: Phase to USD.
        checkpoint: Where its checkpoint is.
        error: Why it failed.
    """
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    parts: list[RenderableType] = [Text(f"trial {clean(trial)}", style="bold")]
    if error:
        parts.append(Text(f"failed: {clean(error)}", style="red"))
    parts += [Syntax(text.rstrip(), "yaml", background_color="default", theme="ansi_light", word_wrap=True), Text()]
    parts += [_curve(epochs, objectives), Text(), cost_by_phase_table(seconds_by_phase, usd_by_phase)]
    if checkpoint:
        parts += [Text(), Text(f"checkpoint: {clean(checkpoint)}", overflow="fold")]
    return Group(*parts)


def _curve(epochs: pd.DataFrame, objectives: Mapping[str, Direction]) -> RenderableType:
    if epochs.empty:
        return Line("It has reported no epoch.")
    names = [name for name in objectives if name in epochs]
    sparks = [Spark(name, tuple(epochs[name].astype(float))) for name in names]
    step = -(-len(epochs) // _CURVE_ROWS)
    table = _table("epoch", *map(axis_title, names), right=("epoch", *map(axis_title, names)))
    for _, row in epochs[::-1].iloc[::step][::-1].iterrows():
        table.add_row(f"{row['epoch']:g}", *(quantity(name, float(row[name])) for name in names))
    return Group(*sparks, table)


def cost_by_phase_table(seconds_by_phase: Mapping[str, float], usd_by_phase: Mapping[str, float]) -> RenderableType:
    """Return what each phase cost, dearest first, with a bar of its share, and the useful share of the time.

    Args:
        seconds_by_phase: Phase to seconds of trials, added over trials.
        usd_by_phase: Phase to USD.
    """
    total_usd = sum(usd_by_phase.values())
    weights = usd_by_phase if total_usd > 0 else seconds_by_phase
    total = sum(weights.values())
    if not seconds_by_phase:
        return Line("Nothing has been spent yet.")
    table = _table("phase", "trial time", "cost", "share", "", right=("trial time", "cost", "share"))
    for phase in sorted(seconds_by_phase, key=lambda name: -weights.get(name, 0.0)):
        share = weights.get(phase, 0.0) / total if total else 0.0
        texts = _cells(phase, duration(seconds_by_phase[phase]), money(usd_by_phase.get(phase, 0.0)), f"{share:.0%}")
        table.add_row(*texts, Bar(share))
    table.add_section()
    table.add_row(*_cells("total", duration(sum(seconds_by_phase.values())), money(total_usd), ""), "", style="bold")
    useful = goodput(seconds_by_phase)
    if useful is not None:
        table.add_row(*_cells("goodput", "", "", f"{useful:.1%}"), Bar(useful))
    return table


def _table(*titles: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table in the one look that all tables share."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(Text(title), justify="right" if title in right else "left", overflow="fold")
    return table


def _cells(*values: object) -> list[Text]:
    return [Text(clean(str(value))) for value in values]


def _width(table: Table, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options.update(max_width=10_000), table).maximum


def _plain(text: str, options: ConsoleOptions, *, style: str = "") -> Text:
    return Text(text.replace(" · ", " | ") if options.ascii_only else text, style=style)

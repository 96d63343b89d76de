"""What a running sweep shows on stderr: one live area on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.pareto import Direction
from muse_spark_ray.report.formats import clean, duration, money, quantity
from muse_spark_ray.report.rows import column_title, ordered

Mode = Literal["auto", "rich", "plain", "none"]
MAX_TABLE_LINES = 12
REDRAWS_PER_SECOND = 4
SUMMARY_EVERY_SECONDS = 60.0


@dataclass(frozen=True)
class Snapshot:
    """Where a sweep stands at one moment.

    `budget` holds (label, used, limit or None, unit) with the unit `usd`, `s` or a word; `running` holds
    (trial, epochs done, epochs in all, accuracy or None); `gangs` is a line such as `2 gangs: 1 busy, 1 starting`.
    """

    name: str
    elapsed_seconds: float
    n_finished: int
    n_running: int
    n_failed: int
    n_total: int
    spend_usd: float
    front: pd.DataFrame
    objectives: dict[str, Direction]
    budget: tuple[tuple[str, float, float | None, str], ...] = ()
    running: tuple[tuple[str, int, int, float | None], ...] = ()
    eta_seconds: float | None = None
    gangs: str = ""


class LiveView:
    """Shows nothing; the base of the two views that do.

    The driver calls `update` as often as it likes, `event` once for each thing that happened, `close` once.
    """

    @staticmethod
    def choose(console: Console, mode: Mode) -> LiveView:
        """Return the view for a mode; `auto` is rich on a terminal and plain lines elsewhere.

        Args:
            console: Where to write; a console on stderr, so that stdout carries data only.
            mode: `auto`, `rich`, `plain` or `none`.

        Raises:
            ConfigError: The mode is another word.
        """
        if mode not in ("auto", "rich", "plain", "none"):
            raise ConfigError(
                f"--progress is {mode!r}; it can be auto, rich, plain or none", hint="leave it out for auto"
            )
        if mode == "auto":
            mode = "rich" if console.is_terminal and not console.is_dumb_terminal else "plain"
        if mode == "none":
            return LiveView()
        return RichView(console) if mode == "rich" else PlainView(console)

    def update(self, snapshot: Snapshot) -> None:
        """Take in the newest state of the sweep."""

    def event(self, text: str) -> None:
        """Tell of one thing that happened, such as a finished trial or a restart."""

    def close(self, final: RenderableType | None = None) -> None:
        """End the display and print the final block, if there is one."""


class PlainView(LiveView):
    """One line per event, and a summary line at most once a minute."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_summary_seconds = 0.0

    def update(self, snapshot: Snapshot) -> None:
        if snapshot.elapsed_seconds >= self._next_summary_seconds:
            self._next_summary_seconds = snapshot.elapsed_seconds + SUMMARY_EVERY_SECONDS
            self.event(summary_line(snapshot))

    def event(self, text: str) -> None:
        self._console.print(Text(_encodable(clean(text), self._console)), soft_wrap=True)

    def close(self, final: RenderableType | None = None) -> None:
        if final is not None:
            self._console.print(final)


class RichView(LiveView):
    """One area that is redrawn in place at most four times a second; events scroll above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=REDRAWS_PER_SECOND, transient=True)
        self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        self._live.update(live_area(snapshot))

    def event(self, text: str) -> None:
        self._live.console.print(Text(_encodable(clean(text), self._live.console)))

    def close(self, final: RenderableType | None = None) -> None:
        self._live.stop()
        if final is not None:
            self._live.console.print(final)


def summary_line(snapshot: Snapshot) -> str:
    """Return the state of a sweep as one line of text."""
    parts = [
        f"{snapshot.name}: {snapshot.n_finished}/{snapshot.n_total} finished",
        f"{snapshot.n_running} running",
        f"{snapshot.n_failed} failed" if snapshot.n_failed else "",
        f"front {len(snapshot.front)}",
        money(snapshot.spend_usd),
        duration(snapshot.elapsed_seconds),
        f"~{duration(snapshot.eta_seconds)} left" if snapshot.eta_seconds is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def live_area(snapshot: Snapshot) -> RenderableType:
    """Return the live area: header, budgets with bars, running trials and the front in at most twelve lines."""
    header = Text(clean(summary_line(snapshot)), style="bold")
    parts: list[RenderableType] = [header, _budget_grid(snapshot), _trial_grid(snapshot)]
    if snapshot.gangs:
        parts.append(Text(clean(snapshot.gangs), style="dim"))
    return Group(*parts)


def _budget_grid(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    for label, used, limit, unit in snapshot.budget:
        if limit:
            bar = ProgressBar(total=limit, completed=min(used, limit), width=24)
            grid.add_row(Text(clean(label)), bar, f"{_amount(used, unit)} of {_amount(limit, unit)}{_counted(unit)}")
    return grid


def _amount(value: float, unit: str) -> str:
    if unit == "usd":
        return money(value)
    return duration(value) if unit == "s" else f"{value:.4g}"


def _counted(unit: str) -> str:
    return "" if unit in ("usd", "s") else f" {clean(unit)}"


def _trial_grid(snapshot: Snapshot) -> Table:
    """Running trials take at most half of the lines that the front would need; the rest of the front is counted."""
    names = list(snapshot.objectives)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for title in ("", "trial", "epoch", *map(column_title, names)):
        table.add_column(title, justify="left" if title in ("", "trial") else "right", no_wrap=True)
    running = snapshot.running[: max(MAX_TABLE_LINES // 2, MAX_TABLE_LINES - len(snapshot.front))]
    for trial, epoch, epochs, accuracy in running:
        score = "" if accuracy is None else quantity("accuracy", accuracy)
        table.add_row("running", Text(clean(trial)), f"{epoch}/{epochs}", score, *[""] * (len(names) - 1))
    for _, row in _spread(snapshot, MAX_TABLE_LINES - len(running)).iterrows():
        cells = (quantity(name, float(row[name])) for name in names)
        table.add_row("front", Text(clean(str(row["trial"]))), f"{row['epoch']:g}", *cells)
    return table


def _spread(snapshot: Snapshot, lines: int) -> pd.DataFrame:
    """Return at most `lines` points of the front, evenly spread, both ends included."""
    if snapshot.front.empty or lines <= 0:
        return snapshot.front.iloc[:0]
    rows = ordered(snapshot.front, snapshot.objectives)
    count = min(lines, len(rows))
    return rows.iloc[[round(place * (len(rows) - 1) / max(1, count - 1)) for place in range(count)]]


def _encodable(text: str, console: Console) -> str:
    return text.encode(console.encoding, "replace").decode(console.encoding)

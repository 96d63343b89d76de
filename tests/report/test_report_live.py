"""The live view: one area on a terminal, few lines elsewhere, silence on request."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_sweeps import TableSweep, empty_sweep
from rich.console import Console

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.report.live import MAX_TABLE_LINES, LiveView, PlainView, RichView, Snapshot, live_area


def console(*, is_terminal: bool = False, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)
    return Console(file=file, force_terminal=is_terminal, width=80, color_system=None, _environ={"TERM": "xterm"})


def written(to: Console) -> str:
    return to.file.buffer.getvalue().decode(to.file.encoding)  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def snapshot(digits: TableSweep) -> Snapshot:
    return Snapshot(
        name="digits",
        elapsed_seconds=75.0,
        n_finished=12,
        n_running=2,
        n_failed=1,
        n_total=24,
        spend_usd=0.00345,
        front=digits.front(),
        objectives=digits.objectives,
        budget=(("trials", 12, 24, "trials"), ("cost", 0.00345, 0.005, "usd"), ("GPU-hours", 0, None, "h")),
        running=(("t013", 3, 12, 0.95), ("t014", 0, 12, None)),
        eta_seconds=61.0,
        gangs="2 gangs: 1 busy, 1 starting",
    )


@pytest.mark.parametrize(
    ("mode", "is_terminal", "kind"),
    [
        ("auto", True, RichView),
        ("auto", False, PlainView),
        ("rich", True, RichView),
        ("plain", True, PlainView),
        ("none", True, LiveView),
    ],
)
def test_auto_follows_the_terminal(mode: str, is_terminal: bool, kind: type[LiveView]) -> None:
    view = LiveView.choose(console(is_terminal=is_terminal), mode)  # type: ignore[arg-type]
    view.close()
    assert type(view) is kind


def test_an_unknown_mode_names_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match="'loud'; it can be auto, rich, plain or none"):
        LiveView.choose(console(), "loud")  # type: ignore[arg-type]


def test_nothing_is_written_in_mode_none(snapshot: Snapshot) -> None:
    to = console(is_terminal=True)
    view = LiveView.choose(to, "none")
    view.update(snapshot)
    view.event("trial t001 finished")
    view.close("done")
    assert written(to) == ""


def test_plain_lines_are_events_and_one_summary_a_minute(snapshot: Snapshot) -> None:
    to = console()
    view = LiveView.choose(to, "plain")
    for second in range(0, 150, 5):
        view.update(replace(snapshot, elapsed_seconds=float(second)))
    view.event("trial t001 finished: accuracy 0.97")
    view.close()
    lines = written(to).splitlines()
    assert [line.startswith("digits: 12/24 finished") for line in lines] == [True, True, True, False]
    assert lines[-1] == "trial t001 finished: accuracy 0.97"


def test_plain_lines_are_safe_on_an_ascii_stream_and_against_forged_lines() -> None:
    to = console(encoding="ascii")
    view = LiveView.choose(to, "plain")
    view.event("trial é\nerror: forged \x1b[2J [red]x")
    assert written(to).splitlines() == ["trial ??error: forged ?[2J [red]x"]


def test_live_area_shows_progress_running_trials_and_the_front_in_few_lines(snapshot: Snapshot) -> None:
    to = console()
    to.print(live_area(snapshot))
    text = written(to)
    for part in ("digits: 12/24 finished", "12 of 24 trials", "$0.00345 of $0.00500", "3/12", "2 gangs: 1 busy"):
        assert part in text
    assert "GPU-hours" not in text
    lines = [line for line in text.splitlines() if line.startswith(("running", "front"))]
    assert len(lines) == MAX_TABLE_LINES
    best = snapshot.front["accuracy"].max()
    assert f"{best:.4f}" in lines[-1]


def test_many_running_trials_leave_room_for_the_front(snapshot: Snapshot) -> None:
    to = console(encoding="ascii")
    running = tuple((f"t{number}", 1, 12, None) for number in range(50))
    to.print(live_area(replace(snapshot, running=running)))
    starts = [line.split()[0] for line in written(to).splitlines() if line.startswith(("running", "front"))]
    assert starts.count("running") == starts.count("front") == MAX_TABLE_LINES // 2


def test_live_area_before_the_first_report(snapshot: Snapshot) -> None:
    to = console()
    to.print(live_area(replace(snapshot, front=empty_sweep().front(), running=(), eta_seconds=None)))
    assert "front 0" in written(to)


def test_rich_view_prints_events_above_and_the_final_block_last(snapshot: Snapshot) -> None:
    to = console(is_terminal=True)
    view = LiveView.choose(to, "rich")
    view.update(snapshot)
    view.event("trial t001 finished")
    view.close("the end")
    text = written(to)
    assert "trial t001 finished" in text
    assert text.rstrip().endswith("the end")

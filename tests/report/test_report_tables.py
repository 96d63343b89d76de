"""Tables on a terminal: what they say, at any width, without colour, without Unicode."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from report_sweeps import TableSweep, digits_sweep, empty_sweep
from rich.console import Console, RenderableType

from muse_spark_ray.pareto import front
from muse_spark_ray.report.rows import candidates
from muse_spark_ray.report.settings import differing_settings
from muse_spark_ray.report.tables import cost_by_phase_table, front_table, status_panel, sweeps_table, trial_view


def printed(renderable: RenderableType, *, width: int = 120, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    Console(file=file, width=width, no_color=True).print(renderable)
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding)


def front_text(sweep: TableSweep, *, width: int = 120, encoding: str = "utf-8") -> str:
    found, configs = sweep.front(), {trial: sweep.config_of(trial) for trial in sweep.trials()["trial"]}
    table = front_table(
        found,
        sweep.objectives,
        differing=differing_settings(configs.values()),
        configs=configs,
        n_dominated=len(candidates(sweep.points(), found)) - len(found),
        hypervolume=sweep.hypervolume(),
    )
    return printed(table, width=width, encoding=encoding)


def line_of(text: str, *parts: str) -> str:
    return next(line for line in text.splitlines() if all(part in line for part in parts))


def test_front_names_the_knee_the_ties_and_what_was_left_out() -> None:
    rows = [("a", 1, 0.90, 1.0), ("b", 1, 0.96, 2.0), ("c", 2, 0.96, 2.0), ("d", 3, 0.97, 9.0), ("e", 1, 0.5, 9.0)]
    points = pd.DataFrame([*rows, ("f", 1, float("nan"), 1.0)], columns=["trial", "epoch", "accuracy", "cost_usd"])
    objectives = {"accuracy": "max", "cost_usd": "min"}
    found = front(points, objectives)  # type: ignore[arg-type]
    text = printed(front_table(found, objectives, differing=[], configs={}, n_dominated=1, hypervolume=0.5))
    assert "0.9600  $2.00  knee, tie" in " ".join(line_of(text, "b").split("   "))
    assert line_of(text, " c ").rstrip().endswith("tie")
    assert "knee" not in line_of(text, "0.9000") + line_of(text, "0.9700")
    assert "4 on the front · 1 dominated · 1 with NaN (excluded) · hypervolume 0.5" in text
    assert "infinite" not in text


def test_front_is_ordered_by_cost_and_shows_settings_that_differ(digits: TableSweep) -> None:
    text = front_text(digits, width=160)
    assert "lr" in text
    assert "weight_decay" in text
    assert "batch_size" in text
    assert "epochs" not in text.splitlines()[1]
    best = digits.front()["accuracy"].max()
    assert f"{best:.4f}" in text.splitlines()[-3] + text.splitlines()[-4]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_narrow_front_drops_settings_and_says_so(digits: TableSweep, width: int) -> None:
    text = front_text(digits, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    if width == 80:
        assert "left out at this width:" in text
    assert "knee" in text
    assert "$6.77e-05" in text


def test_front_of_a_sweep_without_points_says_why() -> None:
    text = front_text(empty_sweep())
    assert "No point is on the front yet" in text


def test_every_table_prints_on_an_ascii_terminal(digits: TableSweep) -> None:
    totals = digits.totals()
    front_text(digits, encoding="ascii")
    parts = [status_panel("digits", digits.status()), sweeps_table([{**digits.status(), "name": "digits"}])]
    parts += [sweeps_table([]), cost_by_phase_table(totals.seconds_by_phase, totals.usd_by_phase)]
    for part in [*parts, view(digits, "t013")]:
        assert printed(part, width=80, encoding="ascii")


def view(sweep: TableSweep, trial: str, *, error: str | None = None) -> RenderableType:
    totals, points = sweep.totals(), sweep.points()
    return trial_view(
        trial,
        sweep.config_of(trial),
        points[points["trial"] == trial],
        objectives=sweep.objectives,
        seconds_by_phase=totals.seconds_by_phase,
        usd_by_phase=totals.usd_by_phase,
        checkpoint="/store/digits/t013",
        error=error,
    )


def test_trial_view_has_config_curve_cost_checkpoint_and_error(digits: TableSweep) -> None:
    text = printed(view(digits, "t013", error="broken\x1b[2J"))
    for part in (
        "optimizer:\n",
        "  name: sgd",
        "▁",
        "epoch",
        "train",
        "total",
        "/store/digits/t013",
        "failed: broken?[2J",
    ):
        assert part in text


def test_cost_shares_add_up_and_the_dearest_comes_first() -> None:
    text = printed(cost_by_phase_table({"start": 5.0, "train": 30.0}, {"start": 0.25, "train": 0.75}))
    lines = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert lines.index("train") < lines.index("start") < lines.index("total")
    assert "75%" in text
    assert "25%" in text
    assert lines[-1] == "goodput"
    assert "85.7%" in text.splitlines()[-1] + text.splitlines()[-2]
    assert "$1.00" in text
    assert "35.0 s" in text


def test_phases_without_a_price_are_shared_by_time() -> None:
    text = printed(cost_by_phase_table({"train": 3.0, "idle": 1.0}, {}))
    assert "75%" in text
    assert "$0" in text


def test_status_shows_spend_against_budget(digits: TableSweep) -> None:
    text = printed(status_panel("digits", digits.status()))
    assert "22 finished, 2 failed of 24" in text
    assert "of $0.00500" in text


def test_a_name_with_markup_or_control_characters_is_shown_as_it_is(digits: TableSweep) -> None:
    text = printed(sweeps_table([{**digits.status(), "name": "[red]x\x1b[31m"}]))
    assert "[red]x?[31m" in text


def test_long_curves_are_thinned_with_the_last_epoch_kept() -> None:
    sweep = digits_sweep(n_trials=1, n_failed=0)
    rows = pd.concat([sweep.points_table.assign(epoch=lambda t, k=k: t["epoch"] + 12 * k) for k in range(10)])
    sweep.points_table = rows
    text = printed(view(sweep, "t000"))
    assert "  120 " in text
    assert sum(line.strip().split(" ")[0].isdigit() for line in text.splitlines()) <= 14

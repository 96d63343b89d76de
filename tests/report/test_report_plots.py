"""What the plots draw: directions, caps, logarithms, names."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from report_sweeps import TableSweep, empty_sweep

from muse_spark_ray.pareto import Direction, front
from muse_spark_ray.report import plots
from muse_spark_ray.report.difficulty import difficulty_plot
from muse_spark_ray.report.parallel import parallel_plot, scale
from muse_spark_ray.report.settings import differing_settings
from muse_spark_ray.report.theme import log_ticks


def trace(figure: object, name: str) -> object:
    return next(one for one in figure.data if one.name == name)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("objectives", "x", "y", "shape"),
    [
        ({"accuracy": "max", "cost_usd": "min"}, "cost_usd", "accuracy", "hv"),
        ({"loss": "min", "cost_usd": "min"}, "loss", "cost_usd", "hv"),
        ({"accuracy": "max", "speed": "max"}, "accuracy", "speed", "vh"),
    ],
)
def test_the_staircase_follows_the_directions(objectives: dict[str, Direction], x: str, y: str, shape: str) -> None:
    rng = np.random.default_rng(1)
    points = pd.DataFrame(rng.random((50, 4)) + 0.1, columns=["accuracy", "cost_usd", "loss", "speed"])
    points = points.assign(trial=[f"t{number}" for number in range(50)], epoch=1)
    found = front(points, objectives)
    line = trace(plots.front_plot(points, found, objectives), "front")
    ordered = found.sort_values(x)
    assert line.line.shape == shape
    assert list(line.x) == ordered[x].tolist()
    assert list(line.y) == ordered[y].tolist()


def test_every_point_is_drawn_once_and_failed_or_broken_ones_are_not(digits: TableSweep) -> None:
    points = digits.points()
    points.loc[0, "accuracy"] = math.nan
    found = front(points, digits.objectives)
    figure = plots.front_plot(points, found, digits.objectives)
    n_failed = int((points["state"] == "failed").sum())
    drawn = len(trace(figure, "dominated").x) + len(trace(figure, "front").x)
    assert drawn == len(points) - n_failed - 1
    assert f"{drawn} points of 22 trials, {len(found)} on the front" in figure.layout.title.subtitle.text


def test_dominated_points_are_capped_and_the_front_is_kept_whole() -> None:
    costs = np.geomspace(1e-4, 1.0, 20_000)
    table = {"trial": "a", "epoch": np.arange(20_000), "cost_usd": costs, "accuracy": 0.5}
    points = pd.concat([pd.DataFrame(table), pd.DataFrame(table).assign(accuracy=np.linspace(0.6, 0.9, 20_000))])
    points = points.reset_index(drop=True)
    objectives: dict[str, Direction] = {"accuracy": "max", "cost_usd": "min"}
    figure = plots.front_plot(points, front(points, objectives), objectives)
    assert len(trace(figure, "dominated").x) == plots.MAX_DOTS
    assert len(trace(figure, "front").x) == 20_000
    assert "5,000 of 20,000 dominated drawn" in figure.layout.title.subtitle.text


@pytest.mark.parametrize(("high", "kind"), [(9.0, "linear"), (11.0, "log")])
def test_the_cost_axis_is_logarithmic_above_a_decade(high: float, kind: str) -> None:
    points = pd.DataFrame({"trial": ["a", "b"], "epoch": 1, "accuracy": [0.5, 0.9], "cost_usd": [1.0, high]})
    objectives: dict[str, Direction] = {"accuracy": "max", "cost_usd": "min"}
    assert plots.front_plot(points, front(points, objectives), objectives).layout.xaxis.type == kind


def test_log_ticks_are_inside_and_at_least_two() -> None:
    assert log_ticks(8e-6, 6e-4) == [1e-5, 3e-5, 1e-4, 3e-4]
    assert log_ticks(1.0, 1e6) == [10.0**power for power in range(7)]


def test_a_third_objective_is_the_colour_and_there_is_no_staircase(digits: TableSweep) -> None:
    points = digits.points().assign(loss=lambda table: 1 - table["accuracy"] + 0.01 * table["epoch"])
    objectives: dict[str, Direction] = {"accuracy": "max", "cost_usd": "min", "loss": "min"}
    line = trace(plots.front_plot(points, front(points, objectives), objectives), "front")
    assert line.mode == "markers"
    assert line.marker.colorbar.title.text == "loss"


def test_one_objective_is_drawn_against_cost(digits: TableSweep) -> None:
    objectives: dict[str, Direction] = {"accuracy": "max"}
    figure = plots.front_plot(digits.points(), front(digits.points(), objectives), objectives)
    assert figure.layout.xaxis.title.text.startswith("cost (USD)")


def test_hover_shows_literal_names_and_settings() -> None:
    points = pd.DataFrame({"trial": ["<b>x</b>"], "epoch": 2, "accuracy": 0.5, "cost_usd": 1.0})
    objectives: dict[str, Direction] = {"accuracy": "max", "cost_usd": "min"}
    configs = {"<b>x</b>": {"lr": 0.1, "name": "</script>"}}
    figure = plots.front_plot(points, front(points, objectives), objectives, differing=["lr", "name"], configs=configs)
    text = trace(figure, "front").text[0]
    assert text.startswith(
        "<b>trial &lt;b&gt;x&lt;/b&gt;</b>, epoch 2<br>accuracy: 0.5000<br>cost (USD): $1.00<br>lr: 0.1"
    )
    assert "&lt;/script&gt;" in text


def test_spend_counts_every_trial_in_the_order_of_reports() -> None:
    points = pd.DataFrame({"trial": ["a", "a", "b"], "epoch": [1, 2, 1], "cost_usd": [1.0, 3.0, 10.0]}, index=[7, 8, 9])
    ends = pd.Series([1.0, 3.0, 2.0], index=[7, 8, 9])
    assert plots.spend_so_far(points, ends).to_dict() == {7: 1.0, 9: 11.0, 8: 13.0}


def test_phases_are_drawn_dearest_on_top() -> None:
    figure = plots.phase_plot({"start": 5.0, "train": 30.0}, {"start": 0.25, "train": 0.75})
    assert list(figure.data[0].x) == [0.25, 0.75]
    assert figure.data[0].text[1] == "$0.750 · 75%"
    assert "USD" in figure.layout.xaxis.title.text


def test_phases_without_prices_are_drawn_in_seconds() -> None:
    figure = plots.phase_plot({"train": 30.0}, {})
    assert list(figure.data[0].x) == [30.0]
    assert figure.layout.xaxis.title.text == "time (s)"


def test_curves_have_one_bold_line_per_front_trial_and_switch_to_cost(digits: TableSweep) -> None:
    found = digits.front()
    figure = plots.curves_plot(digits.points(), found, digits.objectives)
    bold = [one for one in figure.data if one.name.startswith("trial ")]
    assert len(bold) == found["trial"].nunique()
    epochs, cost = figure.layout.updatemenus[0].buttons
    assert len(epochs.args[0]["x"]) == len(cost.args[0]["x"]) == len(figure.data)
    assert cost.args[1]["xaxis.title.text"].startswith("cost (USD)")


def test_parallel_has_one_line_per_trial_and_one_axis_per_column(digits: TableSweep) -> None:
    configs = {trial: digits.config_of(trial) for trial in digits.trials()["trial"]}
    differing = differing_settings(configs.values())
    shown = digits.points()[digits.points()["state"] != "failed"]
    figure = parallel_plot(shown, digits.front(), digits.objectives, differing=differing, configs=configs)
    lines = [one for one in figure.data if one.mode == "lines"]
    assert len(lines) == 22
    assert {len(one.x) for one in lines} == {len(differing) + 2}
    titles = [note.text for note in figure.layout.annotations if note.text.startswith("<b>")]
    assert titles[-2:] == ["<b>accuracy</b>", "<b>cost (USD)</b>"]


def test_scale_is_logarithmic_over_a_decade_and_puts_absent_values_below() -> None:
    assert scale("lr", [0.001, 0.01, 0.1]).places == pytest.approx((0.0, 0.5, 1.0))
    assert scale("width", [0, 5, 10]).places == pytest.approx((0.0, 0.5, 1.0))
    absent = scale("decay", [None, 1.0, 2.0])
    assert absent.places[0] == 0.0
    assert absent.places[1] > 0
    assert absent.ticks[0] == (0.0, "none")
    assert scale("name", ["sgd", "adamw", None]).places == (1.0, 0.5, 0.0)


def test_no_plot_fails_without_points() -> None:
    sweep = empty_sweep()
    found, objectives = sweep.front(), sweep.objectives
    figures = [
        plots.front_plot(sweep.points(), found, objectives),
        plots.hypervolume_plot(pd.DataFrame({"spend_usd": [], "hypervolume": []}), reference={}),
        plots.phase_plot({}, {}),
        plots.curves_plot(sweep.points(), found, objectives),
        parallel_plot(sweep.points(), found, objectives, differing=[], configs={}),
    ]
    for figure in figures:
        assert not figure.data
        assert json.loads(figure.to_json())["layout"]["annotations"][0]["text"]


def _difficult(trials: tuple[str, ...]) -> pd.DataFrame:
    rows = []
    for trial in trials:
        for epoch in range(1, 4):
            shares = {
                "difficulty_from_0": 0.2 * epoch,
                "difficulty_from_0.1": 0.3,
                "difficulty_from_1": 0.7 - 0.2 * epoch,
            }
            rows.append({"trial": trial, "epoch": epoch, "selected_share": 0.5, **shares})
    return pd.DataFrame([*rows, {"trial": "plain", "epoch": 1}])


def test_the_difficulty_of_the_samples_over_time() -> None:
    found = pd.DataFrame({"trial": ["t2", "t1", "plain"], "epoch": [1, 3, 1], "accuracy": [0.8, 0.9, 0.95]})
    figure = difficulty_plot(_difficult(("t1", "t2")), found, {"accuracy": "max"})
    (heat,) = figure.data
    assert "trial t1" in figure.layout.title.subtitle.text
    assert "50% of them" in figure.layout.title.subtitle.text
    assert list(heat.x) == [1, 2, 3]
    assert list(heat.y) == ["0 – 0.1", "0.1 – 1", "1 and more"]
    assert np.allclose(np.asarray(heat.z), [[0.2, 0.4, 0.6], [0.3, 0.3, 0.3], [0.5, 0.3, 0.1]])


def test_without_adaptive_sampling_there_is_no_difficulty() -> None:
    table = pd.DataFrame({"trial": ["a"], "epoch": [1], "accuracy": [0.5]})
    assert not difficulty_plot(table, table, {"accuracy": "max"}).data
    assert not difficulty_plot(_difficult(()), table, {"accuracy": "max"}).data

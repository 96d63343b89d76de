"""A whole small sweep through the command line, and every question that can be asked of it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import SPEC, Program

from muse_spark_ray import Sweep

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def swept(program: Program) -> subprocess.CompletedProcess[str]:
    program.write("first.yaml", SPEC.format(name="first"))
    return program("sweep", "first.yaml", "--progress", "plain")


def test_the_sweep_ends_well_and_says_what_to_do_next(program: Program, swept: Any) -> None:
    assert swept.returncode == 0, swept.stderr
    assert "stop at" in swept.stdout
    assert "t0000 finished after 3 epochs, accuracy" in swept.stderr
    assert "muse-spark pareto first" in swept.stderr
    report = program.store / "first" / "report.html"
    assert "<title>first" in report.read_text()


def test_pareto_as_json_has_the_agreed_form(program: Program, swept: Any) -> None:
    document = program.json("pareto", "first")
    assert set(document) == {"sweep", "objectives", "points", "excluded", "hypervolume", "reference"}
    assert document["objectives"] == {"accuracy": "max", "cost_usd": "min"}
    assert {"nan", "inf", "failed", "infeasible"} <= set(document["excluded"])
    points = document["points"]
    assert points
    for point in points:
        assert {"trial", "epoch", "accuracy", "cost_usd", "tie", "config"} == set(point)
        assert isinstance(point["tie"], bool)
        assert point["config"]["optimizer"]["lr"] > 0
    costs = [point["cost_usd"] for point in points]
    assert costs == sorted(costs)
    accuracies = [point["accuracy"] for point in points]
    assert accuracies == sorted(accuracies)


def test_pareto_in_the_other_formats(program: Program, swept: Any) -> None:
    assert yaml.safe_load(program("pareto", "first", "--format", "yaml").stdout)["sweep"] == "first"
    rows = list(csv.DictReader(io.StringIO(program("pareto", "first", "--format", "csv").stdout)))
    assert float(rows[0]["accuracy"]) > 0
    assert "config.optimizer.lr" in rows[0]
    assert "t000" in program("pareto", "first").stdout


def test_bounds_that_nothing_meets_name_the_closest(program: Program, swept: Any) -> None:
    done = program("pareto", "first", "--min-accuracy", "0.9999", "--max-cost-usd", "1e-12")
    assert done.returncode == 0
    assert "trial t000" in done.stderr
    refused = program("best", "first", "--min-accuracy", "0.9999")
    assert refused.returncode == 1
    assert "accuracy" in refused.stderr


def test_best_gives_a_config_that_train_runs_as_it_is(program: Program, swept: Any) -> None:
    found = program("best", "first", "--min-accuracy", "0.3", "--format", "yaml")
    assert found.returncode == 0
    program.write("train.yaml", found.stdout)
    point = program.json("best", "first", "--min-accuracy", "0.3")
    done = program("train", "--config", "train.yaml", "--json", "--set", "checkpoint.save_dir=trained")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["epochs"] == point["epoch"]
    # The same seed, data and config on the same machine: the very same accuracy.
    assert report["history"][-1]["accuracy"] == pytest.approx(point["accuracy"])
    assert (
        json.loads((program.folder / "trained" / "report.json").read_text())["best_val_acc"] == report["best_val_acc"]
    )


def test_best_by_cost_is_the_most_accurate_within_it(program: Program, swept: Any) -> None:
    points = Sweep.open(program.store, "first").points()
    limit = float(points["cost_usd"].median())
    within = points[points["cost_usd"] <= limit]
    assert program.json("best", "first", "--max-cost-usd", str(limit))["accuracy"] == within["accuracy"].max()


def test_status_list_and_show(program: Program, swept: Any) -> None:
    status = program.json("status", "first")
    assert status["state"] == "finished"
    assert status["trials"] == {"finished": 4, "running": 0, "failed": 0, "pending": 0}
    assert status["spend"]["usd"] > 0
    assert status["spend"]["cpu_core_hours"] > 0
    assert status["spend"]["gpu_hours"] == 0
    assert status["spend"]["wall_seconds"] > 0
    assert status["budget"] == {"trials": 4}
    assert "first" in program("list").stdout
    shown = program.json("show", "first", "t0001")
    assert [row["epoch"] for row in shown["curve"]] == [1, 2, 3]
    assert {"train", "evaluate"} <= set(shown["cost_by_phase"])
    assert Path(shown["checkpoint"], "state.pt").is_file()
    assert "lr:" in program("show", "first", "t0001").stdout


def test_the_front_as_a_picture_and_the_report_again(program: Program, swept: Any) -> None:
    assert program("pareto", "first", "--plot", "front.html").returncode == 0
    assert "plotly" in (program.folder / "front.html").read_text()
    assert program("report", "first", "-o", "again.html").returncode == 0
    assert (program.folder / "again.html").stat().st_size > 100_000


def test_time_held_is_time_booked_c4(program: Program, swept: Any) -> None:
    intervals = Sweep.open(program.store, "first").intervals()
    held = 0.0
    booked = float(((intervals["end"] - intervals["start"]) * intervals["amount"]).sum())
    gangs = intervals[intervals["device"] != ""]["device"].unique()
    starts = {gang: intervals.loc[intervals["device"] == gang, "start"].min() for gang in gangs}
    ends = {gang: intervals.loc[intervals["device"] == gang, "end"].max() for gang in gangs}
    held = sum(ends[gang] - starts[gang] for gang in gangs)
    assert len(gangs) >= 1
    assert booked == pytest.approx(held, rel=0.01)


def test_a_used_name_is_refused_and_a_resumed_sweep_stays_at_its_total_sweep_3(program: Program, swept: Any) -> None:
    before = program.json("pareto", "first")
    again = program("sweep", "first.yaml")
    assert again.returncode == 2
    assert "--resume first" in again.stderr
    resumed = program("sweep", "--resume", "first", "--progress", "none")
    assert resumed.returncode == 0, resumed.stderr
    assert program.json("status", "first")["trials"]["finished"] == 4
    assert program.json("pareto", "first")["points"] == before["points"]


def test_the_query_path_is_light(program: Program, swept: Any) -> None:
    code = "import sys; from muse_spark_ray import Sweep; Sweep.open(sys.argv[1], 'first').front_document(); print(*sys.modules)"
    done = subprocess.run(
        [*program.command()[:1], "-c", code, str(program.store)],
        env=program.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    loaded = set(done.stdout.split())
    assert "pandas" in loaded
    assert not loaded & {"torch", "ray", "optuna"}


def test_a_stop_for_a_sweep_that_is_over_changes_nothing(program: Program, swept: Any) -> None:
    done = program("stop", "first")
    assert done.returncode == 0
    assert "not running" in done.stderr
    assert time.time() - Sweep.open(program.store, "first").state()["heartbeat"] > 0

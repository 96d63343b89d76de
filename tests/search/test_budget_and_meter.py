"""When a sweep ends, what it has used, and what is written of a trial."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from muse_spark_ray import Sweep
from muse_spark_ray.cost import Interval, Phase, PriceBook
from muse_spark_ray.ledger import Store, create_sweep
from muse_spark_ray.search.budget import FAILURES_WITHOUT_A_SUCCESS, Spent, exhausted, hopeless
from muse_spark_ray.search.events import Timeline
from muse_spark_ray.search.meter import Meter
from muse_spark_ray.search.recorder import Recorder
from muse_spark_ray.search.trials import Trial
from muse_spark_ray.spec.sweep import Budget

PRICES = PriceBook.load().usd_per_hour("cpu")


def spent(**changes: Any) -> Spent:
    return Spent(**{"cost_usd": 1.0, "gpu_hours": 1.0, "wall_seconds": 60.0, "finished": 3, "failed": 0, **changes})


@pytest.mark.parametrize(
    ("budget", "used", "reason"),
    [
        ({"cost_usd": 1.0}, {}, "budget.cost_usd of 1 is reached (1 used)"),
        ({"cost_usd": 1.1}, {}, None),
        ({"cost_usd": 0.5}, {"cost_usd": None}, None),
        ({"gpu_hours": 1}, {"gpu_hours": 1.5}, "budget.gpu_hours of 1 is reached (1.5 used)"),
        ({"wall_seconds": 61}, {}, None),
        ({"cost_usd": 5, "wall_seconds": 60}, {}, "budget.wall_seconds of 60 is reached (60 used)"),
        ({"trials": 3}, {}, None),
    ],
)
def test_whichever_limit_comes_first_ends_the_sweep(
    budget: dict[str, Any], used: dict[str, Any], reason: str | None
) -> None:
    assert exhausted(Budget(**budget), spent(**used)) == reason


@pytest.mark.parametrize(
    ("max_failed", "finished", "failed", "is_hopeless"),
    [
        (3, 5, 3, True),
        (3, 5, 2, False),
        (None, 0, FAILURES_WITHOUT_A_SUCCESS, True),
        (None, 0, FAILURES_WITHOUT_A_SUCCESS - 1, False),
        (None, 1, 500, False),
        (50, 0, 20, False),
    ],
)
def test_too_many_failures_end_it(max_failed: int | None, finished: int, failed: int, is_hopeless: bool) -> None:
    budget = Budget(trials=1000, max_failed=max_failed)
    assert (hopeless(budget, spent(finished=finished, failed=failed)) is not None) == is_hopeless


def test_the_meter_books_trials_gangs_and_what_has_no_price() -> None:
    meter = Meter(PriceBook.load())
    meter.add(
        [
            Interval("t0", "cpu", 2.0, 0.0, 1800.0, Phase.train),
            Interval("t0", "cpu", 2.0, 1800.0, 2000.0, Phase.wait),
            Interval("", "cpu", 2.0, 2000.0, 5600.0, Phase.idle),
        ]
    )
    assert PRICES is not None
    assert meter.trials["t0"].cpu_core_hours == pytest.approx(1.0)
    assert meter.trials["t0"].hours == pytest.approx(0.5)
    assert meter.trials["t0"].cost_usd == pytest.approx(PRICES)
    assert meter.sweep.cpu_core_hours == pytest.approx(3.0)
    assert meter.sweep.cost_usd == pytest.approx(3 * PRICES)
    meter.add([Interval("t1", "gpu:FUTURE-9000", 1.0, 0.0, 3600.0, Phase.train)])
    assert meter.trials["t1"].gpu_hours == pytest.approx(1.0)
    assert meter.trials["t1"].cost_usd is None
    assert meter.sweep.cost_usd is None
    assert meter.trials["t0"].cost_usd == pytest.approx(PRICES)


def test_every_second_of_a_lease_is_in_one_interval() -> None:
    line = Timeline("t0", 0, {"cpu": 1.0})
    line.begin(100.0)
    parts = line.take({"spans": [("start", 100.5, 101.0), ("train", 101.0, 103.0)], "resources": {"cpu": 2.0}})
    parts += line.take({"spans": [("evaluate", 103.25, 104.0)]})
    assert [part.seconds for part in line.not_booked(104.5)] == [0.5]
    parts += line.finish(105.0, "overhead")
    assert line.not_booked(105.0) == []
    assert parts[0].start == 100.0
    assert parts[-1].end == 105.0
    assert all(left.end == right.start for left, right in pairwise(parts))
    assert {part.amount for part in parts} == {2.0}


def test_spans_that_go_back_in_time_are_booked_once() -> None:
    line = Timeline("t0", 0, {"cpu": 1.0})
    line.begin(100.0)
    parts = line.take({"spans": [("train", 100.0, 103.0), ("evaluate", 102.0, 102.5), ("train", 102.5, 104.0)]})
    assert sum(part.seconds for part in parts) == pytest.approx(4.0)


# ---------------------------------------------------------------- the recorder


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    store = Store.open(tmp_path)
    create_sweep(store, "s", spec="name: s\n", prices=PriceBook.load().to_dict())
    return Recorder(store, "s", PriceBook.load(), intervals=[], points=[])


def _trial(*, attempt: int = 0, epoch: int = 0) -> Trial:
    return Trial("t0000", 0, {"optimizer.lr": 0.1}, "{}", "hash", 6, attempt, epoch=epoch)


def _epoch(number: int, at: float) -> dict[str, Any]:
    spans = [("train", at - 1.0, at)]
    payload = {"epoch": number, "metrics": {"accuracy": number / 10}, "spans": spans, "ended": at}
    return {"kind": "Reported", "payload": {**payload, "resources": {"cpu": 1.0}}}


def test_epochs_that_only_a_checkpoint_remembers_are_written_on_resume_s3(recorder: Recorder, tmp_path: Path) -> None:
    """The driver died after epoch 2 was written; the worker had saved 4."""
    trial, line = _trial(), Timeline("t0000", 0, {"cpu": 1.0})
    recorder.new_trial(trial, seed=0)
    recorder.take([{"kind": "Started", "at": 10.0}, _epoch(1, 11.0), _epoch(2, 12.0)], trial, line, ending=None)
    recorder.lost("t0000", attempt=0, start=12.0, end=14.5, held={"cpu": 1.0})
    again, line = _trial(attempt=1, epoch=2), Timeline("t0000", 1, {"cpu": 1.0})
    history = [{"accuracy": epoch / 10} for epoch in range(1, 5)]
    restored = {"restored": history, "spans": [("restart", 20.0, 21.0)], "ended": 21.0, "resources": {"cpu": 1.0}}
    events = [{"kind": "Started", "at": 20.0}, {"kind": "Reported", "payload": restored}, _epoch(5, 22.0)]
    recorder.take(events, again, line, ending=None)
    sweep = Sweep.open(tmp_path, "s")
    epochs = sweep.epochs()
    assert list(epochs["epoch"]) == [1, 2, 3, 4, 5]
    assert list(epochs["accuracy"]) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert list(epochs["attempt"]) == [0, 0, 1, 1, 1]
    # 2 s of training, 2.5 s lost, 1 s of restart, 1 s of training.
    assert sweep.totals().cpu_core_hours * 3600 == pytest.approx(6.5)
    assert list(sweep.points()["cpu_core_hours"] * 3600) == pytest.approx([1.0, 2.0, 5.5, 5.5, 6.5])


def test_a_repeated_epoch_replaces_its_point(recorder: Recorder) -> None:
    trial, line = _trial(), Timeline("t0000", 0, {"cpu": 1.0})
    recorder.take([{"kind": "Started", "at": 10.0}, _epoch(1, 11.0), _epoch(1, 12.0)], trial, line, ending=None)
    assert [(point["epoch"], point["hours"] * 3600) for point in recorder.points] == [(1, pytest.approx(2.0))]
    recorder.drop_points(trial)
    assert recorder.points == []

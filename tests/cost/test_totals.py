from __future__ import annotations

import math
import random
import time
from dataclasses import asdict

import pandas as pd
import pytest

from muse_spark_ray.cost import Interval, PriceBook, goodput, gpu_fraction, running_totals, totals, union_seconds
from muse_spark_ray.cost.interval import resource_kind
from muse_spark_ray.errors import DataError

PHASES = ["train", "evaluate", "wait", "idle", "lost", "start"]
RESOURCES = ["cpu", "host_cpu", "gpu:H100", "gpu:T4"]
BOOK = PriceBook({"cpu": 0.04, "gpu:H100": [(0, 2.0), (300, 3.0), (450, 1.0)], "gpu:T4": 0.5})


def table_of(intervals: list[Interval]) -> pd.DataFrame:
    return pd.DataFrame([asdict(each) for each in intervals])


def test_preempted_trial_that_waits_and_goes_on_with_one_gpu():
    """C1."""
    result = totals(
        [
            Interval("t", "gpu", 2, 0, 100, "train", 0),
            Interval("t", "gpu", 2, 100, 160, "wait", 0),
            Interval("t", "gpu", 1, 160, 220, "train", 1),
        ],
        PriceBook({"gpu": 2.0}),
    )
    assert result.gpu_seconds == 260
    assert result.usd == pytest.approx(0.144444, abs=1e-6)
    assert result.seconds_by_phase == {"train": 160, "wait": 60}
    assert result.held_seconds_by_resource == {"gpu": 260}
    assert result.resource_seconds_by_phase == {"train": {"gpu": 260}}
    assert result.unpriced == ()


def test_all_attempts_count_and_queues_do_not():
    """COST-1: (gpus, queue s, run s, $/GPU-h) of three attempts."""
    intervals, schedule, now = [], [], 0.0
    for attempt, (gpus, queued, run, usd) in enumerate([(2, 600, 1800, 2.0), (2, 300, 900, 2.0), (1, 0, 3600, 3.0)]):
        intervals.append(Interval("t", "gpu", gpus, now, now + queued, "wait", attempt))
        schedule.append((now, usd))
        intervals.append(Interval("t", "gpu", gpus, now + queued, now + queued + run, "train", attempt))
        now += queued + run
    result = totals(intervals, PriceBook({"gpu": schedule}))
    assert result.gpu_hours == pytest.approx(2.5)
    assert result.usd == pytest.approx(6.0)


def test_part_of_a_gpu_and_a_failed_trial():
    """C3."""
    result = totals([Interval("t", "gpu", 0.5, 0, 3600, "train")], PriceBook({"gpu": 2.0}))
    assert (result.gpu_hours, result.usd) == (0.5, 1.0)
    failed = [Interval("ok", "gpu", 1, 0, 100, "train"), Interval("failed", "gpu", 1, 0, 30, "lost")]
    assert totals(failed, PriceBook({"gpu": 2.0})).gpu_seconds == 130


def test_two_slices_of_one_gpu():
    """COST-4: 3/7 twice for an hour at $7."""
    slices = [Interval("t", "gpu", gpu_fraction(3), 0, 3600, "train", 0, f"MIG-{k}") for k in range(2)]
    result = totals(slices, PriceBook({"gpu": 7.0}))
    assert result.gpu_hours == pytest.approx(0.857143, abs=1e-6)
    assert result.usd == pytest.approx(6.0)


def test_rows_written_twice_count_once():
    """COST-9."""
    starts = [(0, 0), (0, 60), (0, 60), (1, 500)]
    rows = [Interval("t1", "gpu", 1, start, start + 60, "train", attempt) for attempt, start in starts]
    assert totals(rows, BOOK).gpu_seconds == 180


def test_what_has_no_price_is_said_and_the_rest_is_priced():
    result = totals(
        [
            Interval("t", "gpu:B300", 1, 0, 3600, "train"),
            Interval("t", "host_cpu", 8, 0, 3600, "train"),
            Interval("t", "cpu", 2, 0, 3600, "train"),
            Interval("t", "gpu:H200", 2, 0, 3600, "wait"),
        ],
        BOOK,
    )
    assert result.unpriced == ("gpu:B300",)
    assert result.usd == pytest.approx(0.08)
    assert result.cpu_core_hours == 10
    assert result.seconds_by_phase == {"train": 3600, "wait": 3600}


def test_nothing_costs_nothing():
    empty = totals([], BOOK)
    assert (empty.gpu_seconds, empty.usd, empty.seconds_by_phase) == (0, 0, {})
    assert totals(table_of([Interval("t", "cpu", 1, 0, 1, "train")]).iloc[:0], BOOK) == empty


def test_missing_column_is_named():
    with pytest.raises(DataError, match="'amount'"):
        totals(table_of([Interval("t", "cpu", 1, 0, 1, "train")]).drop(columns="amount"), BOOK)
    with pytest.raises(DataError, match="'end'"):
        running_totals(table_of([]), pd.DataFrame({"trial": [], "epoch": []}), BOOK)


def random_intervals(seed: int, *, count: int = 120, origin: float = 0.0) -> list[Interval]:
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        start = origin + dice.uniform(0, 500)
        found.append(
            Interval(
                f"t{dice.randrange(5)}",
                dice.choice(RESOURCES),
                dice.choice([0.5, 1, 2]),
                start,
                start + dice.choice([0, dice.uniform(0, 200)]),
                dice.choice(PHASES),
                dice.randrange(2),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(5))
def test_totals_agree_with_a_plain_loop_for_records_and_tables(seed):
    intervals = random_intervals(seed)
    result = totals(intervals, BOOK)
    assert totals(table_of(intervals), BOOK) == result
    assert result.usd == pytest.approx(sum(BOOK.usd(each) or 0 for each in intervals))
    assert sum(result.usd_by_phase.values()) == pytest.approx(result.usd)
    assert result.gpu_seconds == pytest.approx(
        sum(each.resource_seconds for each in intervals if resource_kind(each.resource) == "gpu")
    )
    for phase in PHASES:
        by_trial = [
            [(each.start, each.end) for each in intervals if each.phase == phase and each.trial == f"t{k}"]
            for k in range(5)
        ]
        assert result.seconds_by_phase[phase] == pytest.approx(sum(map(union_seconds, by_trial)))


def plain_running(intervals: list[Interval], trial: str, until: float, book: PriceBook) -> tuple[float, ...]:
    held = [each for each in intervals if each.trial == trial and each.phase not in ("wait", "idle")]
    is_known = all(book.usd(each) is not None for each in held)
    cut = [
        Interval(each.trial, each.resource, each.amount, each.start, max(each.start, min(each.end, until)), each.phase)
        for each in held
    ]
    kinds = {"gpu": 0.0, "cpu": 0.0, "host_cpu": 0.0}
    for each in cut:
        kinds[resource_kind(each.resource)] += each.resource_seconds / 3600
    hours = union_seconds((each.start, each.end) for each in cut) / 3600
    usd = sum(book.usd(each) or 0.0 for each in cut) if is_known else math.nan
    return usd, kinds["gpu"], kinds["cpu"] + kinds["host_cpu"], hours


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("origin", [0.0, 1.79e9])
def test_running_totals_agree_with_a_plain_loop(seed, origin):
    intervals = random_intervals(seed, origin=origin)
    intervals.append(Interval("t3", "gpu:B300", 1, origin + 400, origin + 500, "train"))
    schedule = [(origin + at, usd) for at, usd in [(0, 2.0), (300, 3.0), (450, 1.0)]]
    book = PriceBook({"cpu": 0.04, "gpu:H100": schedule, "gpu:T4": 0.5})
    dice = random.Random(seed)
    ends = pd.DataFrame(
        [(f"t{dice.randrange(6)}", epoch, origin + dice.uniform(-50, 800)) for epoch in range(60)],
        columns=["trial", "epoch", "end"],
        index=range(100, 160),
    )
    result = running_totals(table_of(intervals), ends, book)
    assert list(result.index) == list(ends.index)
    assert list(result.columns) == ["trial", "epoch", "cost_usd", "gpu_hours", "cpu_core_hours", "hours"]
    for got, asked in zip(result.itertuples(index=False), ends.itertuples(index=False), strict=True):
        right = plain_running(intervals, asked.trial, asked.end, book)
        assert tuple(got)[:2] == (asked.trial, asked.epoch)
        assert tuple(got)[2:] == pytest.approx(right, abs=1e-9, nan_ok=True)


def test_interval_that_runs_on_counts_in_proportion_and_a_trial_without_intervals_is_zero():
    intervals = table_of([Interval("a", "cpu", 2, 0, 100, "train"), Interval("a", "cpu", 2, 100, 200, "wait")])
    ends = pd.DataFrame({"trial": ["a", "a", "b"], "epoch": [1, 2, 1], "end": [25.0, 500.0, 9.0]})
    result = running_totals(intervals, ends, BOOK)
    assert result["cpu_core_hours"].tolist() == pytest.approx([50 / 3600, 200 / 3600, 0])
    assert result["hours"].tolist() == pytest.approx([25 / 3600, 100 / 3600, 0])
    empty = running_totals(intervals.iloc[:0], ends, BOOK)
    assert empty["cost_usd"].tolist() == [0, 0, 0]


def test_a_hundred_thousand_rows_take_well_under_a_second():
    count = 100_000
    numbers = pd.Series(range(count), dtype="float64")
    table = pd.DataFrame(
        {
            "trial": [f"t{k % 1000}" for k in range(count)],
            "resource": [RESOURCES[k % 4] for k in range(count)],
            "amount": 1.0,
            "start": 1.79e9 + numbers,
            "end": 1.79e9 + numbers + 30,
            "phase": [PHASES[k % 6] for k in range(count)],
            "attempt": 0,
            "device": "",
        }
    )
    ends = table[["trial", "end"]].assign(epoch=range(count))
    began = time.perf_counter()
    totals(table, BOOK)
    between = time.perf_counter()
    running_totals(table, ends, BOOK)
    ended = time.perf_counter()
    print(f"totals {between - began:.3f} s, running totals {ended - between:.3f} s")
    # Generous, as the machine may be shared; a loop over rows takes tens of seconds.
    assert ended - began < 4


def test_goodput_is_what_was_useful_of_what_was_paid() -> None:
    spent = {"train": 60.0, "data_wait": 5.0, "evaluate": 5.0, "lost": 20.0, "restart": 10.0, "wait": 1000.0}
    assert goodput(spent) == pytest.approx(0.7)
    assert goodput({"wait": 3.0}) is None
    assert goodput({"start": 1.0}) == 0.0

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
import pytest

from muse_spark_ray.cost import Interval, PriceBook
from muse_spark_ray.errors import ConfigError, LedgerError
from muse_spark_ray.ledger import Driver, LedgerWriter, Store, create_sweep
from muse_spark_ray.pareto import Bound
from muse_spark_ray.sweep import Sweep

SPEC = """
name: digits
objectives: {accuracy: max, hours: min}
budget: {trials: 4}
"""


def strict(document: Any) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    return json.loads(json.dumps(document, allow_nan=False), parse_constant=refuse)


def record(writer: LedgerWriter, trial: str, accuracies: list[float | None], **fields: Any) -> None:
    """A trial of one core whose epochs take an hour each."""
    writer.append(
        trials=[{"trial": trial, "state": "finished", "config": json.dumps({"lr": 0.1, "id": trial}), **fields}],
        epochs=[
            {"trial": trial, "epoch": number, "end": 3600.0 * (number + 1), "accuracy": accuracy}
            for number, accuracy in enumerate(accuracies)
        ],
        intervals=[
            Interval(trial, "cpu", 1.0, 3600.0 * number, 3600.0 * (number + 1), "train")
            for number in range(len(accuracies))
        ],
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store")
    create_sweep(store, "digits", spec=SPEC, prices=PriceBook.load().to_dict())
    return store


@pytest.fixture
def writer(store: Store) -> LedgerWriter:
    return LedgerWriter(store, "digits")


def test_every_epoch_is_a_point_with_the_cost_until_then(store: Store, writer: LedgerWriter) -> None:
    record(writer, "a", [0.5, 0.8])
    points = Sweep.open(store, "digits").points()
    assert points[["trial", "epoch", "accuracy", "state"]].values.tolist() == [
        ["a", 0, 0.5, "finished"],
        ["a", 1, 0.8, "finished"],
    ]
    assert points["hours"].tolist() == [1.0, 2.0]
    assert points["cpu_core_hours"].tolist() == [1.0, 2.0]
    assert points["cost_usd"].iloc[1] == pytest.approx(2 * points["cost_usd"].iloc[0])
    assert points["gpu_hours"].tolist() == [0.0, 0.0]


def test_front_is_ordered_by_the_first_minimised_objective(store: Store, writer: LedgerWriter) -> None:
    record(writer, "a", [0.5, 0.8, 0.8])
    record(writer, "b", [0.4, 0.8, 0.9])
    sweep = Sweep.open(store, "digits")
    front = sweep.front()
    assert front[["trial", "epoch", "tie"]].values.tolist() == [
        ["a", 0, False],
        ["a", 1, True],
        ["b", 1, True],
        ["b", 2, False],
    ]
    assert sweep.front(bounds=[Bound("accuracy", ">=", 0.85)])["trial"].tolist() == ["b"]
    assert sweep.front({"accuracy": "max"})["accuracy"].tolist() == [0.9]
    with pytest.raises(ConfigError, match="acuracy"):
        sweep.front({"acuracy": "max"})


def test_hypervolume_over_the_worst_point_and_over_a_given_one(store: Store, writer: LedgerWriter) -> None:
    record(writer, "a", [0.5, 0.75, 1.0])
    sweep = Sweep.open(store, "digits")
    assert sweep.reference() == {"accuracy": 0.5, "hours": 3.0}
    assert sweep.hypervolume() == pytest.approx(0.25 * 1)
    assert sweep.hypervolume(reference={"accuracy": 0.0, "hours": 4.0}) == pytest.approx(1.0 + 0.75 + 0.5)


def test_reference_of_the_spec_holds(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    spec = SPEC + "reference: {accuracy: 0.0, hours: 4.0}\n"
    create_sweep(store, "digits", spec=spec, prices=PriceBook.load().to_dict())
    record(LedgerWriter(store, "digits"), "a", [0.5, 0.75, 1.0])
    assert Sweep.open(store, "digits").hypervolume() == pytest.approx(2.25)


def test_failed_and_silent_trials_are_counted_as_excluded(store: Store, writer: LedgerWriter) -> None:
    record(writer, "a", [0.5, math.nan, math.inf, None])
    record(writer, "b", [0.9], state="failed", error="out of memory")
    record(writer, "c", [], state="failed")
    record(writer, "d", [], state="stopped")
    record(writer, "e", [], state="running")
    excluded = Sweep.open(store, "digits").front().attrs["excluded"]
    assert {name: count for name, count in excluded.items() if count} == {
        "nan": 2,
        "inf": 1,
        "failed": 2,
        "pruned": 1,
        "running": 1,
    }


def test_store_4_front_document_is_strict_json(store: Store, writer: LedgerWriter) -> None:
    record(writer, "a", [0.5, math.nan, math.inf, -math.inf], config=json.dumps({"lr": math.nan, "width": [8, 16]}))
    document = strict(Sweep.open(store, "digits").front_document())
    assert document["sweep"] == "digits"
    assert document["objectives"] == {"accuracy": "max", "hours": "min"}
    assert document["points"] == [
        {
            "trial": "a",
            "epoch": 0,
            "accuracy": 0.5,
            "hours": 1.0,
            "tie": False,
            "config": {"lr": None, "width": [8, 16]},
        }
    ]
    assert document["excluded"]["nan"] == 1
    assert document["excluded"]["inf"] == 2
    assert document["hypervolume"] == 0.0
    assert document["reference"] == {"accuracy": 0.5, "hours": 1.0}


def test_sweep_without_a_trial_has_an_empty_front(store: Store) -> None:
    sweep = Sweep.open(store, "digits")
    assert len(sweep.front()) == 0
    assert sweep.hypervolume() == 0.0
    document = strict(sweep.front_document())
    assert (document["points"], document["reference"]) == ([], {})
    assert strict(sweep.status())["trials"] == {"finished": 0, "running": 0, "failed": 0, "pending": 0}
    assert sweep.status()["state"] == "interrupted"


def test_status_counts_trials_and_spend(store: Store, writer: LedgerWriter) -> None:
    driver = Driver.claim(store, "digits")
    record(writer, "a", [0.5])
    record(writer, "b", [0.5, 0.6], state="running")
    sweep = Sweep.open(store, "digits")
    status = strict(sweep.status())
    assert status["state"] == "running"
    assert status["trials"] == {"finished": 1, "running": 1, "failed": 0, "pending": 0}
    assert status["budget"] == {"trials": 4}
    assert status["spend"]["cpu_core_hours"] == pytest.approx(3.0)
    assert status["spend"]["usd"] == pytest.approx(float(sweep.points()["cost_usd"].iloc[[0, 2]].sum()))
    driver.close("interrupted")
    record(writer, "c", [], state="stopped")
    sweep.refresh()
    assert sweep.status()["trials"] == {"finished": 1, "running": 0, "failed": 0, "pending": 1, "stopped": 1}


def test_tables_are_read_once_until_refreshed(store: Store, writer: LedgerWriter) -> None:
    sweep = Sweep.open(store, "digits")
    assert len(sweep.trials()) == 0
    record(writer, "a", [0.5])
    assert len(sweep.trials()) == 0
    sweep.refresh()
    assert len(sweep.trials()) == len(sweep.epochs()) == len(sweep.intervals()) == 1


def test_trial_view_shows_config_curve_and_cost_by_phase(store: Store, writer: LedgerWriter) -> None:
    record(writer, "a", [0.5, 0.6], checkpoint="ck/1", attempt=1)
    writer.append(intervals=[Interval("a", "cpu", 1.0, 7200.0, 9000.0, "evaluate")])
    writer.append(intervals=[Interval("a", "cpu", 1.0, 9000.0, 9060.0, "wait")])
    record(writer, "b", [0.1])
    view = Sweep.open(store, "digits").trial("a")
    assert (view.state, view.config, view.checkpoint, view.error) == ("finished", {"lr": 0.1, "id": "a"}, "ck/1", None)
    assert view.attempts == 2
    assert view.curve["accuracy"].tolist() == [0.5, 0.6]
    assert view.curve["hours"].tolist() == [1.0, 2.0]
    phases = view.cost_by_phase.set_index("phase")
    assert phases.loc["train", "seconds"] == pytest.approx(7200.0)
    assert phases.loc["evaluate", "seconds"] == pytest.approx(1800.0)
    assert phases.loc["wait"].tolist() == [60.0, 0.0]
    assert phases["usd"].sum() == pytest.approx(view.usd)


def test_unknown_names_are_told_the_nearest(store: Store, writer: LedgerWriter) -> None:
    record(writer, "t-0001", [0.5])
    with pytest.raises(LedgerError, match=r"no sweep 'digit'.*Nearest: digits") as raised:
        Sweep.open(store, "digit")
    assert raised.value.exit_code == 2
    with pytest.raises(LedgerError, match=r"no trial 't-0002'.*Nearest: t-0001"):
        Sweep.open(store, "digits").trial("t-0002")
    with pytest.raises(ConfigError, match="sweep name"):
        Sweep.open(store, "../digits")


def test_list_names_every_sweep(store: Store, writer: LedgerWriter) -> None:
    create_sweep(store, "other", spec=SPEC, prices=PriceBook.load().to_dict())
    store.write_atomic("stray.txt", b"")
    record(writer, "a", [0.5])
    Driver.claim(store, "digits").close("finished")
    found = Sweep.list(store)
    assert [(each.name, each.state, each.trials["finished"]) for each in found] == [
        ("digits", "finished", 1),
        ("other", "interrupted", 0),
    ]
    assert Sweep.list(Path(store.uri).parent / "nowhere") == []


def test_sweep_shows_itself_on_one_line(store: Store, writer: LedgerWriter) -> None:
    record(writer, "a", [0.5])
    sweep = Sweep.open(store, "digits")
    assert repr(sweep).startswith("Sweep('digits', interrupted, 1 finished, store=")
    assert "\n" not in repr(sweep)
    assert "<td>1 finished</td>" in sweep._repr_html_()


def test_metric_with_the_name_of_a_cost_does_not_hide_it(store: Store, writer: LedgerWriter) -> None:
    writer.append(
        trials=[{"trial": "a", "state": "finished"}],
        epochs=[{"trial": "a", "epoch": 0, "end": 3600.0, "accuracy": 0.5, "hours": 77.0}],
        intervals=[Interval("a", "cpu", 1.0, 0.0, 3600.0, "train")],
    )
    points = Sweep.open(store, "digits").points()
    assert points["hours"].tolist() == [1.0]
    assert isinstance(points, pd.DataFrame)


def test_query_needs_neither_torch_nor_ray_nor_optuna() -> None:
    code = "import sys, muse_spark_ray.sweep; print([m for m in ('torch', 'ray', 'optuna') if m in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert seen.stdout.strip() == "[]"

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muse_spark_ray.cost import Interval
from muse_spark_ray.errors import ConfigError, LedgerError
from muse_spark_ray.ledger import (
    LedgerWarning,
    LedgerWriter,
    Store,
    create_sweep,
    read_epochs,
    read_intervals,
    read_table,
    read_trials,
)
from muse_spark_ray.ledger.schema import SCHEMA_VERSION, TRIALS, VERSION_KEY, epochs_table, merge_tables
from muse_spark_ray.ledger.segments import Segment, encode, gaps, live, parse_segments

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def epoch(trial: str, number: int, **metrics: Any) -> dict[str, Any]:
    return {"trial": trial, "epoch": number, "end": float(number), **metrics}


def interval(trial: str = "t", start: float = 0.0, **more: Any) -> Interval:
    return Interval(trial, "cpu", 1.0, start, start + 1.0, "train", **more)


def files(tmp_path: Path, table: str) -> list[str]:
    return sorted(path.name for path in (tmp_path / "s" / table).iterdir())


def test_empty_sweep_has_stable_columns(store: Store) -> None:
    assert list(read_trials(store, "s").columns) == TRIALS.names
    assert list(read_epochs(store, "s").columns) == ["trial", "attempt", "epoch", "end"]
    assert len(read_intervals(store, "s")) == 0
    assert read_epochs(store, "s")["epoch"].dtype == np.int64


def test_newest_value_that_is_not_null_holds(store: Store) -> None:
    writer = LedgerWriter(store, "s")
    writer.append(trials=[{"trial": "a", "number": 0, "state": "running", "config": "{}", "started": 1.0}])
    writer.append(trials=[{"trial": "b", "state": "pending"}])
    writer.append(trials=[{"trial": "a", "state": "finished", "ended": 2.0, "epochs": 3}])
    trials = read_trials(store, "s")
    assert trials["trial"].tolist() == ["a", "b"]
    a = trials.iloc[0]
    assert (a["state"], a["config"], a["started"], a["ended"], a["number"]) == ("finished", "{}", 1.0, 2.0, 0)
    assert trials["number"].dtype == pd.Int64Dtype()
    assert trials["number"].isna().tolist() == [False, True]


def test_store_3_null_column_becomes_double_and_integers_stay(store: Store) -> None:
    writer = LedgerWriter(store, "s")
    writer.append(epochs=[epoch("1", 0, acc=None, n=None, x=math.nan)])
    writer.append(epochs=[epoch("2", 0, acc=0.5, n=2**53 + 1, x=None)])
    for _ in range(2):
        table = read_table(store, "s", "epochs")
        assert table.schema.field("acc").type == pa.float64()
        assert table.schema.field("n").type == pa.int64()
        assert table["n"].to_pylist() == [None, 2**53 + 1]
        frame = read_epochs(store, "s")
        assert frame["acc"].isna().tolist() == [True, False]
        assert frame["n"].tolist() == [pd.NA, 2**53 + 1]
        assert frame["x"].isna().tolist() == [False, True]
        assert math.isnan(frame["x"].iloc[0])
        writer.compact()


def test_integers_beside_doubles_become_double(store: Store) -> None:
    LedgerWriter(store, "s").append(epochs=[epoch("1", 0, x=1, b=True), epoch("1", 1, x=0.5, b=2)])
    frame = read_epochs(store, "s")
    assert frame["x"].tolist() == [1.0, 0.5]
    assert frame["b"].tolist() == [1, 2]
    assert frame["x"].dtype == np.float64


def test_numpy_numbers_are_stored_as_numbers(store: Store) -> None:
    row = epoch("1", 0, f=np.float32(0.5), i=np.int64(2**53 + 1), b=np.bool_(True), zero=np.array(3))
    LedgerWriter(store, "s").append(epochs=[row])
    frame = read_epochs(store, "s")
    assert [str(frame[name].dtype) for name in ("f", "i", "b", "zero")] == ["float64", "int64", "bool", "int64"]


def test_latest_attempt_of_a_repeated_epoch_wins(store: Store) -> None:
    writer = LedgerWriter(store, "s")
    writer.append(epochs=[epoch("a", 1, acc=0.1), epoch("a", 2, acc=0.2), epoch("b", 2, acc=0.9)])
    writer.append(epochs=[{**epoch("a", 2, acc=0.3), "attempt": 1}])
    writer.append(epochs=[epoch("a", 2, acc=0.4)])
    frame = read_epochs(store, "s")
    assert frame[["trial", "epoch", "acc"]].values.tolist() == [["a", 1, 0.1], ["b", 2, 0.9], ["a", 2, 0.3]]


def test_c4_intervals_written_twice_count_once(store: Store) -> None:
    writer = LedgerWriter(store, "s")
    writer.append(intervals=[interval(), interval(start=1.0)])
    writer.append(intervals=[interval(), interval(attempt=1)])
    assert read_intervals(store, "s")[["start", "attempt"]].values.tolist() == [[0.0, 0], [1.0, 0], [0.0, 1]]
    writer.compact()
    assert len(read_intervals(store, "s")) == 3


def test_space_8_long_text_is_kept_whole(store: Store) -> None:
    text = "x" * 10_000
    LedgerWriter(store, "s").append(
        trials=[{"trial": "a", "config": text, "error": text}], epochs=[epoch("a", 0, note=text, acc=0.5)]
    )
    assert read_trials(store, "s")["config"].tolist() == [text]
    assert read_epochs(store, "s")[["note", "acc"]].values.tolist() == [[text, 0.5]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"trials": [{"trial": "a", "colour": 1}]}, "no column 'colour'"),
        ({"trials": [{"trial": "a", "state": "done"}]}, "state is 'done'"),
        ({"trials": [{"state": "failed"}]}, "trials.trial is missing"),
        ({"trials": [{"trial": "a", "seed": "x"}]}, "trials.seed must hold int64"),
        ({"trials": [{"trial": "a", "seed": 2**70}]}, "trials.seed must hold int64"),
        ({"epochs": [{"trial": "a", "end": 0.0}]}, "epochs.epoch is missing"),
        ({"epochs": [epoch("a", 0, acc=[1])]}, r"epochs.acc is \[1\] of type list"),
    ],
)
def test_rows_of_the_wrong_form_write_nothing(store: Store, rows: dict[str, Any], message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        LedgerWriter(store, "s").append(**{"intervals": [interval()], **rows})
    assert store.list() == []


def test_trial_names_cannot_leave_the_store(store: Store) -> None:
    with pytest.raises(ConfigError, match="trial name"):
        LedgerWriter(store, "s").append(trials=[{"trial": "../x"}])


def test_used_name_is_refused_and_kept(store: Store) -> None:
    create_sweep(store, "s", spec="a: 1\n", prices={"x": 1})
    with pytest.raises(ConfigError, match="sweep 's' is already in"):
        create_sweep(store, "s", spec="a: 2\n", prices={"x": 2})
    assert store.read_bytes("s/spec.yaml") == b"a: 1\n"


def test_store_2_torn_and_garbled_segments_are_set_aside(store: Store, tmp_path: Path) -> None:
    writer = LedgerWriter(store, "s")
    for number in range(8):
        writer.append(epochs=[epoch("a", number)])
    folder = tmp_path / "s" / "epochs"
    whole = (folder / "0000000003.parquet").read_bytes()
    (folder / "0000000003.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "0000000005.parquet").write_bytes(b"")
    (folder / "0000000007.parquet").write_bytes(b"\n" + whole + whole[4:-4] + b"\0" * 8)
    (folder / ".tmp-0123").write_bytes(b"torn")
    pq.write_table(pa.table({"colour": [1]}), folder / "0000000009.parquet")
    for _ in range(2):
        with pytest.warns(LedgerWarning, match="the rest was read") as caught:
            assert read_table(store, "s", "epochs")["epoch"].to_pylist() == [0, 1, 3, 5, 7]
        assert [str(one.message).split()[0][-18:] for one in caught] == [f"000000000{n}.parquet" for n in (3, 5, 7, 9)]
        LedgerWriter(store, "s").compact()
    assert (folder / "0000000003.parquet").read_bytes() == whole[: len(whole) // 2]
    assert "0000000001-0000000002.parquet" in files(tmp_path, "epochs")


def test_store_2_a_changed_value_is_noticed(store: Store, tmp_path: Path) -> None:
    writer = LedgerWriter(store, "s")
    for number in range(2):
        writer.append(epochs=[epoch("a", number, acc=0.123)])
    path = tmp_path / "s" / "epochs" / "0000000002.parquet"
    before = path.read_bytes()
    value = np.float64(0.123).tobytes()
    assert value in before
    path.write_bytes(before.replace(value, np.float64(0.987).tobytes()))
    with pytest.warns(LedgerWarning, match="unreadable"):
        assert read_epochs(store, "s")["acc"].tolist() == [0.123]


def test_lost_segment_is_reported(store: Store, tmp_path: Path) -> None:
    writer = LedgerWriter(store, "s")
    for number in range(3):
        writer.append(epochs=[epoch("a", number)])
    (tmp_path / "s" / "epochs" / "0000000002.parquet").unlink()
    with pytest.warns(LedgerWarning, match="appends 2 to 2 are missing"):
        assert read_epochs(store, "s")["epoch"].tolist() == [0, 2]


def test_newer_schema_asks_for_an_upgrade(store: Store, tmp_path: Path) -> None:
    LedgerWriter(store, "s").append(epochs=[epoch("a", 0)])
    newer = epochs_table([epoch("a", 1)]).replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION + 1).encode()})
    pq.write_table(newer, tmp_path / "s" / "epochs" / "0000000002.parquet")
    with pytest.raises(LedgerError, match="ledger schema 2") as raised:
        read_epochs(store, "s")
    assert "Upgrade" in (raised.value.hint or "")


def test_compaction_and_a_new_writer_go_on(store: Store, tmp_path: Path) -> None:
    for number in range(4):
        writer = LedgerWriter(store, "s")
        writer.append(epochs=[epoch("a", number)], trials=[{"trial": "a", "epochs": number}], intervals=[interval()])
        if number:
            writer.compact()
    assert files(tmp_path, "epochs") == ["0000000001-0000000004.parquet"]
    assert read_epochs(store, "s")["epoch"].tolist() == [0, 1, 2, 3]
    assert read_trials(store, "s")["epochs"].tolist() == [3]


def test_a_long_sweep_keeps_few_files_and_all_rows(store: Store, tmp_path: Path) -> None:
    writer = LedgerWriter(store, "s")
    for number in range(200):
        writer.append(epochs=[{"trial": f"t{number}", "epoch": 1, "end": 1.0, f"metric{number % 3}": 0.5}])
    names = sorted(path.name for path in (tmp_path / "s" / "epochs").iterdir())
    assert names[:3] == [f"{first:010d}-{first + 63:010d}.parquet" for first in (1, 65, 129)]
    assert len(names) == 3 + 200 - 192
    assert list(read_epochs(store, "s")["trial"]) == [f"t{number}" for number in range(200)]


def test_crash_between_merge_and_removal_shows_no_row_twice(store: Store, tmp_path: Path) -> None:
    writer = LedgerWriter(store, "s")
    for number in range(4):
        writer.append(epochs=[epoch("a", number)])
    merged = merge_tables([epochs_table([epoch("a", number)]) for number in range(3)])
    store.write_atomic("s/epochs/0000000001-0000000003.parquet", encode(merged))
    (tmp_path / "s" / "epochs" / "0000000002.parquet").unlink()
    assert read_table(store, "s", "epochs")["epoch"].to_pylist() == [0, 1, 2, 3]
    LedgerWriter(store, "s").compact()
    assert files(tmp_path, "epochs") == ["0000000001-0000000004.parquet"]


def test_segments_covered_by_a_wider_one_do_not_count() -> None:
    found = parse_segments([Segment(1, 4).name, Segment(2, 2).name, Segment(4, 4).name, Segment(5, 5).name, "x.txt"])
    assert live(found) == [Segment(1, 4), Segment(5, 5)]
    assert live([Segment(1, 2), Segment(1, 4), Segment(3, 3)]) == [Segment(1, 4)]
    assert gaps([Segment(2, 2), Segment(4, 6), Segment(9, 9)]) == [(1, 1), (3, 3), (7, 8)]


METRIC_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=20),
)
NAMES = st.sampled_from(["acc", "loss", "lr", "ε", "a.b", "", "cost usd"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(NAMES, METRIC_VALUES, max_size=5), min_size=1, max_size=6), st.booleans())
def test_any_metrics_come_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], compacted: bool
) -> None:
    store = Store.open(tmp_path_factory.mktemp("store"))
    writer = LedgerWriter(store, "s")
    for number, metrics in enumerate(rows):
        writer.append(epochs=[epoch("a", number, **metrics)])
    if compacted:
        writer.compact()
    table = read_table(store, "s", "epochs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_epochs(store, "s")) == len(rows)
    for name in {name for metrics in rows for name in metrics}:
        written = [metrics.get(name) for metrics in rows]
        kinds = {type(value) for value in written if value is not None}
        for before, after in zip(written, table[name].to_pylist(), strict=True):
            assert (before is None) == (after is None)
            if before is not None and len(kinds) == 1:
                assert type(after) is type(before)
                assert repr(after) == repr(before)
            elif before is not None and str not in kinds:
                assert math.isclose(after, before) or math.isnan(before)

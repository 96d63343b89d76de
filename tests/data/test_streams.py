"""Parquet larger than memory: each row once an epoch, whoever reads it, in an order that only seed and epoch decide."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.data import Cut, DataConfig, StreamPart, Task, load_task, open_source
from muse_spark_ray.data.inspect import inspect_data
from muse_spark_ray.data.readers import read
from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.runtime.trial import build_trainer
from muse_spark_ray.spec.train import train_config_class
from muse_spark_ray.testing.ranks import on_ranks

ROWS = 330


def _write(folder: Path, *, files: int = 3, rows: int = ROWS, group: int = 25, kind: str = "ids") -> Path:
    """Write files of rows that are told apart by `number`; the label says if it is odd."""
    for part, numbers in enumerate(np.array_split(np.arange(rows), files)):
        odd = numbers % 2
        label = {"ids": odd, "text": np.array(["even", "odd"])[odd], "values": odd * 0.5}[kind]
        columns = {"number": numbers, "flag": numbers % 3 == 0, "label": label}
        pq.write_table(pa.table(columns), folder / f"part{part}.parquet", row_group_size=group)
    return folder


def _stream(folder: Path, **more: Any) -> Task[StreamPart]:
    return load_task(DataConfig(name="parquet", path=str(folder), stream=True, **more))


def _numbers(task: Task[StreamPart], batches: Any) -> list[int]:
    """Undo the scaling of the column `number`."""
    scaling = task.about["preprocessing"]
    return [
        round(value * scaling["deviation"][0] + scaling["mean"][0])
        for inputs, _ in batches
        for value in inputs[:, 0].double().tolist()
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("stream"))


def test_both_parts_together_are_all_rows_and_targets_belong_to_them(table: Path) -> None:
    task = _stream(table)
    assert (task.classes, task.shape) == (2, (2,))
    train, held_out = list(task.train.loader(32)), list(task.validation.loader(32))
    assert sorted(_numbers(task, train) + _numbers(task, held_out)) == list(range(ROWS))
    assert (len(task.train), len(task.validation)) == (len(_numbers(task, train)), len(_numbers(task, held_out)))
    assert 0.15 < len(task.validation) / ROWS < 0.35
    targets = torch.cat([targets for _, targets in train]).tolist()
    assert targets == [number % 2 for number in _numbers(task, train)]
    assert all(len(targets) == 32 for _, targets in train[:-1])


def test_inputs_have_mean_0_and_deviation_1_over_the_training_part(table: Path) -> None:
    inputs = torch.cat([inputs for inputs, _ in _stream(table).train.loader(64)]).double()
    assert inputs.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=1e-5)
    assert inputs.std(0, correction=0).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    world=st.integers(1, 4),
    epoch=st.integers(0, 3),
    batch=st.integers(1, 100),
    buffer=st.sampled_from([0, 1, 60, 10_000]),
    seed=st.integers(0, 5),
)
def test_each_row_once_over_all_ranks(
    table: Path, monkeypatch: pytest.MonkeyPatch, world: int, epoch: int, batch: int, buffer: int, seed: int
) -> None:
    task = _stream(table)
    expected = sorted(_numbers(task, task.train.loader(50, shuffle=False)))
    read: list[list[int]] = []
    with monkeypatch.context() as patch:
        for rank in range(world):
            patch.setattr(dist, "is_initialized", lambda: True)
            patch.setattr(dist, "get_rank", lambda rank=rank: rank)
            patch.setattr(dist, "get_world_size", lambda: world)
            loader = task.train.loader(batch, seed=seed)
            loader.dataset._buffer_rows = buffer
            loader.dataset.set_epoch(epoch)
            batches = list(loader)
            assert len(batches) <= loader.dataset.batches(epoch, 0)
            read.append(_numbers(task, batches))
    assert sorted(itertools.chain(*read)) == expected
    # Dealt out evenly, but for a row group.
    assert max(map(len, read)) - min(map(len, read)) <= 25


def test_the_order_follows_seed_and_epoch_and_mixes_row_groups(table: Path) -> None:
    task = _stream(table)

    def order(seed: int, epoch: int) -> list[int]:
        loader = task.train.loader(40, seed=seed)
        loader.dataset.set_epoch(epoch)
        return _numbers(task, loader)

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    first = np.array(order(1, 0)[:40]) // 25
    assert len(set(first.tolist())) > 4
    stored = _numbers(task, task.train.loader(40, shuffle=False))
    assert stored == sorted(stored)


@pytest.mark.parametrize("workers", [1, 2])
def test_loader_workers_share_rows_and_follow_the_epoch(table: Path, workers: int) -> None:
    task = _stream(table)
    source = open_source(task.train.loader(32, seed=4, workers=workers), Cut(32, 2))
    orders = []
    for epoch in range(2):
        windows = list(source.windows(epoch))
        pairs = [(batch.inputs, batch.targets) for window in windows for batch in window.batches]
        orders.append(_numbers(task, pairs))
        assert len(windows) == source.windows_per_epoch(epoch)
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(_numbers(task, task.train.loader(32)))
    assert orders[0] != orders[1]


def test_the_size_of_an_update_is_known(table: Path) -> None:
    source = open_source(_stream(table).train.loader(32), Cut(64, 2))
    assert (source.batch_size, source.window_size(0), source.is_indexed) == (32, 64, False)


def _trained(folder: str, workers: int) -> tuple[list[float], list[float | None], list[int]]:
    plain = {
        "task": {
            "data": {"name": "parquet", "path": folder, "stream": True, "columns": ["flag", "number"]},
            "model": {"name": "mlp"},
        },
        "epochs": 3,
        "batch_size": 16,
        "device": "cpu",
        "loader": {"workers": workers},
        "schedule": {"type": "onecycle"},
    }
    config = train_config_class().model_validate(plain)
    trainer = build_trainer(config, load_task(config.task.data))
    history = trainer.fit()["history"]
    weights = torch.cat([p.detach().flatten() for p in trainer.get_best_model().parameters()])
    return weights.tolist(), [epoch["accuracy"] for epoch in history], [epoch["samples"] for epoch in history]


def test_two_ranks_train_on_all_rows_and_evaluate_each_once(table: Path) -> None:
    task = _stream(table)
    (first, accuracy, samples), (second, others, _) = on_ranks(_trained, 2, str(table), 0)
    assert first == second
    assert accuracy == others
    assert samples == [len(task.train)] * 3
    # Accuracies are multiples of one row of the whole validation part.
    assert [a * len(task.validation) % 1 for a in accuracy if a is not None] == pytest.approx([0.0] * 3, abs=1e-6)


def test_a_training_by_config_repeats_itself_with_loader_workers(table: Path) -> None:
    assert _trained(str(table), 2) == _trained(str(table), 2)


def test_a_stream_trains_as_its_rows_in_memory_would(table: Path) -> None:
    """In the stored order, batch by batch."""
    task = _stream(table)
    inputs, targets = map(torch.cat, zip(*task.train.loader(30, shuffle=False), strict=True))

    def trained(loader: Any) -> torch.Tensor:
        torch.manual_seed(0)
        net = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        MuseSparkTrainer(net, optimizer, None, loader, None, {"device": "cpu"}).fit(2)
        return net.weight.detach()

    held = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), 30)
    assert torch.equal(trained(task.train.loader(30, shuffle=False)), trained(held))


def test_conditions_and_columns_go_down_to_the_files(table: Path) -> None:
    task = _stream(table, columns=["number"], where=[["number", ">=", 100], ["flag", "==", True]])
    assert task.shape == (1,)
    read = _numbers(task, task.train.loader(7)) + _numbers(task, task.validation.loader(7))
    assert sorted(read) == [number for number in range(100, ROWS) if number % 3 == 0]
    # Row groups that hold no wanted row are not even opened.
    assert len(task.train.table.parts) < len(_stream(table).train.table.parts)


def test_text_targets_are_classes_by_name(tmp_path: Path) -> None:
    task = _stream(_write(tmp_path, kind="text"))
    assert (task.about["labels"], task.classes) == (["even", "odd"], 2)
    inputs, targets = next(iter(task.train.loader(20)))
    assert targets.tolist() == [number % 2 for number in _numbers(task, [(inputs, targets)])]


def test_real_targets_are_one_column(tmp_path: Path) -> None:
    task = _stream(_write(tmp_path, kind="values"))
    assert task.classes is None
    _, targets = next(iter(task.train.loader(20)))
    assert targets.shape == (20, 1)
    assert targets.dtype is torch.float32
    assert set(targets.flatten().tolist()) == {0.0, 0.5}


def test_a_check_reads_a_sample_of_a_stream(table: Path) -> None:
    config = DataConfig(name="parquet", path=str(table), stream=True)
    assert len(read(config).targets) == ROWS
    assert all(finding.level in ("ok", "note") for finding in inspect_data(config))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1.0, 2.0, None, 4.0], "y": [0, 1, 0, 1]}, r"inputs are not finite, first in row 2"),
        ({"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, -1]}, r"label -1 in row 3 is out of range"),
        ({"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 99]}, r"label 99 in row 3 is out of range"),
        ({"x": [1.0, 2.0, 3.0, 4.0], "y": ["a", "b", None, "a"]}, r"target y is missing, first in row 2"),
        ({"x": [1.0, 2.0, 3.0, 4.0], "y": ["a", "a", "a", "a"]}, r"all labels are 'a'"),
        ({"x": ["p", "q", "r", "s"], "y": [0, 1, 0, 1]}, r"columns \['x'\] are not numbers"),
        ({"y": [0, 1, 0, 1]}, r"no column besides the target y"),
    ],
)
def test_broken_rows_are_named_before_training(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=1)
    with pytest.raises(DataError, match=words):
        _stream(tmp_path)


def test_one_row_group_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 row groups; stream needs 2"):
        _stream(_write(tmp_path, files=1, group=1000))


def test_a_part_without_a_wanted_row_is_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path, files=2, group=1000, rows=20)
    with pytest.raises(DataError, match=r"no row of the \w+ part fulfils"):
        _stream(folder, where=[["number", "not in", list(range(10, 20))]])


def test_a_condition_that_no_row_fulfils_is_refused(table: Path) -> None:
    with pytest.raises(DataError, match="no row was found"):
        _stream(table, where=[["number", "not in", list(range(ROWS))]])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = _write(tmp_path) / "part1.parquet"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        _stream(tmp_path)


def test_an_unknown_target_is_named(table: Path) -> None:
    with pytest.raises(ConfigError, match="target is 'zz'"):
        _stream(table, target="zz")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"name": "csv"}, "stream is for parquet"),
        ({"split": "stratified"}, "whole row groups"),
        ({"max_samples": 5}, "stream and max_samples"),
        ({"cache": "x"}, "stream and cache"),
        ({"fold": 0, "folds": 3}, "stream and folds"),
    ],
)
def test_what_needs_all_rows_does_not_go_with_a_stream(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataConfig(**{"name": "parquet", "path": "x", "stream": True, **more})

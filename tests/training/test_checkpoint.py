"""Checkpoints: exact, whole or absent, safe to load, the right ones kept."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from toys import blobs, small_net, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.training.checkpoint import Checkpoints, load_state

STRATEGIES = {"ema": True, "label_smoothing": True, "adaptive_sampling": {"update_freq": 2}}


def _trainer(folder: Path, **config: Any) -> tuple[nn.Module, MuseSparkTrainer]:
    net = small_net(dropout=0.3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    settings = {"checkpoint": {"save_dir": str(folder)}, "schedule": {"type": "cosine"}, "clip_norm": 1.0, **config}
    return net, MuseSparkTrainer(
        net, optimizer, nn.CrossEntropyLoss(), DataLoader(blobs(), 8, shuffle=True), blobs(20, seed=1), settings
    )


@pytest.mark.parametrize("config", [{}, {"strategies": STRATEGIES}, {"precision": {"amp": "bf16"}}])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit_t6(tmp_path: Path, config: dict[str, Any]) -> None:
    torch.manual_seed(1)
    whole, trainer = _trainer(tmp_path / "whole", **config)
    torch.manual_seed(1)
    report = trainer.fit(epochs=6)
    _, first = _trainer(tmp_path / "parts", **config)
    torch.manual_seed(1)
    first.fit(epochs=6, on_epoch=lambda record: record.epoch == 3)
    torch.manual_seed(99)
    parts, second = _trainer(tmp_path / "parts", **config)
    resumed = second.fit(epochs=6)
    assert resumed["resumed_from"] == 3
    assert torch.equal(weights(whole), weights(parts))
    same = ("train_loss", "val_loss", "accuracy", "lr", "samples", "updates")
    assert [[e[k] for k in same] for e in resumed["history"]] == [[e[k] for k in same] for e in report["history"]]


def test_a_second_fit_continues_instead_of_starting_over(tmp_path: Path) -> None:
    _, trainer = _trainer(tmp_path)
    trainer.fit(epochs=2)
    assert trainer.fit(epochs=5)["epochs"] == 5
    assert trainer.fit(epochs=5)["updates"] == 5 * 8


def _saved_epochs(folder: Path) -> list[int]:
    return [saved.epoch for saved in Checkpoints(folder, keep_last=None, higher_is_better=True).saved()]


def _save(folder: Path, values: list[float | None], *, keep_last: int | None, higher: bool = True) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep_last=keep_last, higher_is_better=higher)
    for epoch, value in enumerate(values, start=1):
        checkpoints.save({"epoch": epoch}, epoch=epoch, metric=value)
    return checkpoints


def test_the_newest_and_the_best_stay_t7(tmp_path: Path) -> None:
    _save(tmp_path, [0.5, 0.9, 0.6, 0.7, 0.65, 0.8], keep_last=2)
    assert _saved_epochs(tmp_path) == [2, 5, 6]


def test_a_metric_that_is_nan_is_never_best_t7_best_4(tmp_path: Path) -> None:
    nan = float("nan")
    assert _save(tmp_path / "max", [nan, 0.2, 0.4], keep_last=None).best().epoch == 3  # type: ignore[union-attr]
    assert _save(tmp_path / "min", [nan, 1.0, 0.5], keep_last=None, higher=False).best().epoch == 3  # type: ignore[union-attr]
    assert _save(tmp_path / "none", [nan, nan], keep_last=1).best() is None
    assert _saved_epochs(tmp_path / "none") == [2]


def test_one_kept_besides_the_best_best_1(tmp_path: Path) -> None:
    _save(tmp_path, [0.5, 0.9, 0.6, 0.7, 0.65], keep_last=1)
    assert _saved_epochs(tmp_path) == [2, 5]


@pytest.mark.parametrize("keep_last", [None, -1])
def test_all_are_kept_and_ordered_by_number_ckpt_5(tmp_path: Path, keep_last: int | None) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=keep_last, higher_is_better=True)
    for epoch in (900, 1000, 9000, 10000):
        checkpoints.save({"epoch": epoch}, epoch=epoch, metric=None)
    (tmp_path / "epoch_011000.partial").mkdir()
    (tmp_path / "epoch_tmp").mkdir()
    assert _saved_epochs(tmp_path) == [900, 1000, 9000, 10000]
    assert checkpoints.load_newest()[1] == {"epoch": 10000}  # type: ignore[index]


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink, lambda file: (file.parent / "manifest.json").unlink()])
def test_a_damaged_checkpoint_is_passed_over_and_left_alone_t8(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = _save(tmp_path, [0.1, 0.2, 0.3], keep_last=None)
    newest = tmp_path / "epoch_000003"
    damage(newest / "state.pt")
    found = checkpoints.load_newest()
    assert found is not None
    assert found[0].epoch == 2
    assert newest.is_dir()
    if (newest / "manifest.json").exists():
        assert "epoch_000003" in caplog.text


class _Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> Any:
        return open, (self.marker, "w")


def test_a_pickled_call_is_refused_and_not_run_t9(tmp_path: Path) -> None:
    import hashlib

    _save(tmp_path, [0.1], keep_last=None)
    folder, marker = tmp_path / "epoch_000001", tmp_path / "marker"
    raw = pickle.dumps(_Evil(marker))
    (folder / "state.pt").write_bytes(raw)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["state.pt"] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="cannot be loaded safely"):
        load_state(folder)
    assert not marker.exists()


def test_keys_have_no_prefix_of_a_compiled_model_t10(tmp_path: Path) -> None:
    net = small_net()
    compiled = torch.compile(net, backend="eager")
    trainer = MuseSparkTrainer(
        compiled,
        torch.optim.SGD(net.parameters(), lr=0.1),
        None,
        blobs(),
        None,
        {"checkpoint": {"save_dir": str(tmp_path)}},
    )
    trainer.fit(epochs=1)
    state = load_state(tmp_path / "epoch_000001")
    assert set(state["model"]) == set(net.state_dict())
    small_net().load_state_dict(state["model"])


def test_another_model_or_other_strategies_are_refused(tmp_path: Path) -> None:
    _, trainer = _trainer(tmp_path)
    trainer.fit(epochs=1)
    with pytest.raises(ConfigError, match="does not fit the model"):
        MuseSparkTrainer(nn.Linear(4, 3), None, None, blobs(), None, {"checkpoint": {"save_dir": str(tmp_path)}})
    with pytest.raises(ConfigError, match="differ in \\['ema'\\]"):
        _trainer(tmp_path, strategies={"ema": True})
    _, fresh = _trainer(tmp_path, checkpoint={"save_dir": str(tmp_path), "resume": "never"})
    assert fresh.get_training_report()["epochs"] == 0


def test_report_json_lies_beside_the_checkpoints_t16(tmp_path: Path) -> None:
    _, trainer = _trainer(tmp_path)
    report = trainer.fit(epochs=2)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written == json.loads(json.dumps(report))
    accuracies = [epoch["accuracy"] for epoch in report["history"]]
    assert written["best_val_acc"] == pytest.approx(100 * max(accuracies))
    assert written["total_time"] > 0
    assert written["peak_gpu_memory"] is None or torch.cuda.is_available()


def test_saving_every_so_many_seconds_still_saves_the_last_epoch(tmp_path: Path) -> None:
    _, trainer = _trainer(tmp_path, checkpoint={"save_dir": str(tmp_path), "save_freq": 3600})
    trainer.fit(epochs=4)
    assert _saved_epochs(tmp_path) == [4]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        _trainer(tmp_path / "file" / "below")

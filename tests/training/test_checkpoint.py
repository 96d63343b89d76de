"""Checkpoints: exact, whole or absent, safe to load, the right ones kept."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader
from toys import blobs, small_net, weights

from muse_spark_ray import MuseSparkTrainer, load_model
from muse_spark_ray.data import load_task
from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.runtime.trial import build_trainer
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.testing.states import assert_same, repeatable
from muse_spark_ray.training.checkpoint import Checkpoints, about_checkpoint, load_state
from muse_spark_ray.training.models import build_model
from muse_spark_ray.training.saving import Saver

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


def test_weights_are_safetensors_and_nothing_else_needs_code(tmp_path: Path) -> None:
    net, trainer = _trainer(tmp_path)
    trainer.fit(epochs=3)
    folder = tmp_path / "epoch_000003"
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in net.state_dict().items())
    best = load_file(folder / "best.safetensors")
    assert all(torch.equal(best[name], value) for name, value in trainer.get_best_model().state_dict().items())
    rest = torch.load(folder / "state.pt", weights_only=True)
    assert rest["model"] == {}
    assert set(json.loads((folder / "manifest.json").read_text())["files"]) == {
        "model.safetensors",
        "best.safetensors",
        "state.pt",
    }


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink])
@pytest.mark.parametrize("file", ["model.safetensors", "best.safetensors"])
def test_damaged_weights_are_passed_over_ckpt_3_ckpt_6(tmp_path: Path, file: str, damage: Any) -> None:
    _, trainer = _trainer(tmp_path)
    trainer.fit(epochs=2)
    damage(tmp_path / "epoch_000002" / file)
    _, resumed = _trainer(tmp_path)
    assert resumed.get_training_report()["resumed_from"] == 1


def test_a_checkpoint_says_what_it_comes_from(tmp_path: Path) -> None:
    net, config = small_net(), {"seed": 3, "checkpoint": {"save_dir": str(tmp_path)}}
    MuseSparkTrainer(net, None, None, blobs(), None, config, about={"labels": ["a", "b", "c"]}).fit(1)
    about = about_checkpoint(tmp_path / "last")
    assert about["labels"] == ["a", "b", "c"]
    assert about["config"]["seed"] == 3
    assert about["environment"]["packages"]["torch"] == torch.__version__
    assert set(about["code"]) == {"commit", "dirty"}


def test_links_lead_to_the_newest_and_the_best(tmp_path: Path) -> None:
    _save(tmp_path, [0.5, 0.9, 0.6], keep_last=1)
    assert (tmp_path / "last").resolve().name == "epoch_000003"
    assert (tmp_path / "best").resolve().name == "epoch_000002"
    assert load_state(tmp_path / "best") == {"epoch": 2}


def test_tied_and_empty_weights_survive(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    net[1].weight = net[0].weight
    net.register_buffer("nothing", torch.zeros(0, 3))
    config = {"checkpoint": {"save_dir": str(tmp_path)}}
    MuseSparkTrainer(net, None, None, blobs(), None, config).fit(1)
    state = load_state(tmp_path / "last")["model"]
    assert torch.equal(state["1.weight"], net[1].weight)
    assert state["nothing"].shape == (0, 3)


def _with_damaged_streams(folder: Path) -> None:
    state, newest = load_state(folder / "last"), (folder / "last").resolve()
    state["ranks"][0]["rng"]["torch"] = torch.zeros(3, dtype=torch.uint8)
    Checkpoints(folder, keep_last=None, higher_is_better=True).save(state, epoch=2, metric=None)
    assert newest.name == "epoch_000002"


def test_damaged_random_streams_stop_the_resume_rng_3(tmp_path: Path) -> None:
    _, trainer = _trainer(tmp_path)
    trainer.fit(epochs=2)
    _with_damaged_streams(tmp_path)
    with pytest.raises(DataError, match="no usable random streams"):
        _trainer(tmp_path)


def test_streams_of_another_number_of_ranks_are_no_exact_resume_rng_3(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, trainer = _trainer(tmp_path)
    trainer.fit(epochs=1)
    _, resumed = _trainer(tmp_path)
    assert resumed.get_training_report()["exact_resume"] is True
    state = load_state(tmp_path / "last")
    state["ranks"] = state["ranks"] * 2
    Checkpoints(tmp_path, keep_last=None, higher_is_better=True).save(state, epoch=1, metric=None)
    _, resumed = _trainer(tmp_path)
    assert resumed.fit(2)["exact_resume"] is False
    assert "was written by 2 rank(s), now there are 1" in caplog.text


def test_a_training_begins_with_the_weights_that_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, trainer = _trainer(tmp_path / "first")
    trainer.fit(epochs=2)
    wider = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 5))
    MuseSparkTrainer(
        wider, None, None, blobs(), None, {"checkpoint": {"weights_from": str(tmp_path / "first" / "last")}}
    )
    best = trainer.get_best_model().state_dict()
    assert torch.equal(wider[0].weight, best["0.weight"])
    assert "2 of 4 loaded; left as they are: 3.weight, 3.bias" in caplog.text
    with pytest.raises(ConfigError, match="none of the 4 weights"):
        MuseSparkTrainer(
            nn.Linear(4, 3),
            None,
            None,
            blobs(),
            None,
            {"checkpoint": {"weights_from": str(tmp_path / "first" / "last")}},
        )


@pytest.mark.parametrize("fails", [False, True])
def test_a_checkpoint_may_be_written_in_the_background(tmp_path: Path, fails: bool) -> None:
    """A stalled writer leaves the one before it as the newest (CKPT-2), and what it wrote is the state of its epoch."""
    saver, gate, written = Saver(in_background=True), threading.Event(), []
    state = {"w": torch.ones(2), "n": [1, {"a": torch.zeros(1)}]}

    def write(value: dict[str, Any]) -> Path:
        assert gate.wait(60)
        if fails:
            raise OSError(28, "No space left on device")
        written.append(value)
        return tmp_path

    assert saver.save(write, state) is None
    state["w"].zero_()
    assert written == []
    gate.set()
    if fails:
        with pytest.raises(OSError, match="No space"):
            saver.wait()
    else:
        assert saver.wait() == tmp_path
        assert written[0]["w"].tolist() == [1.0, 1.0]


def test_training_in_the_background_mode_saves_the_same(tmp_path: Path) -> None:
    for name, in_background in (("now", False), ("later", True)):
        torch.manual_seed(1)
        save = {"checkpoint": {"save_dir": str(tmp_path / name), "in_background": in_background}}
        _, trainer = _trainer(tmp_path / name, **save)
        trainer.fit(epochs=3)
    states = [repeatable(load_state(tmp_path / name / "last")) for name in ("now", "later")]
    assert_same(*states)


# ---------------------------------------------------------------- a model from a checkpoint alone


def test_a_network_of_the_config_needs_nothing_else(tmp_path: Path) -> None:
    config = train_config(
        {
            "task": {"data": {"name": "digits", "max_samples": 200}, "model": {"name": "cnn", "width": 8, "depth": 2}},
            "strategies": {"structured_pruning": {"begin": 1, "ratio": 0.5}},
            "checkpoint": {"save_dir": str(tmp_path)},
        }
    )
    task = load_task(config.task.data)
    trainer = build_trainer(config, task)
    trainer.fit(3)
    model = load_model(tmp_path)
    inputs = task.validation.inputs
    assert torch.equal(model(inputs), trainer.get_best_model()(inputs))
    assert sum(p.numel() for p in model.parameters()) < 0.6 * sum(p.numel() for p in _fresh(config).parameters())
    assert about_checkpoint(tmp_path / "best")["labels"] == [str(n) for n in range(10)]


def _fresh(config: Any) -> nn.Module:
    return build_model(config.task.model, shape=(1, 8, 8), outputs=10)


def test_a_network_of_a_script_must_be_given(tmp_path: Path) -> None:
    _, trainer = _trainer(tmp_path, strategies={"lora": True})
    trainer.fit(2)
    with pytest.raises(ConfigError, match="does not say which network it is of"):
        load_model(tmp_path)
    model = load_model(tmp_path, model=small_net(dropout=0.3))
    x = blobs().tensors[0]
    assert torch.equal(model(x), trainer.get_best_model()(x))
    with pytest.raises(DataError, match="is no checkpoint and holds none"):
        load_model(tmp_path / "nowhere")

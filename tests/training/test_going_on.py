"""Training that is interrupted in mid-epoch, by word or by force, goes on from the step it had reached."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from toys import blobs, small_net, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError, PreemptedError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.testing.ranks import on_ranks
from muse_spark_ray.testing.states import assert_same, repeatable
from muse_spark_ray.training.cadence import MOST_SHARE, Cadence, best_interval
from muse_spark_ray.training.checkpoint import Checkpoints, load_state
from muse_spark_ray.training.claim import Claim

SAMPLES = 60


def _trainer(
    folder: Path | None, *, batch: int = 5, dropout: float = 0.0, net: nn.Module | None = None, **config: Any
) -> tuple[nn.Module, MuseSparkTrainer]:
    net = net if net is not None else small_net(dropout=dropout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    settings = {"schedule": {"type": "cosine"}, "clip_norm": 1.0, **config}
    if folder is not None:
        settings["checkpoint"] = {"save_dir": str(folder), **settings.get("checkpoint", {})}
    data = DataLoader(blobs(SAMPLES), batch, shuffle=True)
    return net, MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), data, blobs(20, seed=1), settings)


def _fit(folder: str | None, epochs: int, config: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    net, trainer = _trainer(None if folder is None else Path(folder), **config)
    return weights(net), trainer.fit(epochs) | {"weights": weights(net)}


def _report(ranks: int, folder: Path | None, epochs: int, **config: Any) -> dict[str, Any]:
    """Train on so many ranks; return the first one's report, with the weights."""
    place = None if folder is None else str(folder)
    if ranks == 1:
        return _fit(place, epochs, config)[1]
    reports = [report for _, report in on_ranks(_fit, ranks, place, epochs, config)]
    assert all(torch.equal(reports[0]["weights"], report["weights"]) for report in reports)
    return reports[0]


def _copy_one(folder: Path, name: str, to: Path) -> Path:
    shutil.copytree(folder / name, to / name)
    return to


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2), (3, 2)])
def test_another_number_of_ranks_keeps_the_global_batch_data_7(tmp_path: Path, before: int, now: int) -> None:
    batch = 5 * before
    alone = _report(1, None, 3, batch=batch)
    keep = {"every_steps": 60 // batch // 2 + 60 // batch, "keep_last": -1}
    _report(before, tmp_path / "a", 3, checkpoint=keep)
    name = f"epoch_000001_step_{keep['every_steps']:06d}"
    resumed = _report(now, _copy_one(tmp_path / "a", name, tmp_path / "b"), 3)
    assert resumed["resized"] == {"from": before, "to": now, "rule": "keep_batch", "window": batch, "lr_factor": 1.0}
    assert resumed["exact_resume"] is False
    assert [epoch["samples"] for epoch in resumed["history"]] == [SAMPLES] * 3
    assert [epoch["updates"] for epoch in resumed["history"]] == [epoch["updates"] for epoch in alone["history"]]
    for key in ("lr", "train_loss", "val_loss"):
        expected = [epoch[key] for epoch in alone["history"]]
        assert [epoch[key] for epoch in resumed["history"]] == pytest.approx(expected, rel=1e-4, abs=1e-6), key
    assert torch.allclose(resumed["weights"], alone["weights"], rtol=1e-4, atol=1e-5)


def test_the_global_batch_is_kept_over_several_changes(tmp_path: Path) -> None:
    keep = {"every_steps": 3, "keep_last": -1}
    _report(2, tmp_path / "a", 2, checkpoint=keep)
    _report(1, _copy_one(tmp_path / "a", "epoch_000000_step_000003", tmp_path / "b"), 2, checkpoint=keep)
    again = _report(1, _copy_one(tmp_path / "b", "epoch_000001_step_000009", tmp_path / "c"), 2)
    assert again["resized"] is None
    assert again["exact_resume"] is True
    assert (again["effective_batch_size"], again["updates"]) == (10, 12)


def test_the_learning_rate_may_follow_the_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flat = {"schedule": {"type": "constant"}}
    _report(2, tmp_path / "a", 2, checkpoint={"every_steps": 3, "keep_last": -1}, **flat)
    folder = _copy_one(tmp_path / "a", "epoch_000000_step_000003", tmp_path / "b")
    resumed = _report(1, folder, 2, checkpoint={"resize": "scale_lr"}, **flat)
    assert resumed["resized"] == {"from": 2, "to": 1, "rule": "scale_lr", "window": 5, "lr_factor": 0.5}
    assert [epoch["lr"] for epoch in resumed["history"]] == [0.025, 0.025]
    assert [epoch["samples"] for epoch in resumed["history"]] == [SAMPLES] * 2
    assert resumed["updates"] == 3 + 6 + 12
    assert "1 rank(s) go on with what 2 had begun (scale_lr): 5 samples in an update" in caplog.text


def test_two_ranks_go_on_in_mid_epoch_bit_for_bit(tmp_path: Path) -> None:
    config: dict[str, Any] = {"dropout": 0.3, "gradient_accumulation_steps": 2}
    whole = _report(2, tmp_path / "a", 3, checkpoint={"every_steps": 4, "keep_last": -1}, **config)
    resumed = _report(2, _copy_one(tmp_path / "a", "epoch_000001_step_000004", tmp_path / "b"), 3, **config)
    assert torch.equal(whole["weights"], resumed["weights"])
    assert repeatable(whole)["history"] == repeatable(resumed)["history"]
    assert resumed["exact_resume"] is True


def test_a_stop_after_two_updates_of_the_second_epoch_data_1(tmp_path: Path) -> None:
    """20 samples, 4 an update: the resumed epoch sees exactly the other 12, in the order it would have had."""

    def train(folder: Path, epochs: int = 3) -> tuple[Tensor, list[int], MuseSparkTrainer]:
        seen: list[int] = []

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            seen.extend(targets.tolist())
            return nn.functional.cross_entropy(outputs, targets % 3)

        torch.manual_seed(0)
        net = small_net()
        data = TensorDataset(blobs(20).tensors[0], torch.arange(20))
        trainer = MuseSparkTrainer(
            net,
            torch.optim.SGD(net.parameters(), lr=0.1),
            loss,
            DataLoader(data, 4, shuffle=True),
            None,
            {"checkpoint": {"save_dir": str(folder), "every_steps": 7, "keep_last": -1}},
        )
        assert trainer.fit(epochs)["epochs"] == epochs
        return weights(net), seen, trainer

    whole, order, _ = train(tmp_path / "a")
    resumed, rest, _ = train(_copy_one(tmp_path / "a", "epoch_000001_step_000007", tmp_path / "b"))
    assert torch.equal(whole, resumed)
    assert rest == order[28:]
    assert sorted(order[20:28] + rest[:12]) == list(range(20))


@pytest.mark.parametrize("stop", [1, 2])
def test_no_epoch_vanishes_after_a_stop_at_its_border_data_3(tmp_path: Path, stop: int) -> None:
    config: dict[str, Any] = {"batch": 12}
    _, first = _trainer(tmp_path, **config)
    first.fit(3, on_epoch=lambda record: record.epoch == stop)
    _, second = _trainer(tmp_path, **config)
    report = second.fit(3)
    assert (report["updates"], report["epochs"]) == (15, 3)
    assert [epoch["samples"] for epoch in report["history"]] == [SAMPLES] * 3


def _announcing(trainer: MuseSparkTrainer, after: int) -> Callable[[], None]:
    """Return a function to call at each update, which announces the end after so many."""
    count = 0

    def note() -> None:
        nonlocal count
        count += 1
        if count == after:
            trainer.notices.announce("a test", seconds=120)

    return note


class _Noting(nn.Module):
    """Calls a function at each forward pass in training."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.note: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.note()
        return self.inner(x)


@pytest.mark.parametrize("in_background", [False, True])
def test_word_of_the_end_loses_no_step(tmp_path: Path, in_background: bool) -> None:
    save = {"checkpoint": {"save_freq": "last", "in_background": in_background}}
    whole = _trainer(tmp_path / "whole", net=_Noting(small_net(dropout=0.3)), **save)[1].fit(3)
    net = _Noting(small_net(dropout=0.3))
    _, trainer = _trainer(tmp_path / "parts", net=net, **save)
    net.note = _announcing(trainer, 17)
    with pytest.raises(PreemptedError, match=r"told to end \(a test\) after 17 updates; all is saved in"):
        trainer.fit(3)
    assert Path(trainer.newest_checkpoint or "").name == "epoch_000001_step_000017"
    _, second = _trainer(tmp_path / "parts", net=_Noting(small_net(dropout=0.3)), **save)
    resumed = second.fit(3)
    assert resumed["updates"] == whole["updates"] == 36
    states = [repeatable(load_state(tmp_path / name / "last")) for name in ("whole", "parts")]
    assert_same(*states)


def test_the_same_trainer_goes_on_after_word_was_withdrawn(tmp_path: Path) -> None:
    whole = _trainer(None, net=_Noting(small_net()))[1].fit(3)
    net = _Noting(small_net())
    _, trainer = _trainer(None, net=net)
    net.note = _announcing(trainer, 17)
    with pytest.raises(PreemptedError, match=r"nothing is saved, since checkpoint\.save_dir is not set"):
        trainer.fit(3)
    trainer.notices.forget()
    assert repeatable(trainer.fit(3))["history"] == repeatable(whole)["history"]


def _leave_when_the_last_rank_hears(folder: str) -> tuple[str, int]:
    net = _Noting(small_net())
    _, trainer = _trainer(Path(folder), net=net, checkpoint={"save_freq": "last"})
    if int(os.environ["RANK"]) == 1:
        net.note = _announcing(trainer, 8)
    try:
        trainer.fit(2000)
    except PreemptedError as error:
        return str(error), load_state(Path(folder) / "last")["counters"]["updates"]
    raise AssertionError("the end was not heard")


def test_all_ranks_leave_when_one_hears_of_the_end(tmp_path: Path) -> None:
    (first, updates), (second, seen) = on_ranks(_leave_when_the_last_rank_hears, 2, str(tmp_path))
    assert f"after {updates} updates" in first
    assert "a test" in second
    assert updates == seen >= 8


SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import PreemptedError

folder, epochs, extra = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
torch.manual_seed(0)
data = TensorDataset(torch.randn(4000, 8), torch.arange(4000) % 3)
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
config = {"batch_size": 4, "checkpoint": {"save_dir": folder, **extra}}
trainer = MuseSparkTrainer(net, torch.optim.SGD(net.parameters(), lr=0.01), None, data, None, config)
print("began at", trainer.get_training_report()["updates"], flush=True)
try:
    report = trainer.fit(epochs, on_epoch=lambda record: print("epoch", record.epoch, flush=True) and False)
except PreemptedError as error:
    print("told:", error, flush=True)
    sys.exit(error.exit_code)
print("done", report["updates"], flush=True)
"""


@contextlib.contextmanager
def _started(folder: Path, epochs: int, **checkpoint: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the script; it does not outlive the block."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(epochs), repr(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line
    raise AssertionError(f"the process ended without {word!r}")


def test_sigterm_saves_the_step_that_was_reached(tmp_path: Path) -> None:
    with _started(tmp_path, 1000, save_freq="last") as process:
        _read_until(process, "epoch 1")
        process.send_signal(signal.SIGTERM)
        told = _read_until(process, "told:")
        assert process.wait(60) == 143
    assert "told to end (SIGTERM) after" in told
    updates = int(told.split(" after ")[1].split()[0])
    assert load_state(tmp_path / "last")["counters"]["updates"] == updates >= 1000
    with _started(tmp_path, 1, save_freq="last") as again:
        assert _read_until(again, "began at") == f"began at {updates}\n"


def _train_for_ever(folder: str) -> None:
    torch.set_num_threads(1)
    _, trainer = _trainer(Path(folder), checkpoint={"interval": 0.001, "in_background": True})
    (Path(folder) / "began").write_text(str(trainer.get_training_report()["updates"]))
    trainer.fit(100_000)


def test_kills_at_any_moment_leave_a_good_checkpoint_ckpt_1(
    tmp_path: Path, wait_until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Saving all the time, killed 20 times: each start goes on from a whole checkpoint, further than the last."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["muse_spark_ray.testing.warm"])
    draws, reached, began = random.Random(0), 0, tmp_path / "began"
    for _ in range(20):
        process = context.Process(target=_train_for_ever, args=(str(tmp_path),))
        process.start()
        try:
            wait_until(lambda: began.exists() and bool(began.read_text()), why="the training to begin")
            assert int(began.read_text()) >= reached
            newest = _newest(tmp_path)
            wait_until(lambda newest=newest: _newest(tmp_path) != newest, why="a checkpoint")
            time.sleep(draws.uniform(0.0, 0.03))  # the kill comes at any moment, mostly within a save
        finally:
            process.kill()
            process.join()
        began.unlink()
        found = Checkpoints(tmp_path, keep_last=2, higher_is_better=True).load_newest()
        assert found is not None
        reached = found[1]["counters"]["updates"]
    assert "damaged" not in caplog.text
    assert len([path for path in tmp_path.iterdir() if path.name.endswith(".partial")]) <= 20


def _newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("epoch_*")), default="")


def test_a_state_is_saved_within_long_epochs(tmp_path: Path) -> None:
    _, trainer = _trainer(tmp_path, checkpoint={"interval": 1e-6, "keep_last": None})
    trainer.fit(1)
    names = sorted(path.name for path in tmp_path.glob("epoch_*"))
    assert names == [f"epoch_000000_step_{step:06d}" for step in range(1, 13)] + ["epoch_000001"]


FULL_DISK = """
import logging, resource
logging.basicConfig()

def fill(record):
    if record.epoch == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the kernel refuses to write more, as on a full disk
    return False
"""


def test_a_full_disk_does_not_end_the_training(tmp_path: Path) -> None:
    script = FULL_DISK + SCRIPT.replace("on_epoch=lambda", "on_epoch=fill if 'in_background' in extra else lambda")
    script += 'print(report["failed_saves"], report["epochs"], report["last_failed_save"])'
    for in_background, failures, kept in ((False, "2", "2"), (True, "[23]", "[12]")):
        folder = tmp_path / str(in_background)
        command = [sys.executable, "-c", script, str(folder), "4", repr({"in_background": in_background})]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        # What is being written when the disk fills up may be lost; what was complete is not.
        assert re.fullmatch(rf"{failures} 4 .*epoch_000004: .*File too large.*", done.stdout.splitlines()[-1])
        told = re.findall(r"Training goes on; the newest good one is (.*)\. Make room", done.stderr)
        assert re.fullmatch(rf"{re.escape(str(folder))}/epoch_00000{kept}", told[-1])
        assert not list(folder.glob(".*.partial"))
        assert load_state(told[-1])["counters"]["epoch"] == int(told[-1][-1])


def test_a_second_training_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    net = _Noting(small_net())
    _, first = _trainer(tmp_path, net=net)
    _, second = _trainer(tmp_path)
    began, may_end = threading.Event(), threading.Event()

    def note() -> None:
        began.set()
        may_end.wait(240)

    net.note = note
    thread = threading.Thread(target=first.fit, args=(1,))
    thread.start()
    try:
        assert began.wait(240)
        with pytest.raises(ConfigError, match=rf"is in use by process {os.getpid()} on .*overwrite each other"):
            second.fit(1)
    finally:
        may_end.set()
        thread.join()
    with pytest.raises(ConfigError, match="epoch 1\\) that another training wrote after this one was set up"):
        second.fit(1)
    assert _trainer(tmp_path, net=_Noting(small_net()))[1].fit(2)["resumed_from"] == 1


def test_a_folder_is_free_again_when_its_holder_dies(tmp_path: Path) -> None:
    with _started(tmp_path, 1000) as process:
        _read_until(process, "epoch 1")
        claim = Claim(tmp_path)
    assert claim.take() is None
    claim.give_back()


def test_a_checkpoint_that_is_being_loaded_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, higher_is_better=True)
    checkpoints.save({"epoch": 1}, epoch=1, metric=None)
    load = torch.load

    def load_slowly(*args: Any, **more: Any) -> Any:
        for epoch in (2, 3):
            checkpoints.save({"epoch": epoch}, epoch=epoch, metric=None)
        return load(*args, **more)

    monkeypatch.setattr(torch, "load", load_slowly)
    assert load_state(tmp_path / "epoch_000001") == {"epoch": 1}
    assert sorted(path.name for path in tmp_path.glob("epoch_*")) == ["epoch_000001", "epoch_000003"]
    monkeypatch.undo()
    checkpoints.save({"epoch": 4}, epoch=4, metric=None)
    assert [path.name for path in tmp_path.glob("epoch_*")] == ["epoch_000004"]


def test_steps_within_epochs_are_ordered_by_number_ckpt_5(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=None, higher_is_better=True)
    for epoch, step in ((1, 10_000), (1, 9_000), (1, 900), (2, 0), (1, 0), (1, 1_000_000)):
        checkpoints.save({}, epoch=epoch, step=step, metric=None)
    (tmp_path / "epoch_000009_step_tmp").mkdir()
    order = [saved.order for saved in checkpoints.saved()]
    assert order == [(1, 0), (1, 900), (1, 9_000), (1, 10_000), (1, 1_000_000), (2, 0)]


@pytest.mark.parametrize(
    ("cost", "between", "most", "expected"),
    [(0.02, 10_000.0, 1e9, 20.0), (0.02, 10_000.0, 15.0, 15.0), (1.0, 3600.0, 30.0, 100.0), (0.0, 60.0, 30.0, 0.0)],
)
def test_the_interval_is_youngs_within_its_bounds(cost: float, between: float, most: float, expected: float) -> None:
    assert best_interval(cost, between, most_lost=most) == pytest.approx(expected)
    assert cost <= MOST_SHARE * best_interval(cost, between, most_lost=most) + 1e-12


def test_the_interval_follows_cost_and_failures(caplog: pytest.LogCaptureFixture) -> None:
    config = train_config({"checkpoint": {"save_dir": "x", "max_lost_seconds": 60.0}}).checkpoint
    cadence = Cadence(config)
    assert cadence.interval(0.0) == 60.0
    cadence.saved(0.01)
    assert cadence.interval(0.0) == pytest.approx(math.sqrt(2 * 0.01 * 86_400))
    cadence.failures = 23
    assert cadence.interval(9_600.0) == pytest.approx(math.sqrt(2 * 0.01 * 4_000))
    cadence.saved(2.0)
    assert cadence.interval(0.0) == pytest.approx(100.5)
    assert "more than checkpoint.max_lost_seconds (60) can be lost" in caplog.text


@pytest.mark.parametrize("interval", [0, -1, float("inf"), "often"])
def test_an_interval_that_is_none_is_refused(interval: Any) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.interval"):
        train_config({"checkpoint": {"interval": interval}})

"""Sweeps that are killed, interrupted, stopped, out of budget, or whose trials fail."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from program import LIMIT_SECONDS, Program

from muse_spark_ray import Sweep

pytestmark = pytest.mark.ray

MODELS = """
import os
import time
import torch


class Slow(torch.nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def forward(self, x):
        time.sleep(self.seconds)
        return self.head(x)


class Bad(Slow):
    def forward(self, x):
        return super().forward(x) * float("nan")


def build(kind="good", seconds=0.0, **rest):
    if kind == "raises":
        raise RuntimeError("this model does not want to be built")
    return Bad(seconds) if kind == "nan" else Slow(seconds)
"""


def _spec(program: Program, name: str, search: str, budget: str, *, extra: str = "", epochs: int = 3) -> str:
    program.write("models.py", MODELS)
    path = program.folder / "models.py"
    return program.write(
        f"{name}.yaml",
        f"name: {name}\n"
        f"task: {{data: {{name: digits, max_samples: 256}}, model: {{name: factory, factory: '{path}:build'}}}}\n"
        f"train: {{epochs: {epochs}, max_bad_steps: 3, checkpoint: {{save_freq: epoch}}}}\n"
        f"search:\n{search}\nbudget: {budget}\n{extra}",
    )


def _open(program: Program, name: str) -> Sweep:
    return Sweep.open(program.store, name)


def _count(program: Program, name: str, state: str) -> int:
    try:
        return int((_open(program, name).trials()["state"] == state).sum())
    except Exception:
        return 0


def test_failing_trials_are_recorded_with_reason_and_cost_s1(program: Program) -> None:
    spec = _spec(
        program, "mixed", "  task.model.arguments.kind: [good, raises, nan]\n  optimizer.lr: [0.1, 0.2]", "{trials: 6}"
    )
    done = program("sweep", spec, "--progress", "plain")
    assert done.returncode == 3, done.stderr
    trials = _open(program, "mixed").trials().set_index("trial")
    failed = trials[trials["state"] == "failed"]
    assert len(trials) == 6
    assert len(failed) == 4
    reasons = " ".join(failed["reason"])
    assert "does not want to be built" in reasons
    assert "training diverged" in reasons
    intervals = _open(program, "mixed").intervals()
    spent = intervals[intervals["trial"].isin(failed.index)]
    assert float((spent["end"] - spent["start"]).sum()) > 0
    document = program.json("pareto", "mixed")
    assert document["excluded"]["failed"] >= 2
    assert not {point["trial"] for point in document["points"]} & set(failed.index)
    assert "4 trials failed" in done.stderr


def test_a_sweep_whose_trials_all_fail_ends_sweep_7(program: Program) -> None:
    spec = _spec(
        program,
        "hopeless",
        "  task.model.arguments.kind: [raises]\n  optimizer.lr: {low: 0.1, high: 0.2}",
        "{trials: 50, max_failed: 3}",
    )
    done = program("sweep", spec, "--progress", "none")
    assert done.returncode == 1, done.stderr
    assert "does not want to be built" in done.stderr
    assert "max_failed" in done.stderr
    assert _count(program, "hopeless", "failed") < 10
    assert program.json("pareto", "hopeless")["points"] == []


def test_an_exhausted_wall_time_budget_keeps_results(program: Program) -> None:
    spec = _spec(
        program,
        "timed",
        "  optimizer.lr: {low: 0.1, high: 0.2}\n  task.model.arguments.seconds: [0.05]",
        "{wall_seconds: 25}",
        epochs=4,
    )
    done = program("sweep", spec, "--progress", "none")
    assert done.returncode == 4, done.stderr
    assert "wall_seconds" in done.stderr
    assert program.json("status", "timed")["state"] == "stopped"
    assert program.json("pareto", "timed")["points"]


def test_a_killed_driver_is_resumed_without_losing_or_repeating_a_trial_s3(
    program: Program, wait_until: Callable[..., None]
) -> None:
    search = "  optimizer.lr: {low: 0.05, high: 0.3}\n  task.model.arguments.seconds: [0.05]"
    spec = _spec(program, "killed", search, "{trials: 8}", epochs=6)
    driver = program.start("sweep", spec, "--progress", "none")
    try:
        wait_until(
            lambda: _count(program, "killed", "finished") >= 3 or driver.poll() is not None, why="3 finished trials"
        )
        family = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGKILL)
        driver.wait(LIMIT_SECONDS)
    finally:
        driver.kill()
    wait_until(lambda: not _left(family), why="the end of the driver's processes")
    before = _open(program, "killed").trials().set_index("trial")
    finished = set(before.index[before["state"] == "finished"])
    assert program.json("status", "killed")["state"] == "interrupted"
    done = program("sweep", "--resume", "killed", "--progress", "plain")
    assert done.returncode == 0, done.stderr
    after = _open(program, "killed")
    trials = after.trials().set_index("trial")
    assert list(trials["state"]) == ["finished"] * 8
    assert trials["config_hash"].is_unique
    assert set(trials.index) == {f"t{number:04d}" for number in range(8)}
    # Trials that were finished were not run again, and those that ran went on from their checkpoint.
    intervals = after.intervals()
    again = set(intervals.loc[intervals["attempt"] > 0, "trial"]) - {""}
    assert not again & finished
    epochs = after.epochs()
    assert not epochs.duplicated(["trial", "epoch"]).any()
    for trial in again:
        own = epochs[epochs["trial"] == trial]
        assert sorted(own["epoch"]) == [1, 2, 3, 4, 5, 6]
    assert not intervals.duplicated().any()


def _left(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run; Ray's two agents look after their raylet at longer intervals."""
    left = []
    for process in family:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE and "Agent" not in process.name():
                left.append(process)
        except psutil.NoSuchProcess:
            continue
    return left


def test_ctrl_c_once_stops_cleanly_and_says_how_to_go_on(program: Program, wait_until: Callable[..., None]) -> None:
    search = "  optimizer.lr: {low: 0.05, high: 0.3}\n  task.model.arguments.seconds: [0.05]"
    spec = _spec(program, "interrupted", search, "{trials: 6}", epochs=6)
    driver = program.start("sweep", spec, "--progress", "plain")
    try:
        wait_until(
            lambda: _count(program, "interrupted", "finished") >= 1 or driver.poll() is not None, why="a finished trial"
        )
        driver.send_signal(signal.SIGINT)
        assert driver.wait(LIMIT_SECONDS) == 130, program.log()
    finally:
        driver.kill()
    assert "muse-spark sweep --resume interrupted" in program.log()
    assert "Traceback" not in program.log()
    assert program.json("pareto", "interrupted")["points"]
    assert program("sweep", "--resume", "interrupted", "--progress", "none").returncode == 0
    assert program.json("status", "interrupted")["trials"]["finished"] == 6


def test_a_killed_worker_costs_its_trial_one_more_start_sweep_5(
    program: Program, wait_until: Callable[..., None]
) -> None:
    search = "  optimizer.lr: {low: 0.05, high: 0.3}\n  task.model.arguments.seconds: [0.1]"
    spec = _spec(program, "bereft", search, "{trials: 3}", extra="resources: {workers: 1, concurrency: 1}\n", epochs=8)
    driver = program.start("sweep", spec, "--progress", "plain")
    try:
        wait_until(lambda: len(_epochs(program, "bereft")) >= 2 or driver.poll() is not None, why="two epochs")
        workers = [
            p for p in psutil.Process(driver.pid).children(recursive=True) if "RayTrainWorker" in " ".join(_cmdline(p))
        ]
        assert workers, "no worker process found"
        os.kill(workers[0].pid, signal.SIGKILL)
        assert driver.wait(LIMIT_SECONDS) == 0, program.log()
    finally:
        driver.kill()
    sweep = _open(program, "bereft")
    assert list(sweep.trials()["state"]) == ["finished"] * 3
    intervals = sweep.intervals()
    assert set(intervals.loc[intervals["trial"] == "t0000", "attempt"]) == {0, 1}
    assert "restart" in set(intervals["phase"])
    assert "runs again" in program.log()


def _epochs(program: Program, name: str) -> Any:
    try:
        return _open(program, name).epochs()
    except Exception:
        return []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_stop_from_another_terminal(program: Program, wait_until: Callable[..., None]) -> None:
    search = "  optimizer.lr: {low: 0.05, high: 0.3}\n  task.model.arguments.seconds: [0.05]"
    spec = _spec(program, "halted", search, "{trials: 100}", epochs=6)
    driver = program.start("sweep", spec, "--progress", "none")
    try:
        wait_until(
            lambda: _count(program, "halted", "finished") >= 1 or driver.poll() is not None, why="a finished trial"
        )
        second = program("sweep", "--resume", "halted")
        assert second.returncode == 2, program.log() + second.stderr
        assert str(driver.pid) in second.stderr
        assert program("stop", "halted").returncode == 0
        assert driver.wait(LIMIT_SECONDS) == 4, program.log()
    finally:
        driver.kill()
    assert program.json("status", "halted")["state"] == "stopped"


def test_two_workers_train_each_trial_together_and_odd_parameters_are_safe_space_6(program: Program) -> None:
    names = [
        f"'task.model.arguments.a rather long name / with: odd \u00e4 characters {number}'" for number in range(12)
    ]
    search = (
        "\n".join(f"  {name}: [{'x' * 40}, {'y' * 40}]" for name in names) + "\n  optimizer.lr: {low: 0.01, high: 0.1}"
    )
    spec = _spec(program, "pairs", search, "{trials: 4}", extra="resources: {workers: 2}\nsampler: nsga2\n")
    done = program("sweep", spec, "--progress", "none")
    assert done.returncode == 0, done.stderr
    sweep = _open(program, "pairs")
    assert list(sweep.trials()["state"]) == ["finished"] * 4
    assert set(sweep.intervals()["amount"]) == {2.0}
    assert set(sweep.epochs()["effective_batch_size"]) == {128}
    folders = sorted(path.name for path in (program.store / "pairs" / "checkpoints").iterdir())
    assert folders == ["t0000", "t0001", "t0002", "t0003"]
    assert len(sweep.settings()["t0003"]) == 13


def test_a_full_disk_ends_the_sweep_and_loses_nothing(program: Program) -> None:
    disk = program.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        spec = _spec(program, "cramped", "  optimizer.lr: {low: 0.05, high: 0.3}", "{trials: 24}")
        full = program("sweep", spec, "--store", str(disk), "--progress", "none")
        assert full.returncode == 5, full.stderr
        assert "No space left on device" in full.stderr
        assert f"muse-spark sweep --resume cramped --store {disk}" in full.stderr
        assert "Traceback" not in full.stderr
        before = Sweep.open(disk, "cramped").trials()
        assert len(before) > 0
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        done = program("sweep", "--resume", "cramped", "--store", str(disk), "--progress", "none")
        assert done.returncode == 0, done.stderr
        after = Sweep.open(disk, "cramped").trials().set_index("trial")
        assert list(after["state"]) == ["finished"] * 24
        assert set(before["trial"]) <= set(after.index)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)

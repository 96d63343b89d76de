"""What a trial costs besides its training: a warm trial of a real sweep, plain Ray Tune, and a TorchTrainer in a trial.

    python experiments/benchmarks/trial_overhead.py [--trials 100] [--json overhead.json]

Ours is a whole sweep through Tune, gangs and ledger, one trial at a time: wall time between the first trial's start and
the last one's end, less the time its trials trained, evaluated and saved, divided by the number of trials. Plain Tune runs
function trials that report twice and do nothing, in a new process each and with `reuse_actors`. The naive pattern calls
`TorchTrainer.fit()` inside a Tune trial.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SPEC = """\
name: warm
task: {{data: {{name: digits, max_samples: 200}}, model: {{name: linear}}}}
train: {{epochs: 2}}
search: {{optimizer.lr: {{low: 0.001, high: 0.3, log: true}}}}
budget: {{trials: {trials}}}
resources: {{workers: {workers}, concurrency: 1}}
sampler: random
"""
USEFUL = ("train", "data_wait", "evaluate", "checkpoint")


def ours(trials: int, workers: int) -> dict[str, float]:
    """Seconds a warm trial takes beyond its training, and seconds from the command to the first trial's start."""
    from muse_spark_ray import Sweep

    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "warm.yaml"
        spec.write_text(SPEC.format(trials=trials, workers=workers))
        began = time.time()
        command = [sys.executable, "-m", "muse_spark_ray", "sweep", str(spec), "--store", folder, "--progress", "none"]
        subprocess.run(command, check=True, capture_output=True)
        intervals = Sweep.open(folder, "warm").intervals()
    own = intervals[intervals["trial"] != ""]
    # The first trials of a gang load torch's kernels and the data; steady state is what comes after a tenth of them.
    names = sorted(own["trial"].unique())[trials // 10 :]
    steady = own[own["trial"].isin(names)]
    useful = steady[steady["phase"].isin(USEFUL)]
    wall = float(steady["end"].max() - steady["start"].min())
    return {
        "seconds": (wall - float((useful["end"] - useful["start"]).sum())) / len(names),
        "first_start_seconds": float(own["start"].min()) - began,
    }


def plain_tune(trials: int, *, reuse: bool) -> float:
    """Seconds a Tune trial takes that reports twice and does nothing, one at a time."""
    from ray import tune

    from muse_spark_ray.search.tuning import SETTINGS

    os.environ.update({name: value for name, value in SETTINGS.items() if name != "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"})

    def empty(config: dict[str, Any]) -> None:
        tune.report({"x": 1})
        tune.report({"x": 2})

    config = tune.TuneConfig(num_samples=trials, max_concurrent_trials=1, reuse_actors=reuse)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        tune.Tuner(empty, tune_config=config, run_config=tune.RunConfig(storage_path=folder, verbose=0)).fit()
        return (time.perf_counter() - start) / trials


def trainer_in_trial(trials: int) -> float:
    """Seconds of a Tune trial that calls `TorchTrainer.fit()` on one worker, one at a time."""
    import ray.train
    from ray import tune
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    def loop(config: dict[str, Any]) -> None:
        ray.train.report({"x": 1})
        ray.train.report({"x": 2})

    def trial(config: dict[str, Any]) -> None:
        name = tune.get_context().get_trial_id()
        run = ray.train.RunConfig(name=name, storage_path=config["folder"], callbacks=[TuneReportCallback()])
        TorchTrainer(loop, scaling_config=ray.train.ScalingConfig(num_workers=1), run_config=run).fit()

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        tune.Tuner(
            tune.with_resources(trial, {"trial_slot": 1}),
            param_space={"folder": folder},
            tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=1),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
        return (time.perf_counter() - start) / trials


def peers(trials: int) -> dict[str, float]:
    """Measure the patterns without gangs on one embedded Ray."""
    from muse_spark_ray.runtime import open_ray

    with open_ray(num_cpus=2):
        return {
            "Tune, reused processes": plain_tune(trials, reuse=True),
            "Tune, a process each": plain_tune(max(trials // 10, 3), reuse=False),
            "TorchTrainer.fit() in a Tune trial": trainer_in_trial(2),
        }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--json", type=Path, default=None, help="file to write the figures to")
    chosen = parser.parse_args()
    one, two = ours(chosen.trials, 1), ours(chosen.trials, 2)
    rows = {
        "muse-spark sweep, 1 worker": one["seconds"],
        "muse-spark sweep, 2 workers": two["seconds"],
        **peers(chosen.trials),
    }
    table = Table(title="Seconds a trial takes beyond its training, one at a time")
    for title in ("pattern", "seconds", "x of ours"):
        table.add_column(title, justify="left" if title == "pattern" else "right")
    for name, seconds in rows.items():
        table.add_row(name, f"{seconds:.4f}", f"{seconds / one['seconds']:.1f}")
    console = Console()
    console.print(table)
    console.print(
        f"command to first trial: {one['first_start_seconds']:.1f} s with 1 worker, {two['first_start_seconds']:.1f} s with 2"
    )
    console.print(f"load average at the end: {os.getloadavg()[0]:.2f}")
    if chosen.json is not None:
        document = {
            "seconds": rows,
            "first_start_seconds": {"1": one["first_start_seconds"], "2": two["first_start_seconds"]},
        }
        chosen.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

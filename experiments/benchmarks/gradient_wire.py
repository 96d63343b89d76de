"""Seconds per update of two workers behind a slow link, with each way of exchanging gradients.

    sudo python experiments/benchmarks/gradient_wire.py [--mbit 100] [--updates 6] [--json wire.json]

A 10-million-parameter MLP in two network namespaces, joined by a link that `tc tbf` shapes to so many Mbit/s each
way. Every way trains in the same run, one after the other; the ratio is to DDP's plain all-reduce, the limit is the
time that the plain gradients need on the wire. Accuracy is of another training without the shaped link: an MLP on
scikit-learn's digits, two workers, mean over seeds. Linux only: it needs the right to make network namespaces.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

SIDES = ("muse_a", "muse_b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
WIDE, FEATURES, CLASSES = 2_100, 1_024, 10
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"gradient_compression": {"method": "fp16"}},
    "int8": {"gradient_compression": {"method": "int8", "warmup_updates": 0}},
    "powersgd": {"gradient_compression": {"method": "powersgd", "warmup_updates": 0}},
    "topk": {"gradient_compression": {"method": "topk", "warmup_updates": 0}},
    "local_sgd": {"local_sgd": {"every": 8, "begin": 0}},
}


def run(*command: str) -> None:
    """Run a command, which must succeed."""
    subprocess.run(command, check=True, capture_output=True, text=True)


def make_link(mbit: float) -> None:
    """Make two network namespaces and the shaped link between them."""
    remove_link()
    for side in SIDES:
        run("ip", "netns", "add", side)
    run("ip", "link", "add", "muse0", "netns", SIDES[0], "type", "veth", "peer", "name", "muse0", "netns", SIDES[1])
    shape = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "400ms"]
    for side, address in zip(SIDES, ADDRESSES, strict=True):
        run("ip", "-n", side, "addr", "add", f"{address}/24", "dev", "muse0")
        run("ip", "-n", side, "link", "set", "muse0", "up")
        run("ip", "-n", side, "link", "set", "lo", "up")
        run("tc", "-n", side, "qdisc", "add", "dev", "muse0", "root", "tbf", *shape)


def remove_link() -> None:
    """Remove the namespaces, and with them the link."""
    for side in SIDES:
        subprocess.run(["ip", "netns", "del", side], capture_output=True, check=False)


def train(way: str, updates: int) -> dict[str, Any]:
    """Train on this rank; return the seconds of each update but the first two, and the bytes sent in one."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from muse_spark_ray import MuseSparkTrainer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(FEATURES, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(),
        nn.Linear(WIDE, 1_200), nn.ReLU(), nn.Linear(1_200, CLASSES),
    )  # fmt: skip
    samples = 16 * (updates + 2)
    data = TensorDataset(torch.randn(samples, FEATURES), torch.arange(samples) % CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    stamps: list[float] = []
    optimizer.register_step_post_hook(lambda *_: stamps.append(time.perf_counter()))
    trainer = MuseSparkTrainer(net, optimizer, None, data, None, {"batch_size": 8, "strategies": WAYS[way]})
    trainer.fit(1)
    # Local SGD's averages fall between two updates: the mean over whole periods counts them, a median would not.
    return {
        "seconds": (stamps[-1] - stamps[1]) / (len(stamps) - 2),
        "parameters": sum(p.numel() for p in net.parameters()),
    }


def accuracy(way: str, seed: int) -> float:
    """Return the accuracy, in percent, of an MLP on digits after training on this rank and the other."""
    import torch
    from torch import nn

    from muse_spark_ray import MuseSparkTrainer
    from muse_spark_ray.data import DataConfig, load_task

    torch.set_num_threads(1)
    task = load_task(DataConfig(name="digits"))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    block = {name: dict(own) for name, own in WAYS[way].items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    config = {"batch_size": 16, "seed": seed, "strategies": block, "schedule": {"type": "cosine"}}
    trainer = MuseSparkTrainer(net, optimizer, None, task.train, task.validation, config)
    return float(trainer.fit(15)["history"][-1]["accuracy"]) * 100.0


def on_both_sides(prefixes: list[list[str]], environment: dict[str, str], *arguments: str) -> Any:
    """Run this script as rank 0 and rank 1; return what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        ranks = []
        for rank, prefix in enumerate(prefixes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", **environment}
            command = [*prefix, sys.executable, __file__, "--worker", str(out), *arguments]
            ranks.append(subprocess.Popen(command, env=os.environ | own))
        try:
            if any(rank.wait() for rank in ranks):
                raise RuntimeError(f"a worker failed: {arguments}")
        finally:
            for rank in ranks:
                rank.kill()
        return json.loads(out.read_text())


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=100.0, help="of the link, each way")
    parser.add_argument("--updates", type=int, default=6, help="updates measured of each way")
    parser.add_argument("--seeds", type=int, default=3, help="trainings on digits of each way")
    parser.add_argument("--json", type=Path, default=None, help="file for the figures")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--way", default="plain", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        logging.disable(logging.WARNING)
        result = train(chosen.way, chosen.updates) if chosen.seed is None else accuracy(chosen.way, chosen.seed)
        if os.environ["RANK"] == "0":
            chosen.worker.write_text(json.dumps(result))
        return
    figures = measure(chosen)
    print_table(figures)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return seconds, ratio and accuracy of each way."""
    ways: dict[str, dict[str, float]] = {}
    far = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "muse0"}
    near = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29401", "GLOO_SOCKET_IFNAME": "lo"}
    parameters = 0
    try:
        make_link(chosen.mbit)
        for way in WAYS:
            updates = chosen.updates * (8 if way == "local_sgd" else 1)
            prefixes = [["ip", "netns", "exec", side] for side in SIDES]
            found = on_both_sides(prefixes, far, "--way", way, "--updates", str(updates))
            ways[way] = {"seconds": found["seconds"]}
            parameters = found["parameters"]
    finally:
        remove_link()
    for way, row in ways.items():
        row["speed"] = ways["plain"]["seconds"] / row["seconds"]
        scores = [on_both_sides([[], []], near, "--way", way, "--seed", str(seed)) for seed in range(chosen.seeds)]
        row["accuracy"] = mean(scores)
        row["accuracy_median"] = median(scores)
    return {
        "mbit": chosen.mbit,
        "parameters": parameters,
        "limit_seconds": 4 * parameters * 8 / (chosen.mbit * 1e6),
        "ways": ways,
    }


def print_table(figures: dict[str, Any]) -> None:
    """Print the figures."""
    from rich.console import Console
    from rich.table import Table

    title = f"{figures['parameters']:,} parameters, {figures['mbit']:g} Mbit/s; the wire alone: "
    table = Table("exchange", "s an update", "x plain", "accuracy %", title=f"{title}{figures['limit_seconds']:.2f} s")
    for way, row in figures["ways"].items():
        table.add_row(way, f"{row['seconds']:.3f}", f"{row['speed']:.1f}", f"{row['accuracy']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()

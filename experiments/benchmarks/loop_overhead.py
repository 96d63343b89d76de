"""Time per step of training loops on the same work, as ratios to the bare PyTorch loop of the same run.

    python experiments/benchmarks/loop_overhead.py [--rounds 11] [--json loop.json]

Fashion-MNIST in memory, batch 128, SGD with momentum, one thread. `limit` indexes tensors directly, `bare` is a
DataLoader and the plain loop, `muse` is MuseSparkTrainer with the same DataLoader, `muse (tensors)` the same on a
TensorDataset. Accelerate, Fabric and Lightning take part if they are installed. All run interleaved in one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from muse_spark_ray import MuseSparkTrainer  # noqa: E402
from muse_spark_ray.data import DataConfig, load_task  # noqa: E402

torch.set_num_threads(1)
BATCH, SAMPLES = 128, 25_600
Epoch = Callable[[], Any]


class InMemory(Dataset[Any]):
    """A map-style data set that hands out whole batches."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.targets[index]

    def __getitems__(self, indices: list[int]) -> Any:
        rows = torch.tensor(indices)
        return self.inputs[rows], self.targets[rows]


def network(kind: str) -> nn.Module:
    """Return one of the two small networks, always with the same weights."""
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    first, second = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(784, 10))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that all loops use."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loader(data: InMemory) -> DataLoader[Any]:
    """Return a shuffling loader whose batches need no collating."""
    return DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch


def limit(kind: str, data: InMemory) -> Epoch:
    """Index tensors directly."""
    model = network(kind)
    optimizer = sgd(model)

    def epoch() -> None:
        order = torch.randperm(len(data))
        for start in range(0, len(data), BATCH):
            rows = order[start : start + BATCH]
            loss = functional.cross_entropy(model(data.inputs[rows]), data.targets[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return epoch


def bare(kind: str, data: InMemory) -> Epoch:
    """The loop of the tutorials."""
    model = network(kind)
    optimizer, batches = sgd(model), loader(data)

    def epoch() -> None:
        for inputs, targets in batches:
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return epoch


def muse(kind: str, data: InMemory) -> Epoch:
    """MuseSparkTrainer on the same loader."""
    return _growing(kind, loader(data))


def muse_tensors(kind: str, data: InMemory) -> Epoch:
    """MuseSparkTrainer on tensors in memory."""
    return _growing(kind, TensorDataset(data.inputs, data.targets))


def _growing(kind: str, source: Any) -> Epoch:
    model = network(kind)
    trainer = MuseSparkTrainer(
        model, sgd(model), nn.CrossEntropyLoss(), source, None, {"use_amp": False, "batch_size": BATCH}
    )
    done = 0

    def epoch() -> None:
        nonlocal done
        done += 1
        trainer.fit(epochs=done)

    return epoch


def accelerate(kind: str, data: InMemory) -> Epoch:
    """Hugging Face Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network(kind)
    model, optimizer, batches = accelerator.prepare(model, sgd(model), loader(data))

    def epoch() -> None:
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                accelerator.backward(functional.cross_entropy(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()

    return epoch


def fabric(kind: str, data: InMemory) -> Epoch:
    """Lightning Fabric."""
    from lightning.fabric import Fabric

    launcher = Fabric(accelerator="cpu", devices=1)
    model = network(kind)
    model, optimizer = launcher.setup(model, sgd(model))
    batches = launcher.setup_dataloaders(loader(data))

    def epoch() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            launcher.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()

    return epoch


LOOPS: dict[str, Callable[[str, InMemory], Epoch]] = {
    "limit": limit,
    "bare": bare,
    "muse": muse,
    "muse (tensors)": muse_tensors,
}
PEERS = {"accelerate": ("accelerate", accelerate), "fabric": ("lightning", fabric)}


def measure(kind: str, rounds: int, data: InMemory) -> dict[str, float]:
    """Return the median microseconds per step of each loop."""
    loops = LOOPS | {name: loop for name, (module, loop) in PEERS.items() if importlib.util.find_spec(module)}
    epochs = {name: loop(kind, data) for name, loop in loops.items()}
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for epoch in epochs.values():
        epoch()
    for _ in range(rounds):
        for name, epoch in epochs.items():
            start = time.perf_counter()
            epoch()
            seconds[name].append(time.perf_counter() - start)
    steps = -(-len(data) // BATCH)
    return {name: float(np.median(times)) / steps * 1e6 for name, times in seconds.items()}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path, default=None, help="file to write the figures to")
    chosen = parser.parse_args()
    task = load_task(DataConfig(name="fashion_mnist", max_samples=SAMPLES))
    data = InMemory(task.train.inputs, task.train.targets)
    results = {kind: measure(kind, chosen.rounds, data) for kind in ("mlp", "cnn")}
    table = Table(title=f"Microseconds per step, median of {chosen.rounds} interleaved epochs")
    for title in ("network", "loop", "µs/step", "x of bare", "x of limit"):
        table.add_column(title, justify="left" if title in ("network", "loop") else "right")
    for kind, times in results.items():
        for name, time_ in times.items():
            table.add_row(kind, name, f"{time_:.0f}", f"{time_ / times['bare']:.3f}", f"{time_ / times['limit']:.3f}")
    Console().print(table)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

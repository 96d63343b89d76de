"""What each strategy costs an update: time with it over time without it, in turns, on a small CNN.

    python experiments/benchmarks/strategy_overhead.py [--rounds 5] [--json strategy_overhead.json]

Strategies that save work (adaptive sampling, selective backprop, progressive resizing, early stopping) are measured
with all samples in use or per sample trained on, so that the number is their own cost and not what they save; those that
act at the end of an epoch are switched on and wait. What makes no sense for images is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import MuseSparkError
from muse_spark_ray.strategy import strategies

SAMPLES, CLASSES, BATCH = 2048, 10, 64
SETTINGS: dict[str, dict[str, Any]] = {
    "activation_checkpointing": {"blocks": "6"},
    "adaptive_sampling": {"warmup_epochs": 100, "update_freq": 10},
    "distillation": {"teacher": f"{__file__}:teacher"},
    "early_stopping": {"metric": "train_loss", "patience": 100},
    "layer_freezing": {"begin": 100},
    "magnitude_pruning": {"begin": 1, "end": 1000, "every": 10},
    "plateau": {"metric": "train_loss", "patience": 100},
    "progressive_resizing": {"start": 1.0},
    "selective_backprop": {"warmup_epochs": 0, "fraction": 1.0},
    "stochastic_depth": {"blocks": "6"},
    "structured_pruning": {"begin": 100},
    "swa": {"start_epoch": 0, "every": 1},
}


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def net() -> nn.Module:
    """Return a small convolutional network for 28 x 28 images, with one residual block and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        Residual(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(512, CLASSES),
    )


def teacher() -> nn.Module:
    """Return a teacher of the student's own size."""
    return net()


def seconds_per_sample(block: dict[str, Any]) -> float:
    """Train two epochs with a `strategies` block; return the time of a sample in the second."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SAMPLES, 1, 28, 28, generator=generator)
    data = TensorDataset(images, torch.randint(CLASSES, (SAMPLES,), generator=generator))
    config = {"batch_size": BATCH, "optimizer": {"lr": 0.01}, "strategies": block}
    history = MuseSparkTrainer(net(), None, None, data, None, config).fit(2)["history"]
    return 1.0 / float(history[-1]["samples_per_second"])


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Return the ratio of a strategy: the median over rounds in which on and off take turns."""
    block = {name: SETTINGS.get(name, {})}
    ratios = [seconds_per_sample(block) / seconds_per_sample({}) for _ in range(rounds)]
    return {"strategy": name, "ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def main() -> None:
    """Measure all packaged strategies, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("strategy_overhead.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in strategies():
        try:
            rows.append(measure(name, arguments.rounds))
        except MuseSparkError as error:
            print(f"{name:24} - ({error})", flush=True)
            continue
        print("{strategy:24} x {ratio:.2f}   ({lowest:.2f} to {highest:.2f})".format(**rows[-1]), flush=True)
    arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

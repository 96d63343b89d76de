"""What saving costs a training with 200 MB of state: time of the same updates with and without it.

    python experiments/benchmarks/checkpoint_stall.py [--seconds 60] [--rounds 3] [--json stall.json]

An MLP with momentum on random data, one thread for the network. Each way makes the same number of updates in one
epoch, so that all saves fall between two updates. `none` saves nothing, `muse` has the defaults (in the background,
interval auto, at most 30 s apart), `muse, waiting` the same in the foreground, `torch.save` writes model, optimizer and
a copy of the weights with `torch.save` every 30 s, as scripts do: neither flushed to disk nor verified. Rounds take
turns, and the overhead is that of the medians; the stall is the time in which training stood still.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import TensorDataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.cost import Phase, PhaseClock

INTERVAL_SECONDS = 30.0
BATCH = 64
WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "muse": {},
    "muse, waiting": {"in_background": False},
    "torch.save": None,
}


def train(way: str, updates: int, folder: Path) -> dict[str, float]:
    """Train one epoch; return its seconds, those of the stall, and the number of saves."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 3500), nn.ReLU(), nn.Linear(3500, 3500), nn.ReLU(), nn.Linear(3500, 300))
    data = TensorDataset(torch.randn(BATCH * updates, 1024), torch.arange(BATCH * updates) % 300)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    saves, stalled, last = 0, 0.0, time.monotonic()

    def save_as_scripts_do(*_: Any) -> None:
        nonlocal saves, stalled, last
        began = time.monotonic()
        if began - last < INTERVAL_SECONDS:
            return
        best = {name: value.clone() for name, value in net.state_dict().items()}
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "best": best}
        torch.save(state, folder / "state.pt")
        saves, last = saves + 1, time.monotonic()
        stalled += last - began

    if way == "torch.save":
        optimizer.register_step_post_hook(save_as_scripts_do)
    own = WAYS[way]
    checkpoint = {} if own is None else {"save_dir": str(folder), **own}
    clock = PhaseClock()
    trainer = MuseSparkTrainer(
        net, optimizer, None, data, None, {"batch_size": BATCH, "checkpoint": checkpoint}, clock=clock
    )
    began, within = time.monotonic(), 0.0

    def note(record: Any) -> bool:
        # What follows the epoch, and its last save, every way of training has to wait for.
        nonlocal within
        within = time.monotonic() - began
        return True

    clock.drain()
    spans: list[Any] = []

    def note_spans(record: Any) -> bool:
        spans.extend(record.spans)
        return note(record)

    trainer.fit(2, on_epoch=note_spans)
    if own is not None:
        stalled = sum(span.end - span.start for span in spans if span.phase is Phase.checkpoint)
        saves = len(list(folder.glob("epoch_*")))
    return {"seconds": within, "stalled": stalled, "saves": saves}


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long each way trains")
    parser.add_argument("--rounds", type=int, default=3, help="times that each way trains")
    parser.add_argument("--json", type=Path, default=None, help="file for the figures")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        per_update = train("none", 20, Path(folder))["seconds"] / 20
    updates = max(20, round(chosen.seconds / per_update))
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(chosen.rounds):
        for way, results in found.items():
            with tempfile.TemporaryDirectory() as folder:
                results.append(train(way, updates, Path(folder)))
    plain = median(result["seconds"] for result in found["none"])
    rows = {
        way: {
            "seconds": median(result["seconds"] for result in results),
            "overhead": median(result["seconds"] for result in results) / plain - 1.0,
            "stall_share": median(result["stalled"] / result["seconds"] for result in results),
            "saves": median(result["saves"] for result in results),
        }
        for way, results in found.items()
    }
    table = Table("saving", "seconds", "overhead", "stall", "saves", title=f"{updates} updates, 200 MB of state")
    for way, row in rows.items():
        overhead, stall = f"{row['overhead']:+.2%}", f"{row['stall_share']:.2%}"
        table.add_row(way, f"{row['seconds']:.1f}", overhead, stall, f"{row['saves']:g}")
    Console().print(table)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"updates": updates, "ways": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Prints what each choice of an ablation sweep brought: accuracy and cost over its seeds, against the first choice.

muse-spark sweep experiments/ablation.yaml
python experiments/ablation.py [SWEEP] [--store STORE]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import pandas as pd

from muse_spark_ray import Sweep

COLUMNS = ("what", "seeds", "accuracy", "+-", "CPU-seconds", "cost", "to baseline", "cost then")


def label(settings: dict[str, Any]) -> str:
    """Name a choice by what was drawn for it, the seed left out."""
    parts = {path: value for path, value in settings.items() if path not in ("seed", "strategies")}
    parts |= settings.get("strategies") or {}
    words = [name if value is True else f"{name} {_short(value)}" for name, value in parts.items()]
    return ", ".join(words) or "baseline"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={inner}" for key, inner in value.items())
    return str(value)


def ablation(sweep: Sweep) -> pd.DataFrame:
    """Compare the choices of a sweep.

    Args:
        sweep: Its first trial is the baseline; trials that differ in their seed only are one choice.

    Returns:
        One row a choice, in the order of the trials: mean and deviation of the last accuracy, CPU-seconds of a trial
        without its start, their ratio to the baseline's, the share of seeds that reach the baseline's mean accuracy at some epoch, and
        the mean cost at which they do, relative to the baseline's whole cost.
    """
    settings = sweep.settings()
    points = sweep.points().assign(seconds=lambda frame: frame["cpu_core_hours"] * 3600)
    # The first trial of a process waits for its start, which is no cost of what was chosen for it.
    starts = sweep.intervals().query("phase == 'start'")
    waited = ((starts["end"] - starts["start"]) * starts["amount"]).groupby(starts["trial"]).sum()
    points["seconds"] -= points["trial"].map(waited).fillna(0.0)
    points["what"] = [label(settings[trial]) for trial in points["trial"]]
    last = points.sort_values("epoch").groupby("trial", sort=False).tail(1)
    baseline = last[last["what"] == label(settings[min(settings)])]
    accuracy, seconds = baseline["accuracy"].mean(), baseline["seconds"].mean()
    rows = []
    for what in dict.fromkeys(label(settings[trial]) for trial in sorted(settings)):
        own = last[last["what"] == what]
        reached = points[(points["what"] == what) & (points["accuracy"] >= accuracy)].groupby("trial")["seconds"].min()
        rows.append(
            {
                "what": what,
                "seeds": len(own),
                "accuracy": own["accuracy"].mean(),
                "+-": own["accuracy"].std(),
                "CPU-seconds": own["seconds"].mean(),
                "cost": own["seconds"].mean() / seconds,
                "to baseline": f"{len(reached)}/{len(own)}",
                "cost then": reached.mean() / seconds,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def main() -> None:
    """Print the table as Markdown, and as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="?", default="ablation")
    parser.add_argument("--store")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table = ablation(Sweep.open(arguments.store, arguments.sweep))
    if arguments.json:
        print(json.dumps(table.astype(object).where(table.notna(), None).to_dict("records"), indent=1))
        return
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for row in table.to_dict("records"):
        shown = [
            row["what"],
            row["seeds"],
            f"{row['accuracy']:.4f}",
            f"{row['+-']:.4f}",
            f"{row['CPU-seconds']:.1f}",
            f"x {row['cost']:.2f}",
            row["to baseline"],
            "-" if pd.isna(row["cost then"]) else f"x {row['cost then']:.2f}",
        ]
        print("| " + " | ".join(map(str, shown)) + " |")


if __name__ == "__main__":
    main()

"""Looks at a data set before money is spent on it: leaks, duplicates, missing values, classes, drift."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np

from muse_spark_ray.data.checks import check_arrays
from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.findings import Finding, Level
from muse_spark_ray.data.readers import read
from muse_spark_ray.data.readers.found import Array, Arrays
from muse_spark_ray.data.sources import where_of
from muse_spark_ray.data.splits import Rows, split_rows
from muse_spark_ray.errors import ConfigError, DataError

_RARE, _SKEWED = 10, 10.0
_DRIFT = 0.5
_SHOWN = 5


def inspect_data(config: DataConfig) -> list[Finding]:
    """Read and split a data set and say what is wrong with it.

    Returns:
        One finding a check; what cannot be read or trained on at all is a failure, after which nothing else is looked at.
    """
    try:
        found = read(config)
    except (DataError, ConfigError) as error:
        return [Finding("reading", "failure", error.message, error.hint or "")]
    findings = [_reading(found), _missing(found)]
    try:
        check_arrays(found.inputs, found.targets, where=where_of(config))
        train, held_out = split_rows(found.targets, config, fixed=found.fixed, keys=found.keys)
    except (DataError, ConfigError) as error:
        return [*findings, Finding("labels and shapes", "failure", error.message, error.hint or "")]
    train = train[: config.max_samples]
    findings.append(_split(train, held_out, config))
    if np.issubdtype(found.targets.dtype, np.integer):
        findings += [_classes(found, train), _absent_classes(found, train, held_out)]
    keys = [_key(row) for row in found.inputs]
    findings += [
        _duplicates(keys, train),
        _leaks(keys, train, held_out),
        _contradictions(keys, found.targets, train),
        _constant(found.inputs, train),
        _drift(found.inputs, train, held_out),
    ]
    return findings


def _reading(found: Arrays) -> Finding:
    shape = " x ".join(map(str, found.inputs.shape[1:])) or "1"
    evidence = f"{len(found.inputs):,} samples of {shape} values ({found.inputs.dtype}), targets {found.targets.dtype}"
    if found.skipped:
        return Finding(
            "reading",
            "warning",
            f"{evidence}; {len(found.skipped)} left out, first {found.skipped[0]}",
            "fetch these again",
        )
    return Finding("reading", "ok", evidence)


def _missing(found: Arrays) -> Finding:
    if not np.issubdtype(found.inputs.dtype, np.floating):
        return Finding("missing values", "ok", "integers throughout")
    bad = ~np.isfinite(found.inputs.reshape(len(found.inputs), -1))
    if not bad.any():
        return Finding("missing values", "ok", "all values are finite")
    columns = np.flatnonzero(bad.any(0))[:_SHOWN].tolist()
    return Finding(
        "missing values",
        "failure",
        f"{int(bad.any(1).sum())} of {len(bad)} samples have values that are not finite, in the columns {columns}",
        "fill or drop them before training",
    )


def _split(train: Rows, held_out: Rows, config: DataConfig) -> Finding:
    kind = config.split if config.folds is None else f"fold {config.fold} of {config.folds}, {config.split}"
    return Finding("split", "ok", f"{len(train):,} for training, {len(held_out):,} for validation ({kind})")


def _classes(found: Arrays, train: Rows) -> Finding:
    counts = np.bincount(found.targets[train])
    present = counts[counts > 0]
    low, high = int(present.min()), int(present.max())
    evidence = f"{len(present)} classes, from {low:,} ({_label(found, int(np.argmin(np.where(counts, counts, high + 1))))}) to "
    evidence += f"{high:,} samples ({_label(found, int(counts.argmax()))})"
    if low < _RARE or high / low > _SKEWED:
        return Finding(
            "class balance",
            "warning",
            evidence,
            "strategies.class_weights, balanced_sampling or logit_adjustment; task.metric: balanced_accuracy",
        )
    return Finding("class balance", "ok", evidence)


def _absent_classes(found: Arrays, train: Rows, held_out: Rows) -> Finding:
    every = np.arange(int(found.targets.max()) + 1)
    gone = {
        part: [_label(found, int(c)) for c in np.setdiff1d(every, found.targets[rows])][:_SHOWN]
        for part, rows in (("training", train), ("validation", held_out))
    }
    told = "; ".join(f"{part} lacks {', '.join(names)}" for part, names in gone.items() if names)
    if not told:
        return Finding("classes in both parts", "ok", "every class is in training and validation")
    level: Level = "failure" if gone["training"] else "warning"
    return Finding(
        "classes in both parts", level, told, "split: stratified, a larger validation_fraction, or more samples"
    )


def _duplicates(keys: list[bytes], train: Rows) -> Finding:
    counts = Counter(keys[row] for row in train)
    extra = sum(count - 1 for count in counts.values())
    if not extra:
        return Finding("duplicates in training", "ok", "no sample occurs twice")
    share = extra / len(train)
    evidence = f"{extra:,} of {len(train):,} training samples ({share:.1%}) repeat another"
    return Finding(
        "duplicates in training", "warning" if share > 0.05 else "note", evidence, "drop them: they cost time"
    )


def _leaks(keys: list[bytes], train: Rows, held_out: Rows) -> Finding:
    known = {keys[row] for row in train}
    leaked = [int(row) for row in held_out if keys[row] in known]
    if not leaked:
        return Finding("leaks", "ok", "no validation sample is in training")
    evidence = f"{len(leaked):,} of {len(held_out):,} validation samples are in training too, first row {leaked[0]}"
    return Finding(
        "leaks",
        "warning",
        evidence,
        "drop duplicates before splitting, or keep what belongs together with split: group",
    )


def _contradictions(keys: list[bytes], targets: Array, train: Rows) -> Finding:
    first: dict[bytes, Any] = {}
    differing = {
        keys[row] for row in train if not np.array_equal(first.setdefault(keys[row], targets[row]), targets[row])
    }
    if not differing:
        return Finding("contradictions", "ok", "equal samples have equal targets")
    evidence = f"{len(differing):,} samples occur with different targets"
    return Finding("contradictions", "warning", evidence, "correct the labels; strategies.robust_loss bears some")


def _constant(inputs: Array, train: Rows) -> Finding:
    if inputs.ndim > 2:
        return Finding("constant columns", "ok", "images or sequences: not looked at")
    constant = np.flatnonzero(np.ptp(inputs[train], axis=0) == 0)
    if not len(constant):
        return Finding("constant columns", "ok", "every column varies")
    return Finding("constant columns", "note", f"columns {constant[:_SHOWN].tolist()} never vary", "drop them")


def _drift(inputs: Array, train: Rows, held_out: Rows) -> Finding:
    """Compare the means of columns, or of the brightness of images, in deviations of the training part."""
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    values = flat if inputs.ndim == 2 else flat.mean(1, keepdims=True)
    deviation = values[train].std(0)
    shift = np.abs(values[held_out].mean(0) - values[train].mean(0)) / np.where(deviation > 0, deviation, np.inf)
    # With few rows means differ by chance: three standard errors are allowed for.
    allowed = max(_DRIFT, 3.0 / np.sqrt(len(held_out)))
    worst = int(shift.argmax())
    what = f"column {worst}" if inputs.ndim == 2 else "brightness"
    evidence = f"largest shift of a mean: {shift[worst]:.2f} deviations ({what})"
    if shift[worst] > allowed:
        return Finding(
            "drift", "warning", evidence, "is validation from another time or source? See split: time and group"
        )
    return Finding("drift", "ok", evidence)


def _key(row: Array) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest()


def _label(found: Arrays, number: int) -> str:
    return found.labels[number] if found.labels and number < len(found.labels) else f"class {number}"

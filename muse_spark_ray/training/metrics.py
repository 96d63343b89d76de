"""Validation metrics, exact over batches and ranks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.metrics import METRICS, MetricSettings, unfit

_FROM_COUNTS = ("balanced_accuracy", "f1", "utility")
_BY_CLASS = ("roc_auc", "pr_auc", "recall_at_precision")
_BUILT_IN = ("accuracy", "val_loss")
_IGNORED = -100
_TIMED_PASSES = 20


class MetricSet:
    """The metrics of a task besides loss and accuracy: fed batch by batch, read once.

    What is counted over all ranks by torchmetrics depends neither on the sizes of batches nor on the number of ranks.

    Args:
        names: As in `muse_spark_ray.spec.metrics.METRICS`.
        settings: Numbers that some need.
        classes: Number of classes, None for real targets.
        device: Where outputs are.

    Raises:
        ConfigError: If the task cannot report one of them.
    """

    def __init__(
        self, names: Sequence[str], settings: MetricSettings, *, classes: int | None, device: torch.device
    ) -> None:
        self._names = [name for name in dict.fromkeys(names) if name not in _BUILT_IN]
        for name in names:
            if reason := unfit(name, settings, classes):
                raise ConfigError(f"{reason}.")
        self._settings = settings
        self._parts = _parts(self._names, settings, classes, device)

    def __bool__(self) -> bool:
        return bool(self._names)

    def reset(self) -> None:
        """Forget all batches."""
        for part in self._parts.values():
            part.reset()

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in a batch.

        Args:
            outputs: [B, classes] or [B, classes, ...] scores; [B, ...] values for real targets.
            targets: [B, ...] class ids, or values as the outputs.
        """
        if not self._parts:
            return
        is_classes = not targets.is_floating_point()
        seen = outputs.float().softmax(1) if is_classes else outputs.float().reshape(targets.shape)
        for part in self._parts.values():
            part.update(seen, targets)

    def read(self, model: nn.Module, example: Any) -> dict[str, float]:
        """Return the value of each metric; every rank must call it.

        Args:
            model: What is evaluated.
            example: Inputs of one sample.
        """
        values = {name: self._value(name) for name in self._names if METRICS[name].kind != "model"}
        if "parameters" in self._names:
            values["parameters"] = float(sum(p.numel() for p in model.parameters()))
        if "latency_ms" in self._names:
            values["latency_ms"] = latency_ms(model, example)
        return values

    def _value(self, name: str) -> float:
        if name in _FROM_COUNTS:
            counts = self._parts["counts"].compute().double().cpu()
            return _from_counts(name, counts, self._settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # classes that validation lacks: they are left out below
            found = self._parts[name].compute()
        if name not in _BY_CLASS:
            return float(found)
        each = torch.stack(list(found[0])) if name == "recall_at_precision" else found  # (recalls, thresholds)
        present = self._parts["counts"].compute().sum(1) > 0
        return float(each.double()[present].mean())


def latency_ms(model: nn.Module, example: Any) -> float:
    """Return the median milliseconds of a forward pass of one sample."""
    times = []
    for _ in range(_TIMED_PASSES):
        started = time.perf_counter()
        model(example)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 1e3 * median(times)


def _parts(names: Sequence[str], settings: MetricSettings, classes: int | None, device: torch.device) -> dict[str, Any]:
    """Return the torchmetrics objects that the names need."""
    measured = [name for name in names if METRICS[name].kind in ("classes", "values")]
    if not measured:
        return {}
    from torchmetrics import classification, regression  # takes seconds, so only where it is used

    common: dict[str, Any] = {"num_classes": classes, "ignore_index": _IGNORED, "validate_args": False}
    makers = {
        "counts": lambda: classification.MulticlassConfusionMatrix(**common),
        "top_k_accuracy": lambda: classification.MulticlassAccuracy(**common, top_k=settings.top_k, average="micro"),
        "roc_auc": lambda: classification.MulticlassAUROC(**common, average="none"),
        "pr_auc": lambda: classification.MulticlassAveragePrecision(**common, average="none"),
        "recall_at_precision": lambda: classification.MulticlassRecallAtFixedPrecision(
            **common, min_precision=settings.min_precision
        ),
        "calibration_error": lambda: classification.MulticlassCalibrationError(**common, n_bins=settings.bins),
        "mae": regression.MeanAbsoluteError,
        "rmse": lambda: regression.MeanSquaredError(squared=False),
        "r2": _flat_r2,
    }
    wanted = dict.fromkeys("counts" if name in _FROM_COUNTS else name for name in measured)
    if wanted.keys() & set(_BY_CLASS):
        wanted["counts"] = None
    return {name: makers[name]().to(device) for name in wanted}


def _flat_r2() -> Any:
    from torchmetrics.regression import R2Score

    class FlatR2(R2Score):
        """Of all values together."""

        def update(self, preds: Tensor, target: Tensor) -> None:
            super().update(preds.flatten(), target.flatten())

    return FlatR2()


def _from_counts(name: str, counts: Tensor, settings: MetricSettings) -> float:
    """Compute a metric from a confusion matrix, [true, predicted] float64."""
    true, predicted, right = counts.sum(1), counts.sum(0), counts.diagonal()
    if name == "utility":
        return float((counts * torch.tensor(settings.utility, dtype=torch.float64)).sum() / counts.sum())
    present = true > 0
    if name == "balanced_accuracy":
        return float((right / true.clamp_min(1.0))[present].mean())
    return float((2.0 * right / (true + predicted).clamp_min(1.0))[present].mean())

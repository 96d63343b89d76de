"""The metrics that a task can report, by name: what they need, which direction is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["any", "classes", "values", "model"]
MetricName = Literal[
    "accuracy",
    "val_loss",
    "top_k_accuracy",
    "balanced_accuracy",
    "f1",
    "roc_auc",
    "pr_auc",
    "recall_at_precision",
    "calibration_error",
    "utility",
    "mae",
    "rmse",
    "r2",
    "parameters",
    "latency_ms",
]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """What is known of a metric before any training.

    Args:
        kind: `classes` needs class targets, `values` real ones, `model` looks at the model alone.
        higher_is_better: Its direction.
        doc: One line.
    """

    kind: Kind
    higher_is_better: bool
    doc: str


METRICS: dict[str, MetricInfo] = {
    "accuracy": MetricInfo("classes", True, "share of right classes"),
    "val_loss": MetricInfo("any", False, "mean validation loss"),
    "top_k_accuracy": MetricInfo("classes", True, "share of samples whose class is among the top_k scores"),
    "balanced_accuracy": MetricInfo("classes", True, "mean over the classes present of their recall"),
    "f1": MetricInfo("classes", True, "mean over the classes present of the harmonic mean of precision and recall"),
    "roc_auc": MetricInfo("classes", True, "area under the ROC curve, one class against the rest, mean over classes"),
    "pr_auc": MetricInfo("classes", True, "average precision, one class against the rest, mean over classes"),
    "recall_at_precision": MetricInfo("classes", True, "largest recall at min_precision or more, mean over classes"),
    "calibration_error": MetricInfo(
        "classes", False, "expected calibration error: mean |confidence - accuracy| by bins"
    ),
    "utility": MetricInfo("classes", True, "mean over the samples of what the matrix `utility` gives for them"),
    "mae": MetricInfo("values", False, "mean absolute error"),
    "rmse": MetricInfo("values", False, "root of the mean squared error"),
    "r2": MetricInfo("values", True, "share of the variance that is explained"),
    "parameters": MetricInfo("model", False, "parameters of the model"),
    "latency_ms": MetricInfo("model", False, "median milliseconds of a forward pass of one sample"),
}


class MetricSettings(BaseModel):
    """Numbers that some metrics need."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    top_k: int = Field(5, ge=1, description="top_k_accuracy: how many scores count")
    min_precision: float = Field(0.9, gt=0, le=1, description="recall_at_precision: precision to be kept")
    bins: int = Field(15, ge=2, le=1000, description="calibration_error: bins of equal width")
    utility: list[list[float]] | None = Field(
        None, description="utility: matrix with a row for each true class, a column for each predicted one"
    )

    @model_validator(mode="after")
    def _the_matrix_is_square(self) -> MetricSettings:
        if self.utility is not None and any(len(row) != len(self.utility) for row in self.utility):
            sizes = [len(row) for row in self.utility]
            raise ValueError(f"utility has {len(sizes)} rows of the lengths {sizes}; it must be square")
        return self


def unfit(name: str, settings: MetricSettings, classes: int | None) -> str | None:
    """Say why a task cannot report a metric, None if it can.

    Args:
        name: Of the metric.
        settings: Of the task.
        classes: Number of classes, None for real targets.
    """
    info = METRICS.get(name)
    if info is None:
        return None
    if info.kind == "classes" and classes is None:
        return f"{name} is asked for, but the targets are real values; use val_loss, mae, rmse or r2"
    if info.kind == "values" and classes is not None:
        return f"{name} is asked for, but the targets are classes; use accuracy or another metric for classes"
    return None if classes is None else _unfit_for_classes(name, settings, classes)


def _unfit_for_classes(name: str, settings: MetricSettings, classes: int) -> str | None:
    if name == "top_k_accuracy" and settings.top_k >= classes:
        return f"top_k_accuracy with top_k {settings.top_k} says nothing about {classes} classes; set task.metric_settings.top_k"
    if name != "utility":
        return None
    matrix: Any = settings.utility
    if matrix is None:
        return "utility is asked for, but task.metric_settings.utility gives no matrix"
    if len(matrix) != classes:
        return f"task.metric_settings.utility has {len(matrix)} rows, the task {classes} classes"
    return None

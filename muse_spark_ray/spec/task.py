"""What is trained: the data, the network, and the metric that counts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.spec.metrics import MetricName, MetricSettings
from muse_spark_ray.strategy import knob

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())
Number = int | float


class ModelConfig(BaseModel):
    """A built-in network by name, or a factory of the user's."""

    model_config = STRICT

    name: Literal["linear", "mlp", "cnn", "factory"] = Field(
        "mlp", description="network to build; `factory` for your own"
    )
    width: int = knob(
        64, ge=1, le=65536, search=(8, 256, "log"), doc="hidden units (mlp) or channels of the last convolution (cnn)"
    )
    depth: int = knob(1, ge=1, le=16, search=(1, 3), doc="hidden layers (mlp) or convolutions (cnn)")
    dropout: float = knob(0.0, ge=0, lt=1, search=(0.0, 0.5), doc="share of hidden units dropped in training")
    factory: str | None = Field(
        None, description="module:function or path/to/file.py:function that returns an nn.Module"
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="arguments for the factory")

    @model_validator(mode="after")
    def _factory_is_named(self) -> ModelConfig:
        if (self.name == "factory") != (self.factory is not None):
            raise ValueError("name: factory and factory: 'module:function' belong together; set both or neither")
        return self


class TaskConfig(BaseModel):
    """Data, network and metric of a training."""

    model_config = STRICT

    data: DataConfig = Field(default_factory=DataConfig, description="what to train and validate on")
    model: ModelConfig = Field(default_factory=ModelConfig, description="network to train")
    metric: MetricName = Field("accuracy", description="metric that says which epoch is best")
    metrics: list[MetricName] = Field(default_factory=list, description="metrics to report besides accuracy and losses")
    metric_settings: MetricSettings = Field(
        default_factory=MetricSettings, description="numbers that some metrics need"
    )

    @property
    def all_metrics(self) -> list[str]:
        """All that is reported after each epoch: `metric`, then `metrics`, each once."""
        return list(dict.fromkeys([self.metric, *self.metrics]))

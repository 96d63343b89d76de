"""TrainConfig: everything that decides how one model is trained, validated once and then trusted."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from muse_spark_ray.spec.mission import translate
from muse_spark_ray.spec.task import STRICT, TaskConfig
from muse_spark_ray.strategy import StrategyConfig, knob, strategies

Amp = Literal["auto", "on", "off", "bf16", "fp16"]
OptimizerName = Literal[
    "sgd",
    "adam",
    "adamw",
    "adafactor",
    "lion",
    "muon",
    "adamw_schedulefree",
    "sgd_schedulefree",
    "adamw_8bit",
]
ScheduleType = Literal[
    "constant", "step", "cosine", "cosine_with_warmup", "cosine_with_warmup_restarts", "onecycle", "plateau"
]


class OptimizerConfig(BaseModel):
    """The optimizer and its settings."""

    model_config = STRICT

    name: OptimizerName = Field(
        "sgd",
        description="sgd, adam, adamw, adafactor, lion; muon (hidden matrices, adamw for the rest); the schedule-free ones "
        "and adamw_8bit need the extra `optimizers`",
    )
    lr: float = knob(0.05, gt=0, le=100, search=(0.001, 0.5, "log"), doc="learning rate before the schedule")
    momentum: float = knob(0.9, ge=0, lt=1, search=(0.8, 0.97), doc="momentum of sgd and muon; beta1 of adamw and lion")
    nesterov: bool = Field(False, description="Nesterov's momentum (sgd)")
    beta2: float = knob(0.999, gt=0, lt=1, doc="decay of the squared gradients (adamw); second decay of lion")
    implementation: Literal["auto", "foreach", "fused"] = Field(
        "auto", description="of sgd, adam, adamw: auto is torch's choice; fused is one kernel for all parameters"
    )
    weight_decay: float = knob(
        0.0, ge=0, search=(1e-6, 1e-2, "log"), doc="weight decay; never on biases and normalisation"
    )

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> OptimizerConfig:
        if self.nesterov and (self.name != "sgd" or self.momentum == 0):
            raise ValueError("nesterov: true needs name: sgd and momentum above 0")
        kinds = {"auto": None, "foreach": ("sgd", "adam", "adamw", "adafactor"), "fused": ("sgd", "adam", "adamw")}
        allowed = kinds[self.implementation]
        if allowed is not None and self.name not in allowed:
            raise ValueError(
                f"implementation: {self.implementation} is there for {', '.join(allowed)}, not {self.name}"
            )
        return self


class ScheduleConfig(BaseModel):
    """The learning rate over the applied updates."""

    model_config = STRICT

    type: ScheduleType = Field("constant", description="form of the schedule")
    warmup_steps: int = Field(0, ge=0, description="updates over which the rate rises linearly to the full one")
    cycle_length: int | None = Field(
        None, ge=1, description="updates of one cosine cycle (cosine_with_warmup_restarts)"
    )
    step_size: int | None = Field(None, ge=1, description="updates between two drops (step)")
    gamma: float = Field(0.1, gt=0, lt=1, description="factor of a drop (step, plateau)")
    patience: int = Field(3, ge=0, description="checks without improvement before a drop (plateau)")
    min_delta: float = Field(1e-4, ge=0, description="smallest fall of the validation loss that counts (plateau)")
    lr_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none",
        description="how the rate follows the samples in an update; a warm-up then rises from the unscaled rate",
    )
    reference_batch_size: int = Field(
        256, ge=1, description="samples in an update for which optimizer.lr is meant (lr_scaling)"
    )
    warmup_fraction: float = Field(0.3, gt=0, lt=1, description="share of the updates that rise (onecycle)")

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> ScheduleConfig:
        if self.type == "cosine_with_warmup_restarts" and self.cycle_length is None:
            raise ValueError("type: cosine_with_warmup_restarts needs cycle_length, the updates of one cycle")
        if self.type == "step" and self.step_size is None:
            raise ValueError("type: step needs step_size, the updates between two drops")
        if self.type == "cosine_with_warmup" and self.warmup_steps == 0:
            raise ValueError("type: cosine_with_warmup needs warmup_steps above 0; without warm-up use cosine")
        return self


class BatchGrowthConfig(BaseModel):
    """More samples in an update as training goes on."""

    model_config = STRICT

    factor: float = knob(2.0, ge=1, le=16, search=(1.5, 4.0), doc="by how much the samples in an update are multiplied")
    every: int = knob(5, ge=1, search=(2, 20), doc="epochs between two multiplications")
    limit: int | None = Field(None, ge=1, description="most samples in an update; none: no limit")


class PrecisionConfig(BaseModel):
    """Mixed precision."""

    model_config = STRICT

    amp: Amp = Field("auto", description="on: bf16, or fp16 on GPUs without it; auto: on for a GPU, off for a CPU")
    init_scale: float = Field(65536.0, gt=0, description="first loss scale of fp16")
    fallback: bool = Field(
        True, description="go on in fp32, with a message, where mixed precision gives numbers that are not finite"
    )
    tf32: bool | None = Field(
        None, description="tensor cores for fp32 products at 10 bits of mantissa; none: as torch is set"
    )
    fp8: bool = Field(False, description="large linear layers in fp8 (extra `fp8`, compute capability 8.9 or more)")
    growth_interval: int = Field(2000, ge=1, description="updates without overflow before the loss scale doubles")


class CheckpointConfig(BaseModel):
    """When and where the state is saved."""

    model_config = STRICT

    save_dir: str | None = Field(None, description="folder for checkpoints and report.json; none: nothing is written")
    save_freq: int | float | Literal["epoch", "last"] = Field(
        "epoch",
        description="'epoch': after each, and within them by `interval`; 'last': only at the end; a number: once so many "
        "seconds passed, within epochs too",
    )
    interval: float | Literal["auto"] | None = Field(
        "auto",
        description="seconds between two saves within an epoch; auto: by what a save costs and how often training "
        "failed; none: only between epochs",
    )
    max_lost_seconds: float = Field(
        30.0, gt=0, description="interval: auto: most seconds of training between two saves, if that costs at most 1 %"
    )
    every_steps: int | None = Field(None, ge=1, description="save after each so many updates too; none: not")
    resize: Literal["keep_batch", "scale_lr"] = Field(
        "keep_batch",
        description="resumed on another number of workers: keep the samples in an update, or scale the learning rate",
    )
    keep_last: int | None = Field(
        2, ge=-1, description="newest checkpoints kept besides the best; null or -1 keeps all"
    )
    in_background: bool = Field(
        True, description="write while the training goes on; only a copy of the state is waited for"
    )
    cloud: Literal["aws", "gcp", "azure"] | None = Field(
        None, description="whose machine this is: its notices of preemption lead to a last save; none: nobody is asked"
    )
    weights_from: str | None = Field(
        None,
        description="checkpoint folder or safetensors file whose weights a new training begins with, where they fit",
    )
    resume: Literal["auto", "never"] = Field(
        "auto", description="auto: continue from the newest good checkpoint in save_dir"
    )

    @field_validator("keep_last")
    @classmethod
    def _zero_would_keep_nothing(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("keep_last: 0 would keep nothing to resume from; use 1 or more, or null for all")
        return value

    @field_validator("interval")
    @classmethod
    def _interval_is_positive(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not 0 < value < float("inf"):
            raise ValueError(f"interval is {value}; it must be seconds above 0, auto, or null")
        return value

    @field_validator("save_freq")
    @classmethod
    def _seconds_are_positive(cls, value: Any) -> Any:
        if isinstance(value, int | float) and value <= 0:
            raise ValueError("save_freq as a number is seconds and must be above 0")
        return value


class LoaderConfig(BaseModel):
    """How the samples of a map-style data set of a script are read."""

    model_config = STRICT

    workers: int | Literal["auto"] | None = Field(
        None, description="processes that read; auto: found out by trying; none: as the DataLoader says"
    )
    seconds: float = Field(1.0, gt=0, le=60, description="auto: how long each number is tried")

    @field_validator("workers")
    @classmethod
    def _workers_are_counted(cls, value: Any) -> Any:
        if isinstance(value, int) and value < 0:
            raise ValueError(f"workers is {value}; it must be 0 or more, auto, or none")
        return value


class LoggingConfig(BaseModel):
    """Where the numbers of each epoch go, besides `log.jsonl` in checkpoint.save_dir."""

    model_config = STRICT

    tensorboard: str | None = Field(None, description="folder for TensorBoard")
    mlflow: str | None = Field(None, description="MLflow tracking URI or folder (extra `mlflow`)")
    experiment: str = Field("muse-spark", description="MLflow experiment")
    wandb: str | None = Field(None, description="W&B project (extra `wandb`)")
    usd_per_device_hour: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="price of one device for an hour, to log what was spent and what is to come",
    )


class AnalysisConfig(BaseModel):
    """What the report says of the data after training."""

    model_config = STRICT

    hardest_samples: int = Field(0, ge=0, description="training samples with the largest loss to list; 0: none")
    thresholds: Literal["f1", "youden"] | None = Field(
        None, description="tune each class's decision threshold on the validation set for this; none: not"
    )


class TrainSettings(BaseModel):
    """The part of a training config that does not depend on which strategies are installed."""

    model_config = ConfigDict(**STRICT)

    task: TaskConfig = Field(default_factory=TaskConfig, description="data, network and metric")
    epochs: int = knob(10, ge=1, le=100_000, doc="epochs in all")
    stop_epoch: int | None = Field(
        None, ge=1, description="stop after so many epochs, with schedules as for all of them"
    )
    batch_size: int = knob(
        64, ge=1, le=1_000_000, search=(16, 512, "log"), doc="samples in a micro-batch on one worker"
    )
    gradient_accumulation_steps: int = knob(1, ge=1, le=65536, search=(1, 8, "log"), doc="micro-batches in one update")
    target_batch_size: int | None = Field(
        None, ge=1, description="samples in an update over all workers; in place of gradient_accumulation_steps"
    )
    batch_growth: BatchGrowthConfig | None = Field(None, description="more samples in an update over the epochs")
    min_micro_batch: int = Field(
        1, ge=1, description="smallest micro-batch to which running out of memory may lead; below it the training fails"
    )
    clip_norm: float | None = Field(None, gt=0, description="largest gradient norm; none: no clipping")
    max_bad_steps: int = Field(
        10, ge=1, description="updates in a row with a loss or gradient that is not finite before giving up"
    )
    seed: int = Field(0, ge=0, description="seed of weights, order and dropout")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1")
    deterministic: bool = Field(False, description="refuse operations that are not deterministic")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="optimizer and its settings")
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig, description="learning rate over the updates")
    precision: PrecisionConfig = Field(default_factory=PrecisionConfig, description="mixed precision")
    loader: LoaderConfig = Field(default_factory=LoaderConfig, description="how samples are read; `auto` for the best")
    logging: LoggingConfig = Field(default_factory=LoggingConfig, description="where the numbers of each epoch go")
    analysis: AnalysisConfig = Field(default_factory=AnalysisConfig, description="what the report says of the data")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="saving and resuming")

    @field_validator("loader", mode="before")
    @classmethod
    def _auto_is_about_the_workers(cls, value: Any) -> Any:
        return {"workers": "auto"} if value == "auto" else value

    @model_validator(mode="before")
    @classmethod
    def _translate_mission_keys(cls, data: Any) -> Any:
        return translate(data)

    @model_validator(mode="after")
    def _one_way_to_say_how_many_samples(self) -> TrainSettings:
        if self.target_batch_size is not None and self.gradient_accumulation_steps != 1:
            raise ValueError(
                f"target_batch_size ({self.target_batch_size}) and gradient_accumulation_steps "
                f"({self.gradient_accumulation_steps}) both say how many samples an update has; give one of them"
            )
        return self

    @property
    def last_epoch(self) -> int:
        """Epochs that are trained in all."""
        return min(self.epochs, self.stop_epoch or self.epochs)

    def identity(self) -> str:
        """Return a hash of all that decides the result; where checkpoints and numbers go is not part of it."""
        text = self.model_dump_json(exclude={"checkpoint", "logging", "loader"})
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _switch(value: Any) -> Any:
    """Read `true` as the strategy with its defaults and `false` as absent."""
    if isinstance(value, bool):
        return {} if value else None
    return value


class _StrategiesBlock(BaseModel):
    model_config = ConfigDict(**STRICT)

    @field_validator("*", mode="before")
    @classmethod
    def _on_and_off(cls, value: Any) -> Any:
        return _switch(value)

    def switched_on(self) -> dict[str, StrategyConfig]:
        """Return the configs of the strategies that are on, by name."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


def _build_train_config() -> type[TrainSettings]:
    fields: dict[str, Any] = {}
    for name, member in strategies().items():
        summary = (member.__doc__ or name).strip().splitlines()[0]
        fields[name] = (
            member.Config | None,
            Field(None, description=f"{summary} Absent or false: off; true: its defaults."),
        )
    block = create_model("StrategiesConfig", __base__=_StrategiesBlock, **fields)
    return create_model(
        "TrainConfig",
        __base__=TrainSettings,
        __doc__="Everything that decides how one model is trained.",
        strategies=(block, Field(default_factory=block, description="cost-saving strategies; what is absent is off")),
    )


if TYPE_CHECKING:

    class TrainConfig(TrainSettings):
        """The settings with the block of the installed strategies."""

        strategies: _StrategiesBlock


@cache
def train_config_class() -> type[TrainConfig]:
    """Return the config class that is composed of the settings and every strategy found."""
    return _build_train_config()  # type: ignore[return-value]


def __getattr__(name: str) -> Any:
    if name == "TrainConfig":
        return train_config_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Which data to train and validate on, as a spec says it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Literal[
    "digits",
    "wine",
    "iris",
    "breast_cancer",
    "fashion_mnist",
    "npz",
    "csv",
    "parquet",
    "images",
    "webdataset",
    "tfrecord",
    "huggingface",
    "factory",
]
Split = Literal["random", "stratified", "group", "time", "auto"]
_FILES = ("csv", "parquet", "images", "webdataset", "tfrecord")
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")


class DataConfig(BaseModel):
    """Which data to train and validate on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Name = Field(
        "digits",
        description="a bundled set; npz, csv, parquet, images (a folder for each class), webdataset (tar shards), tfrecord, "
        "huggingface (extra); or `factory` for your own function",
    )
    path: str | None = Field(
        None, description="file, folder or pattern such as data/*.parquet; name of a huggingface set"
    )
    target: str | None = Field(
        None, description="csv, parquet, tfrecord, huggingface: the column to predict; default the last one"
    )
    columns: list[str] | None = Field(
        None, description="csv, parquet, huggingface: columns to use as inputs; default all"
    )
    where: list[list[Any]] | None = Field(
        None, description="parquet: rows to read, as [[column, operator, value], ...], all of which must hold"
    )
    stream: bool = Field(
        False,
        description="parquet: read row groups as they are needed, for data larger than memory; whole row groups are held out",
    )
    image_size: int | None = Field(
        None, ge=1, description="images, webdataset: side in pixels to which images are scaled"
    )
    greyscale: bool = Field(False, description="images, webdataset: one channel instead of three")
    on_corrupt: Literal["fail", "skip"] = Field(
        "fail", description="images, webdataset, tfrecord: what to do with a file or record that cannot be read"
    )
    cache: str | None = Field(
        None,
        description="sources of files: folder for a decoded copy, read in place of the source while it is unchanged",
    )
    factory: str | None = Field(
        None, description="module:function or path.py:function that returns (inputs, targets) arrays"
    )
    validation_fraction: float = Field(0.2, gt=0, lt=1, description="share held out, where the set has no fixed split")
    split: Split = Field(
        "auto", description="how rows are held out: at random, by class (auto for classes), whole groups, or the latest"
    )
    group: str | None = Field(None, description="split group: column whose values stay together; it is no input")
    time: str | None = Field(None, description="split time: column by which rows are ordered; it is no input")
    fold: int | None = Field(None, ge=0, description="cross-validation: which fold is held out, from 0; needs folds")
    folds: int | None = Field(
        None, ge=2, description="cross-validation: number of folds, in place of validation_fraction"
    )
    inner_fold: int | None = Field(
        None,
        ge=0,
        description="nested cross-validation: which inner fold of the rest is held out; the outer one is unused",
    )
    max_samples: int | None = Field(None, ge=2, description="use only so many training samples, for quick trials")
    split_seed: int = Field(0, ge=0, description="seed of the split; the same for all trials of a sweep")

    @model_validator(mode="after")
    def _a_split_has_its_column(self) -> DataConfig:
        for kind, column in (("group", self.group), ("time", self.time)):
            if (self.split == kind) != (column is not None):
                raise ValueError(f"split: {kind} and {kind}: COLUMN belong together; set both or neither")
            if column is not None and self.name not in ("csv", "parquet", "huggingface"):
                raise ValueError(f"split: {kind} needs a table (csv, parquet, huggingface); this is {self.name}")
        if self.cache is not None and self.name not in _FILES:
            raise ValueError(f"cache is for sources of files ({', '.join(_FILES)}); this is {self.name}")
        if self.stream:
            self._check_stream()
        for condition in self.where or ():
            if len(condition) != 3 or not isinstance(condition[0], str) or condition[1] not in OPERATORS:
                raise ValueError(
                    f"where: {condition} must be [column, operator, value] with one of {', '.join(OPERATORS)}"
                )
        if (self.fold is None) != (self.folds is None):
            raise ValueError("fold and folds belong together; set both or neither")
        if self.fold is not None and self.folds is not None and self.fold >= self.folds:
            raise ValueError(f"fold {self.fold} is none of {self.folds} folds, which count from 0")
        if self.inner_fold is not None and (self.folds is None or self.inner_fold >= self.folds):
            raise ValueError("inner_fold needs folds, and counts from 0 to folds - 1")
        return self

    def _check_stream(self) -> None:
        if self.name != "parquet":
            raise ValueError(f"stream is for parquet; this is {self.name}")
        if self.split not in ("auto", "random"):
            raise ValueError(f"stream holds out whole row groups at random; split: {self.split} reads all rows first")
        for setting in ("folds", "cache", "max_samples"):
            if getattr(self, setting) is not None:
                raise ValueError(f"stream and {setting} do not go together: {setting} needs all rows in memory")

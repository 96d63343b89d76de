"""Where samples come from: sources, splits, checks, the order of an epoch and the windows of an update."""

from muse_spark_ray.data.config import DataConfig
from muse_spark_ray.data.known import split_pair
from muse_spark_ray.data.loader import open_source
from muse_spark_ray.data.order import Cut, Growth, epoch_order, plan_windows
from muse_spark_ray.data.packing import pack_sequences
from muse_spark_ray.data.sets import Task, TensorSet
from muse_spark_ray.data.sources import load_in_memory, load_task, read_and_split
from muse_spark_ray.data.streams import ParquetStream, StreamPart
from muse_spark_ray.data.window import Position, Source, Window

__all__ = [
    "Cut",
    "DataConfig",
    "Growth",
    "ParquetStream",
    "Position",
    "Source",
    "StreamPart",
    "Task",
    "TensorSet",
    "Window",
    "epoch_order",
    "load_in_memory",
    "load_task",
    "open_source",
    "pack_sequences",
    "plan_windows",
    "read_and_split",
    "split_pair",
]

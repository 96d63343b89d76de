"""From a data set or a user's DataLoader to windows of micro-batches.

Three ways in, chosen once by `open_source`:

* `TensorSource`: tensors in memory are sliced by the planned order, a batch at a time.
* `IndexedSource`: a map-style data set behind an ordinary DataLoader; the trainer takes over the order, so that it
  is seeded, shared among ranks without padding, and open to strategies that choose samples.
* `ForeignSource`: loaders with their own sampler or an iterable data set are read as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from muse_spark_ray.data.foreign import ForeignSource
from muse_spark_ray.data.order import Cut
from muse_spark_ray.data.planned import IndexedSource, TensorSource
from muse_spark_ray.data.window import Source
from muse_spark_ray.errors import DataError


def open_source(data: DataLoader[Any] | TensorDataset, cut: Cut) -> Source:
    """Choose how to read `data`.

    Args:
        data: A DataLoader, or tensors in memory that are shuffled and cut by `cut`.
        cut: How epochs are cut; a DataLoader's own batch size wins over `cut.batch_size`.

    Returns:
        The source.

    Raises:
        DataError: If `data` is of another kind or empty.
    """
    if isinstance(data, TensorDataset):
        return TensorSource(_not_empty(data), cut)
    if not isinstance(data, DataLoader):
        raise DataError(
            f"the training data is a {type(data).__name__}; it must be a torch DataLoader or a TensorDataset."
        )
    if not _order_is_ours(data):
        return ForeignSource(data, cut)
    _not_empty(data.dataset)
    own = replace(cut, batch_size=data.batch_size or cut.batch_size)
    shuffle = isinstance(data.sampler, RandomSampler)
    if type(data.dataset) is TensorDataset and len(data.dataset.tensors) == 2 and _has_default_collate(data):
        return TensorSource(data.dataset, own, shuffle=shuffle, drop_last=data.drop_last)
    return IndexedSource(data, own, shuffle=shuffle)


def _order_is_ours(loader: DataLoader[Any]) -> bool:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return False
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return type(sampler) is SequentialSampler


def _has_default_collate(loader: DataLoader[Any]) -> bool:
    return loader.num_workers == 0 and loader.collate_fn is torch.utils.data.default_collate


def _not_empty(data: Any) -> Any:
    if len(data) == 0:
        raise DataError("the training data has 0 samples; at least 1 is needed.")
    return data

"""BatchNorm and batches of one sample."""

from __future__ import annotations

import pytest
from torch import nn
from torch.utils.data import DataLoader
from toys import blobs, trained

from muse_spark_ray.errors import TrialError


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_rest_of_one_sample_is_explained_not_just_refused() -> None:
    with pytest.raises(TrialError, match="a micro-batch holds a single sample") as caught:
        trained(_net(), DataLoader(blobs(61), 10, shuffle=True), epochs=1)
    assert "drop_last" in str(caught.value.hint)


def test_without_the_rest_it_trains() -> None:
    report = trained(_net(), DataLoader(blobs(61), 10, shuffle=True, drop_last=True), epochs=2).get_training_report()
    assert [epoch["samples"] for epoch in report["history"]] == [60, 60]


def test_other_errors_of_a_model_come_through_as_they_are() -> None:
    class Odd(nn.Linear):
        def forward(self, x: object) -> object:
            raise ValueError("an odd model")

    with pytest.raises(ValueError, match="an odd model"):
        trained(Odd(4, 3), blobs(), epochs=1)

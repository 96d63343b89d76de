"""Sequences of many lengths: packing and bucketing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.data import pack_sequences
from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.strategies.length_bucketing import bucketed


@given(st.lists(st.integers(2, 30), min_size=1, max_size=25), st.integers(2, 16))
def test_packing_keeps_every_prediction_and_invents_none(lengths: list[int], row: int) -> None:
    sequences, start = [], 1
    for length in lengths:
        sequences.append(torch.arange(start, start + length))
        start += length + 10
    inputs, targets = pack_sequences(sequences, length=row).tensors
    predicted = [(int(a), int(b)) for a, b in zip(inputs.flatten(), targets.flatten(), strict=True) if b != -100]
    wanted = [(int(a), int(b)) for s in sequences for a, b in pairwise(s)]
    assert sorted(predicted) == sorted(wanted)
    assert inputs.shape == targets.shape == (len(inputs), row)
    # First fit leaves at most one row less than half full.
    assert sum(bool((r != -100).sum() * 2 <= row) for r in targets) <= 1 + len(inputs) // 2


def test_rows_are_filled() -> None:
    inputs, targets = pack_sequences([torch.arange(1, 5), torch.arange(11, 14), torch.arange(21, 23)], length=6).tensors
    assert inputs.tolist() == [[1, 2, 3, 11, 12, 21]]
    assert targets.tolist() == [[2, 3, 4, 12, 13, 22]]


@pytest.mark.parametrize(
    ("sequences", "words"), [([], "no sequences"), ([torch.tensor([1])], "sequence 0 has 1 token")]
)
def test_what_cannot_be_packed_is_told(sequences: list[Tensor], words: str) -> None:
    with pytest.raises(DataError, match=words):
        pack_sequences(sequences, length=4)


@given(st.integers(1, 200), st.integers(1, 16), st.integers(2, 64), st.integers(0, 99))
def test_a_bucketed_order_is_a_permutation(samples: int, batch: int, chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 50, (samples,), generator=generator)
    order = torch.randperm(samples, generator=generator)
    found = bucketed(order, lengths, chunk=chunk, batch=batch, generator=generator)
    assert sorted(found.tolist()) == list(range(samples))


class Texts(Dataset[Any]):
    def __init__(self, *, known: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = torch.randint(2, 40, (300,), generator=generator).tolist()
        self.rows = [torch.randint(1, 9, (size,), generator=generator) for size in sizes]
        if known:
            self.lengths = sizes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


class Reader(nn.Module):
    """A model over padded tokens that counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 9)
        self.tokens = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.tokens += tokens.numel() * self.training
        scores: Tensor = self.table(tokens)
        return scores.transpose(1, 2)


def _collate(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    targets = nn.utils.rnn.pad_sequence([row.roll(-1) for row in rows], batch_first=True, padding_value=-100)
    return padded, targets


def _train(strategies: dict[str, Any], *, known: bool = True) -> tuple[int, float]:
    model = Reader()
    loader = DataLoader(Texts(known=known), 10, shuffle=True, collate_fn=_collate)
    report = MuseSparkTrainer(model, None, nn.CrossEntropyLoss(), loader, None, {"strategies": strategies}).fit(1)
    return model.tokens, report["history"][0]["samples"]


def test_bucketing_computes_less_padding_for_the_same_samples() -> None:
    plain, samples = _train({})
    sorted_, same = _train({"length_bucketing": True})
    real = sum(map(len, Texts().rows))
    assert samples == same == 300
    assert sorted_ - real < 0.2 * (plain - real)


def test_lengths_that_are_not_known_are_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"length_bucketing needs the length of each training sample"):
        _train({"length_bucketing": True}, known=False)

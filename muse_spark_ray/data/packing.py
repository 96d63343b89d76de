"""Packs token sequences of many lengths into rows of one length, so that no padding is computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from muse_spark_ray.errors import DataError

IGNORED = -100


def pack_sequences(sequences: Sequence[Tensor], *, length: int, padding: int = 0) -> TensorDataset:
    """Pack sequences for next-token prediction, the longest first into the first row that has room.

    A sequence is never cut in two, except one longer than a row, which is cut into pieces that fit. The first token of a
    sequence is nobody's target, so that no sequence is predicted from another one.

    Args:
        sequences: [n] int64 tokens each, n at least 2.
        length: Tokens in a row.
        padding: Token that fills a row's end; as a target it is ignored.

    Returns:
        Inputs [rows, length] int64 and targets [rows, length] int64, with -100 where nothing is to be predicted.

    Raises:
        DataError: If a sequence has fewer than 2 tokens, or there is none.

    Source: Krell et al. 2021, Efficient Sequence Packing without Cross-Contamination, section 3 (first-fit decreasing).
    """
    if not sequences:
        raise DataError("there are no sequences to pack.")
    short = next((i for i, sequence in enumerate(sequences) if len(sequence) < 2), None)
    if short is not None:
        raise DataError(f"sequence {short} has {len(sequences[short])} token(s); at least 2 are needed to predict one.")
    pieces = [part for sequence in sequences for part in _pieces(sequence, length)]
    order = sorted(range(len(pieces)), key=lambda i: (-len(pieces[i]), i))
    rows: list[list[Tensor]] = []
    room: list[int] = []
    for index in order:
        size = len(pieces[index]) - 1
        row = next((r for r, left in enumerate(room) if left >= size), None)
        if row is None:
            rows.append([])
            room.append(length)
            row = len(rows) - 1
        rows[row].append(pieces[index])
        room[row] -= size
    packed = [_row(row, length, padding) for row in rows]
    return TensorDataset(torch.stack([inputs for inputs, _ in packed]), torch.stack([targets for _, targets in packed]))


def _pieces(sequence: Tensor, length: int) -> list[Tensor]:
    """Cut a sequence into pieces of at most `length` inputs; neighbours share the token that ends one, begins the next."""
    return [sequence[start : start + length + 1] for start in range(0, len(sequence) - 1, length)]


def _row(parts: list[Tensor], length: int, padding: int) -> tuple[Tensor, Tensor]:
    inputs, targets = torch.full((length,), padding), torch.full((length,), IGNORED)
    start = 0
    for part in parts:
        end = start + len(part) - 1
        inputs[start:end], targets[start:end] = part[:-1], part[1:]
        start = end
    return inputs, targets

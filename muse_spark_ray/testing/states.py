"""Compares saved states bit for bit and says what they are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TIMED = ("samples_per_second", "data_wait_share", "latency_ms")
_PLAIN = (bool, int, float, str, type(None))


def differences(left: Any, right: Any, *, where: str = "state") -> list[str]:
    """Return the paths at which two nested states differ in any bit, type or key; NaN equals NaN."""
    if type(left) is not type(right):
        return [f"{where}: {type(left).__name__} and {type(right).__name__}"]
    if isinstance(left, dict):
        if list(left) != list(right):
            return [f"{where}: keys {list(left)} and {list(right)}"]
        return [line for key in left for line in differences(left[key], right[key], where=f"{where}.{key}")]
    if isinstance(left, list | tuple):
        if len(left) != len(right):
            return [f"{where}: {len(left)} and {len(right)} items"]
        pairs = enumerate(zip(left, right, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, where=f"{where}.{index}")]
    if isinstance(left, Tensor):
        return [f"{where}: {line}" for line in _tensor_differences(left, right)]
    return [] if left == right or (left != left and right != right) else [f"{where}: {left!r} and {right!r}"]


def assert_same(left: Any, right: Any) -> None:
    """Raise AssertionError with the paths at which two states differ, if they do."""
    found = differences(left, right)
    if found:
        raise AssertionError(f"{len(found)} differences, the first ones:\n" + "\n".join(found[:5]))


def foreign_parts(state: Any, *, where: str = "state") -> list[str]:
    """Return the paths in a state that hold anything but tensors, numbers, texts, None, lists and dictionaries."""
    if isinstance(state, dict):
        items = [(f"{where}.{key}", value) for key, value in state.items()]
        keys = [f"{where}: key {key!r}" for key in state if not isinstance(key, _PLAIN)]
        return keys + [line for path, value in items for line in foreign_parts(value, where=path)]
    if isinstance(state, list | tuple):
        return [line for index, value in enumerate(state) for line in foreign_parts(value, where=f"{where}.{index}")]
    is_plain = type(state) in _PLAIN or isinstance(state, Tensor)
    return [] if is_plain else [f"{where}: {type(state).__name__}"]


def repeatable(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's state without what depends on the speed of the machine, and on how often it failed."""
    history = [{k: v for k, v in epoch.items() if k not in _TIMED} for epoch in state["history"]]
    return {key: value for key, value in state.items() if key not in ("seconds", "failures")} | {"history": history}


def _tensor_differences(left: Tensor, right: Tensor) -> list[str]:
    kinds = [f"{list(t.shape)} {t.dtype} on {t.device}" for t in (left, right)]
    if kinds[0] != kinds[1]:
        return [" and ".join(kinds)]
    if torch.equal(_bytes(left), _bytes(right)):
        return []
    furthest = (left.double() - right.double()).abs().max().item()
    return [f"{kinds[0]}, other bits, values differ by up to {furthest:.3g}"]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)

"""Weights in files: safetensors beside the rest of a state, and loading them where they fit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from muse_spark_ray.errors import ConfigError, DataError

logger = logging.getLogger(__name__)
PLACES: dict[str, tuple[str, ...]] = {"model.safetensors": ("model",), "best.safetensors": ("best", "weights")}
Weights = dict[str, Tensor]


def take_weights(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Weights]]:
    """Separate the weights in a state from the rest.

    Returns:
        (a copy of the state without them, {file name: weights}); what is no plain tensor stays in the state.
    """
    rest, files = dict(state), {}
    for name, place in PLACES.items():
        holder = _holder(rest, place)
        if holder is not None and holder[place[-1]]:
            whole = holder[place[-1]]
            files[name] = {key: value for key, value in whole.items() if _is_plain(value)}
            holder[place[-1]] = {key: value for key, value in whole.items() if not _is_plain(value)}
    return rest, files


def put_weights(state: dict[str, Any], folder: Path) -> None:
    """Put the weights in a folder's files back into the state, in place.

    Raises:
        DataError: If a file is damaged.
    """
    for name, place in PLACES.items():
        holder = _holder(state, place)
        if holder is not None and (folder / name).is_file():
            holder[place[-1]] = {**load_weights(folder / name), **holder[place[-1]]}


def save_weights(weights: Weights, path: Path) -> None:
    """Write tensors as safetensors; those that share memory are written each."""
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}, path)


def load_weights(path: Path) -> Weights:
    """Read tensors from safetensors.

    Raises:
        DataError: If the file is damaged.
    """
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise DataError(f"weights {path} cannot be loaded: {str(error).splitlines()[0]}") from error


def load_where_it_fits(model: nn.Module, source: str | Path) -> list[str]:
    """Load the weights whose names and shapes the model has; for another head, or another optimizer.

    Args:
        model: Changed in place.
        source: A safetensors file, or the folder of a checkpoint, of which the best weights are taken if it has any.

    Returns:
        Names of the model's weights that were not loaded.

    Raises:
        ConfigError: If there is no such file, or nothing fits.
    """
    path = _weights_file(Path(source).expanduser())
    given, own = load_weights(path), model.state_dict()
    fitting = {name: value for name, value in given.items() if name in own and own[name].shape == value.shape}
    if not fitting:
        raise ConfigError(f"checkpoint.weights_from: none of the {len(given)} weights in {path} fits the model.")
    model.load_state_dict(fitting, strict=False)
    left = [name for name in own if name not in fitting]
    if left:
        logger.warning(
            "weights from %s: %d of %d loaded; left as they are: %s", path, len(fitting), len(own), ", ".join(left)
        )
    return left


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in ("best.safetensors", "model.safetensors"):
        if (path / name).is_file():
            return path / name
    raise ConfigError(f"checkpoint.weights_from {path} is neither a safetensors file nor the folder of a checkpoint.")


def _holder(state: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the dictionary in a state that holds the weights of a place, copied so that it may be changed."""
    holder = state
    for key in place[:-1]:
        if not isinstance(holder.get(key), dict):
            return None
        holder[key] = dict(holder[key])
        holder = holder[key]
    return holder if isinstance(holder.get(place[-1]), dict) else None


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_complex()
        and not value.is_quantized
    )

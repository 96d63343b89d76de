"""Functions and classes of the user's, named in a config."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file as load_tensors
from torch import nn

from muse_spark_ray.errors import ConfigError


def import_object(reference: str, *, names: tuple[str, ...], what: str) -> Any:
    """Find what a config names.

    Args:
        reference: `package.module:name`, `path/to/file.py:name`, or a file alone, which is then searched for `names`.
        names: Looked for, in this order, where the reference gives no name.
        what: Key of the config, for messages.

    Raises:
        ConfigError: If the module or file cannot be loaded or does not define the name.
    """
    place, _, name = reference.rpartition(":") if not reference.endswith(".py") else (reference, "", "")
    if not place:
        raise ConfigError(f"{what} is {reference!r}; write module:function or path.py:function.")
    module = _load_place(place, reference, what)
    wanted = (name,) if name else names
    for each in wanted:
        if hasattr(module, each):
            return getattr(module, each)
    raise ConfigError(
        f"{what}: {place} defines none of {', '.join(wanted)}; name the function, as in {place}:{wanted[0]}."
    )


def load_module(reference: str, weights: str | None, *, names: tuple[str, ...], what: str) -> nn.Module:
    """Build a model in eval mode, without gradients, by a function of the user's.

    Args:
        reference: As for `import_object`; a function that returns a module, or the module itself.
        weights: Its weights: the folder of a checkpoint, safetensors, or a state dict; None leaves it as built.
        names: As for `import_object`.
        what: Key of the config, for messages.

    Raises:
        ConfigError: If the function or the file of weights cannot be used.
    """
    made = import_object(reference, names=names, what=what)
    module = made if isinstance(made, nn.Module) else made()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{what}: {reference} returned a {type(module).__name__}; it must return a torch.nn.Module.")
    if weights is not None:
        try:
            module.load_state_dict(_read_weights(weights))
        except Exception as error:  # a missing, damaged or foreign file each fail in their own way
            first = str(error).splitlines()[0]
            raise ConfigError(f"{what}: the weights {weights!r} cannot be loaded: {first}") from error
    return module.eval().requires_grad_(False)


def _read_weights(path: str) -> dict[str, Any]:
    place = Path(path).expanduser()
    beside = [place / name for name in ("best.safetensors", "model.safetensors")] if place.is_dir() else [place]
    for file in beside:
        if file.suffix == ".safetensors" and file.is_file():
            return dict(load_tensors(file))
    saved: dict[str, Any] = torch.load(place, map_location="cpu", weights_only=True)
    return saved


def _load_place(place: str, reference: str, what: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ImportError as error:
            raise ConfigError(
                f"{what} {reference!r} cannot be imported: {error}. Use module:function or path.py:function."
            ) from error
    path = Path(place).expanduser()
    if not path.is_file():
        raise ConfigError(f"{what}: file {path} does not exist.", hint="give the path of a Python file")
    return load_file(path, as_name=f"muse_spark_ray_user_file_{path.stem}", what=what)


def load_file(path: Path, *, as_name: str, what: str) -> ModuleType:
    """Run a Python file as a module of the given name.

    Raises:
        ConfigError: If it is no Python file.
    """
    spec = importlib.util.spec_from_file_location(as_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what}: file {path} cannot be loaded as a Python module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[as_name] = module
    spec.loader.exec_module(module)
    return module

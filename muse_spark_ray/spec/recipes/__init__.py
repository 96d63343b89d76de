"""Training configs to start from, as they were measured; a file and flags of the user's go on top."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.yaml import parse_yaml

RECIPES = ("mild", "medium", "hot")


def recipe(name: str) -> dict[str, Any]:
    """Return a recipe as plain data.

    Args:
        name: `mild` is cheap, `medium` balanced, `hot` accurate.

    Raises:
        ConfigError: If there is no such recipe.
    """
    if name not in RECIPES:
        raise ConfigError(f"recipe is {name!r}; there are {', '.join(RECIPES)}.")
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = parse_yaml(text, where=f"recipe {name}").data
    return data


def merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `top` put over it; mappings are merged key by key."""
    result = dict(base)
    for key, value in top.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result

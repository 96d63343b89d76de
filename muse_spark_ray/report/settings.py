"""Which settings differ between trials, and what to call them in a narrow column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Config = Mapping[str, Any]
_VAGUE = {"name", "kind", "type", "value", "enabled", "size"}


def flatten(config: Config, *, prefix: str = "") -> dict[str, Any]:
    """Return a nested config as dotted paths to leaf values; lists are leaves.

    Args:
        config: Nested mapping.
        prefix: Path that every key starts with.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, prefix=f"{path}.")
        else:
            flat[path] = value
    return flat


def differing_settings(configs: Iterable[Config]) -> list[str]:
    """Return the dotted paths whose values are not the same in all configs, in order of first appearance.

    A path that only some configs have differs.

    Args:
        configs: Nested configs, one per trial.
    """
    flats = [flatten(config) for config in configs]
    paths = dict.fromkeys(path for flat in flats for path in flat)
    return [path for path in paths if len({_identity(flat, path) for flat in flats}) > 1]


def _identity(flat: Mapping[str, Any], path: str) -> str:
    return json.dumps(flat[path], sort_keys=True, default=str) if path in flat else "absent"


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return for each dotted path its shortest ending that no other path shares and that says something.

    `optimizer.lr` is `lr`, but `optimizer.name` stays as it is: a bare `name` could be anything's.

    Args:
        paths: Dotted paths, such as `optimizer.lr` and `schedule.lr`.
    """
    wanted = list(paths)
    return {path: _shortest_ending(path, [other for other in wanted if other != path]) for path in wanted}


def _shortest_ending(path: str, others: list[str]) -> str:
    parts = path.split(".")
    first = 2 if parts[-1] in _VAGUE else 1
    endings = (".".join(parts[-size:]) for size in range(first, len(parts)))
    return next((end for end in endings if not any(f".{other}".endswith(f".{end}") for other in others)), path)

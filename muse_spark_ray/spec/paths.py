"""Dotted paths into nested plain data, such as `optimizer.lr`."""

from __future__ import annotations

from typing import Any


def with_value(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of `data` with one value set; what lies beside the path is shared, not copied.

    Args:
        data: Nested mappings.
        path: Keys joined by dots; missing mappings are made, and a switch (`true`) on the way becomes a mapping.
        value: The new value.

    Returns:
        The changed copy.
    """
    head, _, rest = path.partition(".")
    if not rest:
        return {**data, head: value}
    inner = data.get(head)
    return {**data, head: with_value(inner if isinstance(inner, dict) else {}, rest, value)}


def value_at(data: Any, path: str) -> Any:
    """Return the value at a dotted path, or None if it is not there."""
    for key in path.split("."):
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def flat(data: dict[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Return {dotted path: value} for all values that are not mappings."""
    result: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            result |= flat(value, prefix=f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result

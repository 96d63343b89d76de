"""Parts of the user's model, named in a config, and how their forward pass is changed without renaming a weight."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from muse_spark_ray.errors import ConfigError

Forward = Callable[..., Any]


def named_blocks(model: nn.Module, patterns: str, *, what: str) -> list[tuple[str, nn.Module]]:
    """Find modules by name.

    Args:
        model: Whose modules.
        patterns: Names as in `named_modules`, separated by spaces or commas; `*` stands for any text without a dot, so
            `layers.*` are the children of `layers`.
        what: Key of the config, for messages.

    Returns:
        (name, module) in the order of the model.

    Raises:
        ConfigError: If a pattern matches nothing.
    """
    named = [(name, module) for name, module in model.named_modules() if name]
    found: dict[str, nn.Module] = {}
    for pattern in patterns.replace(",", " ").split():
        matches = {name: module for name, module in named if _matches(name, pattern)}
        if not matches:
            some = ", ".join(name for name, _ in named[:12]) + (", ..." if len(named) > 12 else "")
            raise ConfigError(f"{what} {pattern!r} matches no module of the model, which has: {some or 'none'}.")
        found |= matches
    return [(name, module) for name, module in named if name in found]


def change_forward(module: nn.Module, forward: Callable[[nn.Module, Forward], Forward]) -> None:
    """Put another forward pass around a module's own.

    The module's class becomes a subclass of its class, so that weights keep their names and a deep copy works alike.

    Args:
        module: Changed in place.
        forward: Takes (module, its own forward) and returns the new one; called once for each pass.
    """
    kind = type(module)
    own = kind.forward

    def changed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(self, lambda *a, **k: own(self, *a, **k))(*args, **kwargs)

    module.__class__ = type(kind.__name__, (kind,), {"forward": changed, "__module__": kind.__module__})


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatchcase(a, b) for a, b in zip(parts, wanted, strict=True))

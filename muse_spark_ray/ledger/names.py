"""Names that become parts of paths: sweeps and trials."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from muse_spark_ray.errors import ConfigError

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_name(kind: str, name: str) -> str:
    """Return `name` if it can safely be part of a path.

    Args:
        kind: what is named, for the message ("sweep", "trial").
        name: the name; 1 to 64 of A-Z, a-z, 0-9, "_" and "-", so that no path can leave the store.

    Raises:
        ConfigError: for any other name.
    """
    if not isinstance(name, str) or _SAFE.fullmatch(name) is None:
        raise ConfigError(
            f"{kind} name is {_shown(name)}; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -",
            hint=f"Choose another {kind} name.",
        )
    return name


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a "there is no such name" message: the nearest names, or all of the few there are."""
    names = sorted(known)
    if not names:
        return "There are none yet."
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"Nearest: {', '.join(near)}."
    return f"There are: {', '.join(names[:8])}{' ...' if len(names) > 8 else '.'}"


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:77]}..."

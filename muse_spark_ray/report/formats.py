"""How numbers, units and untrusted names are written, the same in every table, plot and page."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

ABSENT = "-"
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARKS_ASCII = "_.-=+*#@"
_UNITS = {"usd": "USD", "seconds": "s", "hours": "h", "joules": "J", "mb": "MB", "bytes": "B", "percent": "%"}


def money(usd: float | None) -> str:
    """Write an amount of USD: cents from a dollar up, three significant digits below, powers of ten below $0.0001.

    Args:
        usd: Amount in USD; None or NaN is written as a dash.
    """
    if usd is None or math.isnan(usd):
        return ABSENT
    sign, amount = ("-" if usd < 0 else ""), abs(usd)
    if amount == 0 or math.isinf(amount):
        return f"{sign}${'0' if amount == 0 else 'inf'}"
    if amount >= 1000:
        return f"{sign}${amount:,.0f}"
    if amount >= 0.9995:
        return f"{sign}${amount:.2f}"
    if amount < 1e-4:
        return f"{sign}${amount:.2e}"
    exponent = math.floor(math.log10(float(f"{amount:.2e}")))
    return f"{sign}${amount:.{2 - exponent}f}"


def duration(seconds: float | None) -> str:
    """Write a time in at most two units, from `12 ms` to `3 d 4 h`.

    Args:
        seconds: Seconds; None, NaN or infinity is written as a dash.
    """
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, small_size, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            large, small = whole // size, whole % size // small_size
            return f"{large} {name} {small} {small_name}" if small else f"{large} {name}"
    return f"{whole} s"


def quantity(name: str, value: object) -> str:
    """Write the value of a column: money, time and accuracy by the unit in its name, else four digits.

    Args:
        name: Column name with its unit, such as `cost_usd` or `wall_seconds`.
        value: Number, text, boolean or None.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ABSENT if value is None else clean(str(value))
    if name.endswith("_usd"):
        return money(value)
    if name == "hours" or name.endswith("wall_hours"):
        return duration(value * 3600)
    if name == "seconds" or name.endswith("_seconds"):
        return duration(value)
    if math.isnan(value):
        return ABSENT
    if "acc" in name and abs(value) <= 1:
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def setting(value: object) -> str:
    """Write a config value as short as it can be read back: numbers with four significant digits.

    Args:
        value: Any value of a resolved config; None is a dash.
    """
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}"
    return clean(str(value))


def axis_title(name: str) -> str:
    """Return the axis title of a column with its unit in brackets: `cost_usd` gives `cost (USD)`."""
    stem, _, last = name.rpartition("_")
    if stem in ("gpu", "cpu_core") and last == "hours":
        return "GPU-hours" if stem == "gpu" else "CPU-core-hours"
    if stem and last in _UNITS:
        return f"{stem.replace('_', ' ')} ({_UNITS[last]})"
    return "time (h)" if name == "hours" else clean(name.replace("_", " "))


def clean(text: str) -> str:
    """Return the text with control and direction-changing characters replaced, so that a name cannot forge output."""
    return "".join("?" if unicodedata.category(char) in ("Cc", "Cf") else char for char in text)


def shortened(text: str, *, width: int = 24) -> str:
    """Return the text, cut with an ellipsis where it is longer than `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def sparkline(values: Sequence[float], *, ascii_only: bool = False, width: int = 40) -> str:
    """Draw values as one line of block characters, lowest to highest.

    Args:
        values: Numbers in order; those that are not finite are drawn as a blank.
        ascii_only: Use characters of ASCII alone.
        width: Most characters to use; longer series are thinned evenly, both ends kept.
    """
    if len(values) > width:
        values = [values[round(place * (len(values) - 1) / (width - 1))] for place in range(width)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    marks, low, span = (_SPARKS_ASCII if ascii_only else _SPARKS), min(finite), max(finite) - min(finite)
    scale = (len(marks) - 1) / span if span else 0
    return "".join(marks[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)

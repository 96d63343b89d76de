"""The user's own prices: from YAML or plain mappings to `Price`, checked once.

as_of: 2026-12-01            # optional, shown wherever a price is explained
currency: USD                # the only one
usd_per_hour:
  cpu: 0.03                  # one logical CPU
  gpu: 1.80                  # any GPU that has no price of its own below
  "gpu:H100": 2.50           # any cloud, on demand
  "gpu:H100@lambda:spot": 1.10
  "gpu:T4":                  # price changes: [UTC time or seconds since 1970, USD per hour]
    - [2026-12-01T00:00:00Z, 0.40]
    - [2026-12-01T12:00:00Z, 0.55]
"""

from __future__ import annotations

import datetime
import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muse_spark_ray.cost.accelerators import resource_key
from muse_spark_ray.cost.interval import resource_kind
from muse_spark_ray.cost.offers import Price
from muse_spark_ray.errors import ConfigError

KEYS = ("as_of", "currency", "usd_per_hour")
KINDS = ("cpu", "gpu")
MAX_BYTES = 1 << 20


def read_price_file(path: Path) -> tuple[dict[str, Price], str | None]:
    """Return the prices in a YAML file by `resource_key`, and its `as_of` date if it has one.

    Raises:
        ConfigError: naming file and key, if the file cannot be read or holds anything but valid prices.
    """
    data = _load(path)
    for key in data:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, 1)
            raise ConfigError(
                f"{path}: unknown key {key!r}; allowed are {', '.join(KEYS)}",
                hint=f"Did you mean {near[0]}?" if near else None,
            )
    if data.get("currency", "USD") != "USD":
        raise ConfigError(f"{path}: currency is {data['currency']!r}; it must be USD")
    prices = data.get("usd_per_hour")
    if not isinstance(prices, dict) or not prices:
        raise ConfigError(f"{path}: usd_per_hour is {prices!r}; it must map resources to prices, such as cpu: 0.03")
    as_of = data.get("as_of")
    note = path.name if as_of is None else f"{path.name} of {as_of}"
    return parse_prices(prices, where=f"{path}: usd_per_hour", note=note), None if as_of is None else str(as_of)


def parse_prices(prices: Mapping[str, Any], *, where: str, note: str) -> dict[str, Price]:
    """Return prices by `resource_key`.

    Args:
        prices: {resource: USD per unit-hour, or a list of (seconds or time, USD per unit-hour)}.
        where: what error messages begin with.
        note: what `PriceBook.describe` says about them.

    Raises:
        ConfigError: for an unknown resource, one named twice, or a price that is not a finite number of 0 or more.
    """
    parsed: dict[str, Price] = {}
    for resource, value in prices.items():
        place = f"{where}.{resource}"
        key = _checked_key(resource, place)
        if key in parsed:
            raise ConfigError(f"{place} is given twice; {key} is the same resource in another spelling")
        parsed[key] = Price(_schedule(value, place), note)
    return parsed


def _load(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size} bytes; a price file may have {MAX_BYTES}")
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: the price file cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}; it must be a mapping with {', '.join(KEYS)}")
    return data


def _checked_key(resource: object, place: str) -> str:
    kind = resource_kind(str(resource)).strip().lower()
    if kind == "host_cpu":
        raise ConfigError(f"{place}: host_cpu has no price; the price of the accelerator includes its host")
    market = str(resource).split(":")[2:]
    if not isinstance(resource, str) or kind not in KINDS or market not in ([], ["spot"], ["on-demand"]):
        near = difflib.get_close_matches(kind, KINDS, 1)
        raise ConfigError(
            f"{place}: unknown resource {resource!r}; allowed are cpu, gpu, gpu:NAME, gpu:NAME@CLOUD, and :spot after these",
            hint=f"Did you mean {near[0]}?" if near else None,
        )
    return resource_key(resource)


def _schedule(value: object, place: str) -> tuple[tuple[float, float], ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return ((0.0, _usd(value, place)),)
    if not value:
        raise ConfigError(f"{place} is an empty list; give at least one [time, USD per hour]")
    steps = []
    for number, step in enumerate(value):
        if isinstance(step, str) or not isinstance(step, Sequence) or len(step) != 2:
            raise ConfigError(f"{place}[{number}] is {step!r}; it must be [time, USD per hour]")
        steps.append((_seconds(step[0], f"{place}[{number}]"), _usd(step[1], f"{place}[{number}]")))
    starts = [start for start, _ in steps]
    if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
        raise ConfigError(f"{place} has the times {starts}; they must ascend")
    return tuple(steps)


def _usd(value: object, place: str) -> float:
    number = _number(value)
    if number is None or not math.isfinite(number) or number < 0:
        raise ConfigError(f"{place} is {value!r}; it must be a number of USD per hour, 0 or more")
    return number


def _seconds(value: object, place: str) -> float:
    """Return seconds since 1970; a time without a zone is UTC, as YAML has it."""
    if isinstance(value, datetime.datetime):
        zone = value.tzinfo or datetime.UTC
        return value.replace(tzinfo=zone).timestamp()
    if isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC).timestamp()
    number = _number(value)
    if number is None or not math.isfinite(number):
        raise ConfigError(f"{place} begins with {value!r}; it must be a UTC time or seconds since 1970")
    return number


def _number(value: object) -> float | None:
    # PyYAML follows YAML 1.1, in which 3e-2 is text.
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    return float(value)

"""Prices by resource, constant or changing in time; what is not known stays unknown."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muse_spark_ray.cost.accelerators import broader_keys, resource_key
from muse_spark_ray.cost.interval import Interval, is_billed
from muse_spark_ray.cost.offers import CATALOGUE_DATE, Price, catalogue_prices
from muse_spark_ray.cost.price_file import parse_prices, read_price_file
from muse_spark_ray.errors import ConfigError

SECONDS_PER_HOUR = 3600.0


class PriceBook:
    """USD per unit-hour of each resource.

    Own prices win over the catalogue. An own price also holds for narrower names: that of "gpu:H100" for
    "gpu:H100@lambda", that of "gpu" for every GPU; but an on-demand price never for spot. Of the catalogue only the
    very resource counts.

    >>> PriceBook({"gpu": 2.0, "cpu": 0.04}).usd_per_hour("gpu")
    2.0

    Args:
        usd_per_hour: {resource: price, or list of (seconds, price) for a price that changes: each holds from its
            time on, the first one also before}; names as in `Interval.resource`.

    Raises:
        ConfigError: for an unknown resource or a price that is not a number of 0 or more.
    """

    def __init__(self, usd_per_hour: Mapping[str, float | Sequence[tuple[float, float]]] | None = None) -> None:
        self._own = parse_prices(usd_per_hour or {}, where="usd_per_hour", note="given price")
        self._catalogue: Mapping[str, Price] = {}
        self.as_of: str | None = None
        self.source = "given prices"

    @classmethod
    def load(cls, user_file: Path | None = None) -> PriceBook:
        """Return the packaged catalogue with the user's price file on top (format: `cost.price_file`).

        Raises:
            ConfigError: naming file and key, if the file is missing or not valid.
        """
        book = cls()
        book._catalogue = catalogue_prices()
        book.as_of = CATALOGUE_DATE
        book.source = f"catalogue {CATALOGUE_DATE}"
        if user_file is not None:
            book._own, as_of = read_price_file(user_file)
            book.as_of = as_of or CATALOGUE_DATE
            book.source = f"{user_file.name}{f' of {as_of}' if as_of else ''} over {book.source}"
        return book

    def schedule(self, resource: str) -> tuple[tuple[float, float], ...] | None:
        """Return (seconds, USD per unit-hour) of each price change, or None if there is no price.

        A resource that is never billed has the price 0.
        """
        if not is_billed(resource):
            return ((0.0, 0.0),)
        price = self._price(resource)
        return None if price is None else price.schedule

    def usd_per_hour(self, resource: str, at: float | None = None) -> float | None:
        """Return the price of one unit for an hour, or None if it is not known: it is never guessed.

        Args:
            resource: as in `Interval.resource`.
            at: when, on the clock of the intervals; None for the newest price.
        """
        schedule = self.schedule(resource)
        if schedule is None:
            return None
        if at is None:
            return schedule[-1][1]
        return schedule[max(0, bisect_right([start for start, _ in schedule], at) - 1)][1]

    def usd(self, interval: Interval) -> float | None:
        """Return what an interval costs, exact over price changes, or None if its resource has no price."""
        if interval.resource_seconds == 0:
            return 0.0
        schedule = self.schedule(interval.resource)
        if schedule is None:
            return None
        borders = [start for start, _ in schedule[1:]]
        total = 0.0
        for (_, usd), start, end in zip(schedule, [float("-inf"), *borders], [*borders, float("inf")], strict=True):
            total += usd * max(0.0, min(interval.end, end) - max(interval.start, start))
        return interval.amount * total / SECONDS_PER_HOUR

    def describe(self, resource: str) -> str:
        """Return in words where the price of a resource comes from."""
        if not is_billed(resource):
            return "included in the price of the accelerator"
        price = self._price(resource)
        if price is None:
            return f"no price for {resource}: add it to usd_per_hour of the price file"
        return price.note if len(price.schedule) == 1 else f"{price.note}, {len(price.schedule)} prices in time"

    def to_dict(self) -> dict[str, Any]:
        """Return the whole book as plain data for JSON, so that a sweep keeps the prices it was run with."""
        layers = {"own": self._own, "catalogue": self._catalogue}
        prices = {
            layer: {
                key: {"usd_per_hour": [list(step) for step in price.schedule], "note": price.note}
                for key, price in book.items()
            }
            for layer, book in layers.items()
        }
        return {"as_of": self.as_of, "source": self.source, **prices}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PriceBook:
        """Return the book that `to_dict` was called on; ConfigError if the data is something else."""
        book = cls()
        try:
            book.as_of, book.source = data["as_of"], data["source"]
            book._own, book._catalogue = (
                {
                    key: parse_prices({key: price["usd_per_hour"]}, where=layer, note=price["note"])[key]
                    for key, price in data[layer].items()
                }
                for layer in ("own", "catalogue")
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"stored prices are not a price book: {type(error).__name__} {error}") from error
        return book

    def _price(self, resource: str) -> Price | None:
        key = resource_key(resource)
        own = next((self._own[name] for name in broader_keys(key) if name in self._own), None)
        if own is not None:
            return own
        return self._catalogue.get(key)

"""The dated price catalogue that comes with the package, as one price per resource."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median

CATALOGUE_DATE = "2026-12-01"


@dataclass(frozen=True, slots=True)
class Price:
    """What one unit costs.

    Args:
        schedule: (seconds, USD per hour) of each change, ascending; the first price also holds before its stamp.
        note: where it comes from, in words.
    """

    schedule: tuple[tuple[float, float], ...]
    note: str


@cache
def catalogue_prices() -> Mapping[str, Price]:
    """Return the packaged catalogue by `resource_key`: the median of all offers that fit a key.

    Keys are "cpu", "cpu@CLOUD", and for each accelerator "gpu:NAME", "gpu:NAME@CLOUD", each also with ":spot".
    """
    return {**_gpu_prices(_rows("gpu_prices.csv")), **_cpu_prices(_rows("cpu_prices.csv"))}


def _gpu_prices(rows: Iterable[Mapping[str, str]]) -> dict[str, Price]:
    offers: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        name = f"gpu:{row['accelerator'].lower()}"
        for market, suffix in (("on-demand", ""), ("spot", ":spot")):
            usd = row[f"{market.replace('-', '_')}_usd_per_gpu_hour"]
            for place in ("", f"@{row['cloud']}") if usd else ():
                offers.setdefault((f"{name}{place}{suffix}", market), []).append(float(usd))
    return {key: _median_price(values, f"{market} {_offers(values)}") for (key, market), values in offers.items()}


def _cpu_prices(rows: Iterable[Mapping[str, str]]) -> dict[str, Price]:
    by_cloud: dict[str, list[float]] = {}
    for row in rows:
        by_cloud.setdefault(row["cloud"], []).append(float(row["usd_per_vcpu_hour"]))
    what = "of what one more vCPU costs between two shapes of an instance"
    clouds = {f"cpu@{cloud}": _median_price(values, f"{_offers(values)} {what}") for cloud, values in by_cloud.items()}
    # By cloud first: else the cloud with the most shapes alone would set the price.
    every = _median_price([price.schedule[0][1] for price in clouds.values()], f"clouds {what}")
    return {"cpu": every, **clouds}


def _median_price(values: list[float], what: str) -> Price:
    return Price(((0.0, median(values)),), f"median of {len(values)} {what}, catalogue {CATALOGUE_DATE}")


def _offers(values: list[float]) -> str:
    return "offer" if len(values) == 1 else "offers"


def _rows(name: str) -> list[dict[str, str]]:
    text = files("muse_spark_ray.cost").joinpath("catalogue", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))

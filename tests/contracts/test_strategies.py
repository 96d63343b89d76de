"""Every registered strategy keeps the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from muse_spark_ray.strategy import strategies
from muse_spark_ray.testing.strategy_contract import StrategyContract


class TestStrategies(StrategyContract):
    names = tuple(strategies())
    # An epoch of the toy problem has 8 updates; the default is to choose anew every 100.
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {"adaptive_sampling": {"update_freq": 2}}

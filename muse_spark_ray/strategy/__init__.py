"""The strategy contract: what a strategy declares, the hooks it may use, how many become one."""

from muse_spark_ray.strategy.contract import (
    HOOKS,
    Batch,
    Card,
    Context,
    Decision,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Trait,
    declared_distributions,
    knob,
)
from muse_spark_ray.strategy.registry import strategies
from muse_spark_ray.strategy.stack import StrategyStack, check_traits

__all__ = [
    "HOOKS",
    "Batch",
    "Card",
    "Context",
    "Decision",
    "Stage",
    "Step",
    "Strategy",
    "StrategyConfig",
    "StrategyStack",
    "Trait",
    "check_traits",
    "declared_distributions",
    "knob",
    "strategies",
]

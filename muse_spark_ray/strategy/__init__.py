"""The strategy contract: what a strategy declares, the hooks it may use, how many become one."""

from muse_spark_ray.strategy.blocks import change_forward, named_blocks
from muse_spark_ray.strategy.contract import (
    HOOKS,
    Batch,
    Card,
    CommHook,
    Context,
    Decision,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Tools,
    Trait,
    declared_distributions,
    knob,
)
from muse_spark_ray.strategy.factories import import_object, load_module
from muse_spark_ray.strategy.randomness import seeded
from muse_spark_ray.strategy.registry import strategies
from muse_spark_ray.strategy.stack import StrategyStack, check_traits
from muse_spark_ray.strategy.targets import as_probabilities, mix

__all__ = [
    "HOOKS",
    "Batch",
    "Card",
    "CommHook",
    "Context",
    "Decision",
    "Stage",
    "Step",
    "Strategy",
    "StrategyConfig",
    "StrategyStack",
    "Tools",
    "Trait",
    "as_probabilities",
    "change_forward",
    "check_traits",
    "declared_distributions",
    "import_object",
    "knob",
    "load_module",
    "mix",
    "named_blocks",
    "seeded",
    "strategies",
]

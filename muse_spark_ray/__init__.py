"""muse_spark_ray: distributed training and cost x accuracy Pareto search on Ray.

The public names load when first used, so that importing the package needs neither torch nor ray and
`muse-spark pareto` answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muse_spark_ray.spec.load import load_spec
    from muse_spark_ray.sweep import Sweep
    from muse_spark_ray.training.export import load_model
    from muse_spark_ray.training.trainer import MuseSparkTrainer

__version__ = "0.1.0"
__all__ = ["MuseSparkTrainer", "Sweep", "__version__", "load_model", "load_spec"]

_HOMES = {
    "MuseSparkTrainer": "muse_spark_ray.training.trainer",
    "Sweep": "muse_spark_ray.sweep",
    "load_model": "muse_spark_ray.training.export",
    "load_spec": "muse_spark_ray.spec.load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'muse_spark_ray' has no attribute {name!r}; it has {sorted(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

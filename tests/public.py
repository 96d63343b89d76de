"""The modules of the package that declare public names, read from the package itself."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

import muse_spark_ray


def public_modules() -> list[ModuleType]:
    """Return the package and its subpackages that have an `__all__`."""
    prefix = f"{muse_spark_ray.__name__}."
    found = [m.name for m in pkgutil.walk_packages(muse_spark_ray.__path__, prefix) if m.ispkg]
    modules = [muse_spark_ray, *map(import_module, found)]
    return [module for module in modules if hasattr(module, "__all__")]

"""Finds strategies: the modules of `muse_spark_ray.strategies`, entry points, and folders of the user.

No file lists the members. A strategy's name is the name of its module. Besides the packaged ones, a distribution
can offer some under the entry-point group `muse_spark_ray.strategies`, and the environment variable
`MUSE_SPARK_STRATEGIES` names folders whose `*.py` files are members too.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy.contract import Strategy
from muse_spark_ray.strategy.factories import load_file

PACKAGE = "muse_spark_ray.strategies"
FOLDERS_VARIABLE = "MUSE_SPARK_STRATEGIES"


def strategies() -> dict[str, type[Strategy]]:
    """Return all strategies by name, sorted.

    Raises:
        ConfigError: If a module holds no strategy, or more than one, or a name is taken twice.
    """
    return _strategies(os.environ.get(FOLDERS_VARIABLE, ""))


@cache
def _strategies(folders: str) -> dict[str, type[Strategy]]:
    found: dict[str, type[Strategy]] = {}
    for name, module in [*_packaged(), *_from_folders(folders)]:
        _add(found, name, _only_strategy(module))
    for entry in entry_points(group=PACKAGE):
        _add(found, entry.name, entry.load())
    return dict(sorted(found.items()))


def _packaged() -> list[tuple[str, ModuleType]]:
    package = importlib.import_module(PACKAGE)
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [(name, importlib.import_module(f"{PACKAGE}.{name}")) for name in names]


def _from_folders(folders: str) -> list[tuple[str, ModuleType]]:
    paths = [path for folder in folders.split(os.pathsep) if folder for path in sorted(Path(folder).glob("*.py"))]
    return [
        (path.stem, load_file(path, as_name=f"muse_spark_ray_user_strategies.{path.stem}", what=FOLDERS_VARIABLE))
        for path in paths
        if not path.stem.startswith("_")
    ]


def _only_strategy(module: ModuleType) -> type[Strategy]:
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Strategy) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise ConfigError(
            f"{module.__file__} defines {len(own)} Strategy classes; a strategy module defines exactly one."
        )
    return own[0]


def _add(found: dict[str, type[Strategy]], name: str, member: type[Strategy]) -> None:
    if name in found:
        raise ConfigError(
            f"two strategies are called {name!r}: {found[name].__module__} and {member.__module__}. Rename one."
        )
    member.name = name
    found[name] = member

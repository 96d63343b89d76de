"""Public names exist, are few at the top, sorted, and explain themselves."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest
from public import public_modules

import muse_spark_ray

MODULES = public_modules()


def _explained(module: ModuleType) -> list[tuple[str, Any]]:
    """Return the classes and functions; constants and type aliases have no docstring of their own."""
    members = [(name, getattr(module, name)) for name in module.__all__]
    return [(name, value) for name, value in members if inspect.isclass(value) or inspect.isroutine(value)]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_resolves(module: ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_class_and_function_has_its_own_docstring(module: ModuleType) -> None:
    assert [name for name, value in _explained(module) if not (value.__doc__ or "").strip()] == []
    assert (module.__doc__ or "").strip()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_methods_have_a_docstring_where_they_are_defined_first(module: ModuleType) -> None:
    silent = [
        f"{name}.{method}"
        for name, value in _explained(module)
        if inspect.isclass(value)
        for method, function in vars(value).items()
        if inspect.isfunction(function) and not method.startswith("_") and not (inspect.getdoc(getattr(value, method)))
    ]
    assert silent == []


def test_the_top_offers_at_most_twelve_names_and_lists_them() -> None:
    assert len(muse_spark_ray.__all__) <= 12
    assert dir(muse_spark_ray) == sorted(muse_spark_ray.__all__)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Trainer'; it has .*MuseSparkTrainer"):
        muse_spark_ray.Trainer  # noqa: B018

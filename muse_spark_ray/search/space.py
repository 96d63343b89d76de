"""From a sweep's `search` block to Optuna's distributions, conditions included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.search import Parameter, condition_holds

_PLAIN = (type(None), bool, int, float, str)


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return Optuna's distribution of one parameter.

    Choices that Optuna cannot store, such as lists, are drawn as their JSON text; `decode` brings them back.
    """
    if parameter.choices is not None:
        return CategoricalDistribution([encode(choice) for choice in parameter.choices])
    low, high, step = parameter.low, parameter.high, parameter.step
    if parameter.is_integer:
        return IntDistribution(int(low or 0), int(high or 0), log=parameter.log, step=int(step or 1))
    return FloatDistribution(
        float(low or 0), float(high or 0), log=parameter.log, step=None if step is None else float(step)
    )


def encode(choice: Any) -> Any:
    """Return a choice in a form that Optuna stores and reloads unchanged."""
    return choice if isinstance(choice, _PLAIN) else json.dumps(choice)


def decode(parameter: Parameter, value: Any) -> Any:
    """Return the value that was meant, with the type it has in the spec."""
    if parameter.choices is None:
        return value
    return next(choice for choice in parameter.choices if _same(encode(choice), value))


def in_order(search: Mapping[str, Parameter]) -> list[str]:
    """Sort parameters so that each comes after those it depends on, and after the path that contains it.

    Raises:
        ConfigError: If conditions form a circle.
    """
    ordered: list[str] = []
    waiting = sorted(search, key=lambda path: (path.count("."), list(search).index(path)))
    while waiting:
        ready = [path for path in waiting if all(other in ordered for other in search[path].only_if)]
        if not ready:
            raise ConfigError(f"search: the conditions (if:) of {', '.join(waiting)} depend on each other in a circle.")
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered


def draw(trial: Trial, search: Mapping[str, Parameter]) -> dict[str, Any]:
    """Ask a trial for the value of each parameter that exists for it.

    Args:
        trial: An Optuna trial.
        search: {dotted path: parameter}.

    Returns:
        {dotted path: value}; a parameter whose conditions do not hold is absent.
    """
    values: dict[str, Any] = {}
    for path in in_order(search):
        parameter = search[path]
        if _exists(parameter, values):
            values[path] = decode(parameter, _suggest(trial, path, distribution(parameter)))
    return values


def every_config(search: Mapping[str, Parameter]) -> Iterator[dict[str, Any]]:
    """Yield all {dotted path: value} of a space, conditions included; nothing if a parameter has a continuum."""
    values = {path: search[path].all_values() for path in in_order(search)}
    if None not in values.values():
        yield from _complete({}, list(values.items()), search)


def _complete(
    chosen: dict[str, Any], left: Sequence[tuple[str, list[Any] | None]], search: Mapping[str, Parameter]
) -> Iterator[dict[str, Any]]:
    if not left:
        yield chosen
        return
    (path, values), *rest = left
    if not _exists(search[path], chosen):
        yield from _complete(chosen, rest, search)
        return
    for value in values or ():
        yield from _complete({**chosen, path: value}, rest, search)


def _exists(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    return all(other in values and condition_holds(c, values[other]) for other, c in parameter.only_if.items())


def recorded(
    search: Mapping[str, Parameter], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """Return (parameters, distributions) of values drawn earlier, as Optuna's `create_trial` takes them."""
    distributions = {path: distribution(search[path]) for path in values if path in search}
    return {path: encode(values[path]) for path in distributions}, distributions


def _suggest(trial: Trial, path: str, kind: BaseDistribution) -> Any:
    if isinstance(kind, CategoricalDistribution):
        return trial.suggest_categorical(path, kind.choices)
    if isinstance(kind, IntDistribution):
        return trial.suggest_int(path, kind.low, kind.high, step=kind.step, log=kind.log)
    if isinstance(kind, FloatDistribution):
        return trial.suggest_float(path, kind.low, kind.high, step=kind.step, log=kind.log)
    raise TypeError(f"no way to draw from a {type(kind).__name__}")


def _same(left: Any, right: Any) -> bool:
    """Tell 1 from True and from 1.0, which Python calls equal."""
    return type(left) is type(right) and bool(left == right)

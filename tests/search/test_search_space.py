"""From the `search` block to what a trial gets."""

from __future__ import annotations

import json
import math
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.search.space import decode, distribution, draw, encode, in_order, recorded
from muse_spark_ray.spec.search import Parameter, condition_holds
from muse_spark_ray.spec.yaml import parse_yaml


def parameters(text: str) -> dict[str, Parameter]:
    return {path: Parameter.model_validate(value) for path, value in parse_yaml(text, where="test").data.items()}


def draws(search: dict[str, Parameter], count: int = 60) -> list[dict[str, Any]]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [draw(study.ask(), search) for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "kind", "inside"),
    [
        ("{low: 1, high: 4}", int, lambda v: v in (1, 2, 3, 4)),
        ("{low: 1, high: 9, step: 4}", int, lambda v: v in (1, 5, 9)),
        ("{low: 8, high: 256, log: true}", int, lambda v: 8 <= v <= 256),
        ("{low: 1.0, high: 4}", float, lambda v: 1 <= v <= 4),
        ("{low: 1e-4, high: 0.1, log: true}", float, lambda v: 1e-4 <= v <= 0.1),
        ("{low: 0.0, high: 1.0, step: 0.25}", float, lambda v: v in (0, 0.25, 0.5, 0.75, 1)),
        ("{low: 3, high: 3}", int, lambda v: v == 3),
        ("[8, 16]", int, lambda v: v in (8, 16)),
        ("{choices: [a]}", str, lambda v: v == "a"),
    ],
)
def test_values_have_the_type_and_bounds_that_were_written(text: str, kind: type, inside: Any) -> None:
    values = [drawn["x"] for drawn in draws(parameters(f"x: {text}"))]
    assert {type(value) for value in values} == {kind}
    assert all(inside(value) for value in values)


def test_a_logarithmic_range_is_drawn_evenly_in_its_logarithm() -> None:
    values = [drawn["x"] for drawn in draws(parameters("x: {low: 1e-4, high: 1.0, log: true}"), 400)]
    assert sum(value < 1e-2 for value in values) / 400 == pytest.approx(0.5, abs=0.1)  # 4 sigma


@pytest.mark.parametrize("choices", [[[32, 32], [64]], [None, "x"], [[1, 2], [3]], [1, True, 1.0, "1"], [{"a": 1}, {}]])
def test_choices_of_any_kind_come_back_as_they_were_space_3(choices: list[Any]) -> None:
    parameter = Parameter(choices=choices)
    seen = [drawn["x"] for drawn in draws({"x": parameter})]
    assert {(type(v).__name__, json.dumps(v)) for v in seen} == {(type(v).__name__, json.dumps(v)) for v in choices}
    for choice in choices:
        stored = json.loads(json.dumps(encode(choice)))
        back = decode(parameter, stored)
        assert (type(back), back) == (type(choice), choice)


CONDITIONAL = """
model: [linear, mlp, cnn]
model.width: {low: 8, high: 64, if: {model: [mlp, cnn]}}
smoothing: [false, true]
smoothing.epsilon: {low: 0.02, high: 0.2, if: {smoothing: true}}
teacher: [null, small, large]
teacher.heat: {low: 1.0, high: 4.0, if: {teacher: true}}
teacher.depth: {low: 1, high: 2, if: {teacher: large, smoothing: true}}
"""


def test_a_conditional_parameter_exists_only_where_its_conditions_hold() -> None:
    for drawn in draws(parameters(CONDITIONAL), 200):
        assert ("model.width" in drawn) == (drawn["model"] != "linear")
        assert ("smoothing.epsilon" in drawn) == (drawn["smoothing"] is True)
        assert ("teacher.heat" in drawn) == (drawn["teacher"] is not None)
        assert ("teacher.depth" in drawn) == (drawn["teacher"] == "large" and drawn["smoothing"])


def test_a_condition_on_a_parameter_that_is_absent_does_not_hold() -> None:
    search = parameters("a: [false]\nb: {choices: [1], if: {a: true}}\nc: {choices: [1], if: {b: 1}}")
    assert draws(search, 5) == [{"a": False}] * 5


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        (True, True, True),
        (True, "x", True),
        (True, None, False),
        (True, False, False),
        (False, False, True),
        ([1, 2], 2, True),
        ([1, 2], 3, False),
        ("mlp", "mlp", True),
        (None, None, True),
    ],
)
def test_conditions(condition: Any, value: Any, holds: bool) -> None:
    assert condition_holds(condition, value) is holds


def test_parameters_follow_what_they_depend_on() -> None:
    search = parameters("z.y: {choices: [1], if: {q: 1}}\nz: [true]\nq: {choices: [1], if: {z: true}}")
    assert in_order(search) == ["z", "q", "z.y"]


def test_conditions_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigError, match="a, b depend on each other in a circle"):
        in_order(parameters("a: {choices: [1], if: {b: 1}}\nb: {choices: [1], if: {a: 1}}"))


NUMBERS = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)


@given(NUMBERS, NUMBERS, st.booleans())
def test_any_range_that_is_accepted_can_be_drawn_from(low: float, high: float, log: bool) -> None:
    try:
        parameter = Parameter(low=low, high=high, log=log)
    except ValueError:
        return
    value = draws({"x": parameter}, 1)[0]["x"]
    assert math.isclose(low, value, rel_tol=1e-9) or math.isclose(high, value, rel_tol=1e-9) or low <= value <= high


def test_recorded_values_are_what_optuna_would_have_stored() -> None:
    search = parameters(CONDITIONAL + "layers: [[32, 32], [64]]")
    for drawn in draws(search, 30):
        values, distributions = recorded(search, drawn)
        trial = optuna.trial.create_trial(value=1.0, params=values, distributions=distributions)
        assert {path: decode(search[path], value) for path, value in trial.params.items()} == drawn
        assert distributions == {path: distribution(search[path]) for path in drawn}

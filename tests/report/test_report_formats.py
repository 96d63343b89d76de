"""Money, time, names and settings as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.report.formats import ABSENT, axis_title, clean, duration, money, quantity, sparkline
from muse_spark_ray.report.settings import differing_settings, flatten, short_names


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0"),
        (0.000123, "$0.000123"),
        (0.0001234567, "$0.000123"),
        (0.05, "$0.0500"),
        (0.9996, "$1.00"),
        (0.09996, "$0.100"),
        (12.345, "$12.35"),
        (1234.5, "$1,234"),
        (-0.5, "-$0.500"),
        (2e-12, "$2.00e-12"),
        (math.nan, ABSENT),
        (None, ABSENT),
    ],
)
def test_money_has_cents_above_a_dollar_and_three_digits_below(usd: float | None, text: str) -> None:
    assert money(usd) == text


@given(st.floats(min_value=1e-8, max_value=1e9))
def test_money_is_within_half_a_percent(usd: float) -> None:
    assert float(money(usd).replace("$", "").replace(",", "")) == pytest.approx(usd, rel=0.0051)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.012, "12 ms"),
        (8.35, "8.3 s"),
        (59.96, "1 min"),
        (75, "1 min 15 s"),
        (3599.7, "1 h"),
        (3700, "1 h 1 min"),
        (90000, "1 d 1 h"),
        (-75, "-1 min 15 s"),
        (math.nan, ABSENT),
        (None, ABSENT),
    ],
)
def test_duration_uses_two_units_at_most(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.97, "0.9700"),
        ("cost_usd", 0.5, "$0.500"),
        ("hours", 0.5, "30 min"),
        ("val_loss", 0.123456, "0.1235"),
        ("width", 1024, "1,024"),
    ],
)
def test_quantity_follows_the_unit_in_the_name(name: str, value: float, text: str) -> None:
    assert quantity(name, value) == text


def test_axis_titles_carry_units() -> None:
    names = ("cost_usd", "gpu_hours", "energy_joules", "hours", "accuracy")
    titles = ["cost (USD)", "GPU-hours", "energy (J)", "time (h)", "accuracy"]
    assert [axis_title(name) for name in names] == titles


def test_clean_takes_escape_sequences_line_breaks_and_direction_marks_out() -> None:
    assert clean("a\x1b[31mb\nc\u202ed") == "a?[31mb?c?d"


def test_sparkline_is_lowest_to_highest_and_blank_where_not_finite() -> None:
    assert sparkline([0.0, math.nan, 7.0]) == "▁ █"
    assert sparkline([0.0, 7.0], ascii_only=True).isascii()
    assert len(sparkline([float(number) for number in range(1000)], width=40)) == 40


def test_only_settings_that_differ_or_are_absent_somewhere_are_named() -> None:
    configs = [{"a": {"lr": 1, "name": "sgd"}, "seed": 0}, {"a": {"lr": 2, "name": "sgd"}, "seed": 0, "extra": None}]
    assert differing_settings(configs) == ["a.lr", "extra"]
    assert flatten({"a": {"b": {"c": 1}}, "d": []}) == {"a.b.c": 1, "d": []}


def test_one_and_true_are_different_settings() -> None:
    assert differing_settings([{"x": 1}, {"x": True}]) == ["x"]


def test_names_are_as_short_as_they_are_unambiguous_and_telling() -> None:
    names = short_names(["optimizer.lr", "ema.decay", "optimizer.decay", "model.width", "optimizer.name"])
    assert names["optimizer.lr"] == "lr"
    assert names["ema.decay"] == "ema.decay"
    assert names["optimizer.decay"] == "optimizer.decay"
    assert names["model.width"] == "width"
    assert names["optimizer.name"] == "optimizer.name"


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join), unique=True))
def test_short_names_are_unique(paths: list[str]) -> None:
    assert len(set(short_names(paths).values())) == len(paths)

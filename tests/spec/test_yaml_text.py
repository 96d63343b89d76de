"""YAML as people write it, and as someone writes it who wants to break the reader."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.yaml import MAX_BYTES, parse_value, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("5e-05", 5e-05),
        ("1.0e-4", 1e-4),
        ("1E3", 1000.0),
        ("+.5", 0.5),
        ("3.", 3.0),
        ("-7", -7),
        ("0", 0),
        (".inf", float("inf")),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("[1, 2.0, x]", [1, 2.0, "x"]),
        # What YAML 1.1 would take for numbers, booleans or dates stays the text that it looks like.
        ("010", "010"),
        ("on", "on"),
        ("no", "no"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-12-01", "2026-12-01"),
        ("0x10", "0x10"),
        ("1e", "1e"),
    ],
)
def test_scalars_are_read_as_written_space_5(text: str, value: object) -> None:
    read = parse_value(text, where="test")
    assert read == value
    assert type(read) is type(value)


@given(st.floats(allow_nan=False))
def test_every_number_that_python_prints_is_that_number(number: float) -> None:
    assert parse_value(repr(number).replace("inf", ".inf"), where="test") == number


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1,\n", 3, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' stands twice"),
        ("a: 1\nb: !!python/object/apply:os.system ['true']\n", 2, "not valid YAML"),
        ("a: 1\nb: !!python/name:os.system\n", 2, "not valid YAML"),
        ("a: &x 1\nb: *y\n", 2, "not valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        ("a: 1\n? [b, c]\n: 2\n", 2, "the key list or mapping is no text"),
        ("a: 1\n2: 2\n", 2, "the key 2 is no text; put it in quotes"),
        ("a: 1\nb: " + "9" * 5000, 2, "a number of 5000 digits"),
        ("a: 1\nb: \x00\n", 2, "not valid YAML"),
    ],
)
def test_what_is_no_safe_yaml_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_yaml(text, where="spec.yaml")
    assert caught.value.message.startswith(f"spec.yaml:{line} ")


def test_a_few_lines_that_stand_for_a_billion_are_refused() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(ConfigError, match="values"):
        parse_yaml("\n".join(lines), where="bomb.yaml")


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}"])
def test_an_alias_inside_itself_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="nested more than"):
        parse_yaml(text, where="loop.yaml")


@pytest.mark.parametrize("depth", [60, 5000, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(ConfigError, match="nested more than"):
        parse_yaml("[" * depth + "]" * depth, where="deep.yaml")


def test_a_large_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=str(MAX_BYTES)):
        parse_yaml("a: " + "x" * MAX_BYTES, where="large.yaml")


def test_an_alias_used_as_meant_is_read() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", where="test").data == {"a": {"b": 1}, "c": {"b": 1}}


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_but_never_crashes(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_yaml(text, where="any")

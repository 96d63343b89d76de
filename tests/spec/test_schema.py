"""The JSON schema that editors read, against the shipped examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from muse_spark_ray.spec.schema import sweep_schema, train_schema
from muse_spark_ray.spec.yaml import parse_yaml
from muse_spark_ray.strategy import strategies

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_shipped_sweeps_satisfy_it(path: Path) -> None:
    jsonschema.validate(parse_yaml(path.read_text(), where=path.name).data, sweep_schema())


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"serach": {}}, []),
        ({"budget": {"trials": "many"}}, ["budget", "trials"]),
        ({"train": {"epochs": 0}}, ["train", "epochs"]),
        ({"train": {"strategies": {"label_smoothing": {"epsilon": 2}}}}, ["train", "strategies", "label_smoothing"]),
    ],
)
def test_what_the_loader_refuses_editors_mark(change: dict[str, Any], where: list[str]) -> None:
    good = {"name": "x", "search": {"optimizer.lr": [0.1]}, "budget": {"trials": 1}}
    validator = jsonschema.Draft202012Validator(sweep_schema())
    assert validator.is_valid(good)
    errors = list(validator.iter_errors({**good, **change}))
    assert [list(error.absolute_path) for error in errors] == [where]


def test_every_strategy_and_every_setting_is_described() -> None:
    schema = train_schema()
    block = schema["$defs"]["StrategiesConfig"]["properties"]
    assert set(block) == set(strategies())
    for definition in (schema, *schema["$defs"].values()):
        for name, field in definition.get("properties", {}).items():
            assert field.get("description") or "$ref" in field, name


def test_it_is_strict_json() -> None:
    for schema in (sweep_schema(), train_schema()):
        json.dumps(schema, allow_nan=False)
        jsonschema.Draft202012Validator.check_schema(schema)

"""The JSON schema of a sweep spec, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from muse_spark_ray.spec.mission import MISSION_KEYS
from muse_spark_ray.spec.sweep import SweepSpec
from muse_spark_ray.spec.train import train_config_class


def sweep_schema() -> dict[str, Any]:
    """Return the schema of a sweep file, with the training config and all strategies spelled out under `train`."""
    schema = SweepSpec.model_json_schema(by_alias=True)
    train = train_schema()
    schema["$defs"] = {**train.pop("$defs", {}), **schema.get("$defs", {})}
    train["properties"].pop("task")
    schema["properties"]["train"] = {**train, "description": schema["properties"]["train"]["description"]}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "muse_spark_ray sweep"
    return schema


def train_schema() -> dict[str, Any]:
    """Return the schema of a training config, as `muse-spark train` reads it."""
    schema = train_config_class().model_json_schema(by_alias=True)
    for strategy in schema["$defs"]["StrategiesConfig"]["properties"].values():
        strategy["anyOf"].append({"type": "boolean"})
    schema["properties"] |= {
        key: {"description": f"the same as {'.'.join(place)}"} for key, (place, _) in MISSION_KEYS.items()
    }
    return schema

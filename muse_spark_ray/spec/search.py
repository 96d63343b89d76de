"""One line of a sweep's `search` block: where a value comes from, and when the parameter exists at all."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from muse_spark_ray.spec.task import STRICT, Number


class Parameter(BaseModel):
    """A range (`low`, `high`) or a list of `choices`, present only if its conditions hold.

    In YAML a bare list is short for `{choices: [...]}`. Choices may be any values, lists and null included.
    """

    model_config = ConfigDict(**STRICT, json_schema_extra=lambda schema: _or_list(schema))

    low: Number | None = Field(None, description="smallest value")
    high: Number | None = Field(None, description="largest value, included")
    log: bool = Field(False, description="draw the logarithm evenly")
    step: Number | None = Field(None, gt=0, description="distance between two values")
    choices: list[Any] | None = Field(None, description="values to choose from")
    only_if: dict[str, Any] = Field(
        default_factory=dict,
        alias="if",
        description="other parameter: value, list of values, or true for 'any value but null and false'",
    )

    @model_validator(mode="before")
    @classmethod
    def _list_means_choices(cls, data: Any) -> Any:
        return {"choices": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _is_a_range_or_choices(self) -> Parameter:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.step is not None or self.log:
                raise ValueError("give choices, or low and high, not both")
            if not self.choices:
                raise ValueError("choices is empty; give at least one value")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices: [...] (a bare list works too)")
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"low and high must be finite numbers, not {self.low} and {self.high}")
        if self.low > self.high:
            raise ValueError(f"low must not be above high ({self.low} > {self.high}); swap them")
        if self.log and self.low <= 0:
            raise ValueError(f"log: true needs low above 0, not {self.low}")
        if self.log and self.step is not None:
            raise ValueError("log and step do not go together; drop one")
        return self

    @property
    def is_integer(self) -> bool:
        """Say if the range holds whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)

    def all_values(self) -> list[Any] | None:
        """Return every value there is; None for a continuum."""
        if self.choices is not None:
            return self.choices
        low, high = self.low or 0, self.high or 0
        step = self.step or (1 if self.is_integer else None)
        if step is None:
            return None
        return [low + index * step for index in range(math.floor((high - low) / step + 1e-9) + 1)]

    def values_at_ends(self) -> list[Any]:
        """Return the values whose validity stands for all others: every choice, or both ends of the range."""
        return self.choices if self.choices is not None else [self.low, self.high]


def _or_list(schema: dict[str, Any]) -> None:
    """Let the JSON schema take a bare list, too."""
    mapping = dict(schema)
    schema.clear()
    schema |= {"anyOf": [{"type": "array", "minItems": 1, "description": "values to choose from"}, mapping]}


def condition_holds(condition: Any, value: Any) -> bool:
    """Say if a parameter's value meets a condition of `if:`."""
    if condition is True:
        return value is not None and value is not False
    if isinstance(condition, list):
        return value in condition
    return bool(value == condition)

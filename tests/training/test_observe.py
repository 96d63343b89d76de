"""What the course of a training tells."""

from __future__ import annotations

from typing import Any

import pytest

from muse_spark_ray.spec.load import train_config
from muse_spark_ray.training.observe import observations

WELL = [2.0, 1.2, 0.9, 0.75, 0.68, 0.65, 0.64, 0.635]


def _history(train: list[float], held_out: list[float] | None = None, **more: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"train_loss": loss, "updates": 10 * (i + 1)} for i, loss in enumerate(train)]
    for i, row in enumerate(rows):
        row["val_loss"] = held_out[i] if held_out else None
        row |= {name: values[i] for name, values in more.items()}
    return rows


def _checks(history: list[dict[str, Any]], **config: Any) -> list[str]:
    return [found.check for found in observations(history, train_config(config))]


def test_a_good_course_needs_no_word() -> None:
    accuracy = [0.3, 0.5, 0.6, 0.66, 0.7, 0.71, 0.715, 0.716]
    assert _checks(_history(WELL, [v + 0.1 for v in WELL], accuracy=accuracy, data_wait_share=[0.02] * 8)) == []
    assert _checks([]) == []


@pytest.mark.parametrize(
    ("history", "check"),
    [
        (_history(WELL, data_wait_share=[0.31] * 8), "slow loader"),
        (_history(WELL, bad_steps=[1] * 8), "numbers that are not finite"),
        (_history([1.0, 0.5, 0.4, 3.0]), "explosion"),
        (_history([1.0, 0.5, 0.3, 0.2, 0.1], [1.0, 0.6, 0.7, 0.8, 0.9]), "overfitting"),
        (_history([2.0, 1.6, 1.3, 1.0], [2.0, 1.6, 1.3, 1.1]), "underfitting"),
        (_history([1.0] * 8), "plateau"),
        (_history(WELL, accuracy=[0.5, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.6]), "fluctuating validation"),
    ],
)
def test_each_trouble_is_named_with_something_to_try(history: list[dict[str, Any]], check: str) -> None:
    found = {one.check: one for one in observations(history, train_config({}))}
    assert check in found
    assert found[check].evidence
    assert found[check].advice


def test_what_is_on_already_is_not_advised() -> None:
    history = _history([1.0, 0.5, 0.3, 0.2, 0.1], [1.0, 0.6, 0.7, 0.8, 0.9])
    config = train_config({"strategies": {"early_stopping": {"patience": 50}}, "clip_norm": 1.0})
    (found,) = observations(history, config)
    assert "early_stopping" not in found.advice


def test_the_share_of_hunger_is_said_in_words() -> None:
    (found,) = observations(_history(WELL, data_wait_share=[0.31] * 8), train_config({}))
    assert found.evidence == "the device was hungry 31% of the time"

"""Early stopping: when it ends a training, and that a resume does not make it forget."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from images import FIRST, build
from toys import blobs, small_net, trained

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import Decision, Strategy


def checks(strategy: Strategy, *values: float, metric: str = "val_loss") -> list[bool]:
    """Show a metric after each epoch; say after which ones the strategy asked to stop."""
    decisions = [strategy.after_epoch({metric: value}, FIRST) for value in values]
    return [isinstance(decision, Decision) and decision.stop for decision in decisions]


def test_patience_and_best_value_survive_a_resume_stop_1() -> None:
    settings = {"patience": 2, "min_delta": 0.01}
    first = build("early_stopping", **settings)
    assert checks(first, 1.0, 0.9, 0.895) == [False, False, False]
    resumed = build("early_stopping", **settings)
    resumed.load_state_dict(first.state_dict())
    decision = resumed.after_epoch({"val_loss": 0.91}, FIRST)
    assert decision == Decision(stop=True, reason="val_loss has not improved for 2 epochs (best 0.9)")


def test_patience_counts_checks_stop_3() -> None:
    assert checks(build("early_stopping", patience=2), 1.0, 1.0, 1.0) == [False, False, True]


@pytest.mark.parametrize(("metric", "values"), [("val_loss", [3, 2, 1, 0.5]), ("accuracy", [0.1, 0.2, 0.3, 0.4])])
def test_what_improves_goes_on(metric: str, values: list[float]) -> None:
    assert not any(checks(build("early_stopping", metric=metric, patience=1), *values, metric=metric))


def test_a_value_that_is_not_a_number_is_no_improvement_best_5() -> None:
    strategy = build("early_stopping", patience=2)
    assert checks(strategy, math.nan, 1.0, math.nan, math.nan) == [False, False, False, True]
    assert strategy.state_dict()["best"] == 1.0
    assert checks(build("early_stopping", patience=2), math.nan, math.inf) == [False, True]


@pytest.mark.parametrize(("metric", "values"), [("accuracy", [0.5, 0.9]), ("val_loss", [2.0, 0.1])])
def test_a_target_ends_the_training_at_once(metric: str, values: list[float]) -> None:
    target = 0.9 if metric == "accuracy" else 0.1
    assert checks(build("early_stopping", metric=metric, target=target), *values, metric=metric) == [False, True]


def _stopping(**settings: Any) -> MuseSparkTrainer:
    return trained(
        small_net(), blobs(), epochs=30, lr=1e-9, validation=blobs(), strategies={"early_stopping": settings}
    )


def test_a_training_that_does_not_improve_is_finished_and_says_why_par_10() -> None:
    report = _stopping(patience=3, min_delta=0.001).get_training_report()
    assert report["epochs"] == 4
    assert report["state"] == "finished"
    assert "val_loss has not improved for 3 epochs" in report["stop_reason"]


def test_a_training_that_was_ended_stays_so_until_its_settings_change(tmp_path: Path) -> None:
    def run(**settings: Any) -> dict[str, Any]:
        block = {"early_stopping": {"min_delta": 0.001, **settings}}
        checkpoint = {"save_dir": str(tmp_path)}
        trainer = trained(
            small_net(), blobs(), epochs=30, lr=1e-9, validation=blobs(), strategies=block, checkpoint=checkpoint
        )
        return trainer.get_training_report()

    first, again = run(patience=3), run(patience=3)
    assert (first["epochs"], again["epochs"]) == (4, 4)
    assert first["stop_reason"] == again["stop_reason"]
    assert run(patience=5)["epochs"] == 6


def test_a_training_ends_when_it_has_cost_enough() -> None:
    strategy, epoch = build("early_stopping", max_seconds=10.0), {"samples": 600, "samples_per_second": 150.0}
    assert [strategy.after_epoch({"val_loss": 1.0 / n, **epoch}, FIRST) for n in (1, 2)] == [None, None]
    resumed = build("early_stopping", max_seconds=10.0)
    resumed.load_state_dict(strategy.state_dict())
    decision = resumed.after_epoch({"val_loss": 0.1, **epoch}, FIRST)
    assert decision == Decision(stop=True, reason="12 s of training reach the limit of 10 s")


def test_a_metric_that_is_not_reported_is_named() -> None:
    with pytest.raises(ConfigError, match="watches val_loss, which this training does not report"):
        trained(small_net(), blobs(), epochs=2, strategies={"early_stopping": True})

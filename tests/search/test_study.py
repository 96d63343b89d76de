"""What the sampler is asked, told and reminded of."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import pytest

from muse_spark_ray.search.optuna import Study
from muse_spark_ray.spec.load import load_spec_text
from muse_spark_ray.spec.sweep import SweepSpec

SPACE = """
name: study
search:
  optimizer.lr: {low: 1e-4, high: 0.5, log: true}
  task.model.width: {low: 8, high: 256, log: true}
  strategies.ema: [false, true]
budget: {trials: 40}
"""
SAMPLERS = ["tpe", "nsga2", "random"]


def spec_of(sampler: str, *, seed: int = 7, text: str = SPACE) -> SweepSpec:
    return load_spec_text(f"{text}sampler: {sampler}\nseed: {seed}\n", where="test")


def outcome(values: dict[str, Any]) -> dict[str, float]:
    """A trade-off: wide networks are better and dearer; the learning rate has an optimum at 0.05."""
    lr, width = values["optimizer.lr"], values["task.model.width"]
    return {"accuracy": 1 - 1 / width - abs(lr - 0.05), "cost_usd": width * (1.1 if values["strategies.ema"] else 1.0)}


def run(study: Study, trials: int) -> list[dict[str, Any]]:
    drawn = []
    for _ in range(trials):
        proposal = study.ask()
        assert proposal is not None
        study.tell(proposal.identity, outcome(proposal.values))
        drawn.append(proposal.values)
    return drawn


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_configs_drawn_at_the_same_time_differ_s2_space_1(sampler: str) -> None:
    def four(seed: int) -> list[dict[str, Any]]:
        study = Study(spec_of(sampler, seed=seed))
        return [proposal.values for _ in range(4) if (proposal := study.ask()) is not None]

    first = four(7)
    assert len({str(values) for values in first}) == 4
    assert four(7) == first
    assert four(8) != first


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_after_many_trials_parallel_draws_still_differ_s2(sampler: str) -> None:
    study = Study(spec_of(sampler))
    run(study, 20)
    pending = [proposal for _ in range(4) if (proposal := study.ask()) is not None]
    assert len({proposal.values["optimizer.lr"] for proposal in pending}) == 4


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_draws_the_same_sweep(sampler: str) -> None:
    assert run(Study(spec_of(sampler)), 15) == run(Study(spec_of(sampler)), 15)


BROKEN = [None, {}, {"accuracy": 0.5}, {"accuracy": None, "cost_usd": 1.0}]
BROKEN += [{"accuracy": float("nan"), "cost_usd": 1.0}, {"accuracy": 0.5, "cost_usd": float("inf")}]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_failed_nan_and_half_reported_trials_do_not_stop_the_search_s1(sampler: str) -> None:
    study = Study(spec_of(sampler))
    for number in range(30):
        proposal = study.ask()
        assert proposal is not None
        study.tell(proposal.identity, BROKEN[number % 6] if number % 2 else outcome(proposal.values))  # type: ignore[arg-type]
    assert study.ask() is not None


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_in_which_everything_fails_goes_on_drawing(sampler: str) -> None:
    study = Study(spec_of(sampler))
    for _ in range(20):
        proposal = study.ask()
        assert proposal is not None
        study.tell(proposal.identity, None)


def test_a_trial_nobody_drew_or_told_twice_is_ignored_sweep_6() -> None:
    study = Study(spec_of("tpe"))
    proposal = study.ask()
    assert proposal is not None
    study.tell(proposal.identity, outcome(proposal.values))
    study.tell(proposal.identity, outcome(proposal.values))
    study.tell("unknown", None)


def test_a_grid_tries_all_one_after_the_other() -> None:
    text = (
        "name: grid\nsearch:\n  task.model.name: [linear, mlp]\n"
        "  task.model.depth: {low: 1, high: 3, step: 2, if: {task.model.name: mlp}}\n"
        "  optimizer.momentum: {low: 0.0, high: 0.5, step: 0.25}\nbudget: {trials: 40}\n"
    )
    study = Study(spec_of("grid", text=text))
    drawn = []
    while (proposal := study.ask()) is not None:
        drawn.append(tuple(proposal.values.values()))
    assert drawn == [
        (momentum, *model) for momentum in (0.0, 0.25, 0.5) for model in (("linear",), ("mlp", 1), ("mlp", 3))
    ]


@pytest.mark.parametrize("sampler", [*SAMPLERS, "grid"])
def test_a_small_space_is_exhausted_without_repeating_a_config(sampler: str) -> None:
    text = "name: small\nsearch: {batch_size: [8, 16, 32], strategies.ema: [false, true], seed: {low: 0, high: 9}}\n"
    text += "budget: {trials: 400}\n"
    study = Study(spec_of(sampler, text=text))
    seen = []
    while (proposal := study.ask()) is not None:
        seen.append(proposal.identity)
        study.tell(proposal.identity, {"accuracy": 0.5, "cost_usd": 1.0})
    assert len(set(seen)) == len(seen) == 60


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_search_knows_what_was_tried_and_repeats_nothing_sweep_1(sampler: str) -> None:
    first = Study(spec_of(sampler))
    tried = []
    for _ in range(12):
        proposal = first.ask()
        assert proposal is not None
        first.tell(proposal.identity, outcome(proposal.values))
        tried.append(proposal)
    resumed = Study(spec_of(sampler), draws_before=12)
    for proposal in tried[:9]:
        resumed.replay(proposal.identity, proposal.values, outcome(proposal.values))
    resumed.replay(tried[9].identity, tried[9].values, None)
    for proposal in tried[10:]:
        resumed.replay_running(proposal.identity, proposal.values)
        resumed.tell(proposal.identity, outcome(proposal.values))
    drawn = []
    for _ in range(12):
        proposal = resumed.ask()
        assert proposal is not None
        drawn.append(proposal.identity)
    assert not set(drawn) & {proposal.identity for proposal in tried}


def test_tpe_learns_across_a_resume() -> None:
    """After a resume, learning rates lie nearer to the optimum than those that were drawn blindly."""
    before = run(Study(spec_of("tpe")), 30)
    resumed = Study(spec_of("tpe"), draws_before=30)
    for values in before:
        resumed.replay(spec_of("tpe").trial_config(values).identity(), values, outcome(values))
    after = run(resumed, 20)
    blind = run(Study(spec_of("random")), 50)
    assert _distance(after) < 0.7 * _distance(blind)


def _distance(drawn: list[dict[str, Any]]) -> float:
    return fmean(abs(math.log(values["optimizer.lr"] / 0.05)) for values in drawn)


def test_a_trial_differs_in_identity_by_what_was_drawn_only() -> None:
    spec = spec_of("random")
    values = {"optimizer.lr": 0.1, "task.model.width": 8, "strategies.ema": True}
    assert spec.trial_config(values).identity() == spec.trial_config(dict(reversed(values.items()))).identity()
    assert spec.trial_config(values).identity() != spec.trial_config({**values, "optimizer.lr": 0.2}).identity()

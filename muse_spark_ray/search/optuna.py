"""The sampler: Optuna's study by ask and tell, seeded, replayed from the ledger, never asked twice for one config."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from muse_spark_ray.search.space import draw, every_config, recorded
from muse_spark_ray.spec.sweep import SweepSpec

TRIES_FOR_A_NEW_CONFIG = 30


@dataclass(frozen=True, slots=True)
class Proposal:
    """A config to try.

    Args:
        values: {dotted path: value} as drawn.
        config: The validated TrainConfig.
        identity: Hash of the config.
    """

    values: dict[str, Any]
    config: Any
    identity: str


class Study:
    """Optuna's study of one sweep, kept in memory: the ledger is what is stored, and `replay` rebuilds the study.

    Args:
        spec: Space, objectives, sampler and seed.
        draws_before: Proposals made in earlier runs of the sweep; they shift the seed, so that a resumed sweep does
            not draw the first configs again.
    """

    def __init__(self, spec: SweepSpec, *, draws_before: int = 0) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._spec = spec
        self._open: dict[str, optuna.trial.Trial | int] = {}
        self._seen: set[str] = set()
        self._all = every_config(spec.search)
        ways = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}
        directions = [ways[direction] for direction in spec.objectives.values()]
        self._study = optuna.create_study(directions=directions, sampler=build_sampler(spec, draws_before))

    def ask(self) -> Proposal | None:
        """Draw a config that was not drawn before.

        Returns:
            None if the space holds no other, or, where it is a continuum, seems to hold none.
        """
        for _ in range(0 if self._spec.sampler == "grid" else TRIES_FOR_A_NEW_CONFIG):
            proposal = self._draw()
            if proposal is not None:
                return proposal
        for values in self._all:
            self._study.enqueue_trial(recorded(self._spec.search, values)[0])
            proposal = self._draw()
            if proposal is not None:
                return proposal
        return None

    def _draw(self) -> Proposal | None:
        """Ask the study once; None for a config that was drawn before."""
        trial = self._study.ask()
        values = draw(trial, self._spec.search)
        config = self._spec.trial_config(values)
        identity = config.identity()
        if identity in self._seen:
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        self._seen.add(identity)
        self._open[identity] = trial
        return Proposal(values, config, identity)

    def tell(self, identity: str, values: Mapping[str, float | None] | None) -> None:
        """Report a finished trial; without a finite value for each objective it counts as failed."""
        trial = self._open.pop(identity, None)
        if trial is None:
            return
        numbers = self._numbers(values)
        if numbers is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, numbers)

    def replay(self, identity: str, drawn: Mapping[str, Any], values: Mapping[str, float | None] | None) -> None:
        """Add a trial that an earlier run finished; without values it failed."""
        numbers = self._numbers(values)
        self._add(identity, drawn, TrialState.FAIL if numbers is None else TrialState.COMPLETE, numbers)

    def replay_running(self, identity: str, drawn: Mapping[str, Any]) -> None:
        """Add a trial that an earlier run began and this one will finish."""
        self._open[identity] = self._add(identity, drawn, TrialState.RUNNING, None)

    def _add(self, identity: str, drawn: Mapping[str, Any], state: TrialState, values: Sequence[float] | None) -> int:
        self._seen.add(identity)
        parameters, distributions = recorded(self._spec.search, drawn)
        made = optuna.trial.create_trial(state=state, values=values, params=parameters, distributions=distributions)
        self._study.add_trial(made)
        return len(self._study.get_trials(deepcopy=False)) - 1

    def _numbers(self, values: Mapping[str, float | None] | None) -> Sequence[float] | None:
        if values is None:
            return None
        numbers = [values.get(name) for name in self._spec.objectives]
        finite = [float(number) for number in numbers if number is not None and math.isfinite(number)]
        return finite if len(finite) == len(numbers) else None


def build_sampler(spec: SweepSpec, draws_before: int = 0) -> BaseSampler:
    """Return the sampler of a spec.

    TPE counts running trials as bad ones (constant liar), so that configs drawn at the same time differ, and models
    parameters jointly. NSGA-II gets a population that fits the number of trials.
    """
    seed = spec.seed + 1_000_003 * draws_before
    if spec.sampler in ("random", "grid"):
        return RandomSampler(seed=seed)
    if spec.sampler == "nsga2":
        trials = spec.budget.trials or 200
        return NSGAIISampler(seed=seed, population_size=max(4, min(50, trials // 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(seed=seed, n_startup_trials=8, multivariate=True, group=True, constant_liar=True)

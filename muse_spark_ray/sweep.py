"""A stored sweep as notebooks, the command line and the service see it: ledger, cost and front joined."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from muse_spark_ray.cost import PriceBook, running_totals, totals
from muse_spark_ray.errors import LedgerError
from muse_spark_ray.ledger.names import check_name, suggestion
from muse_spark_ray.ledger.reader import read_epochs, read_intervals, read_trials
from muse_spark_ray.ledger.state import effective_state, read_state
from muse_spark_ray.ledger.store import Store
from muse_spark_ray.pareto import Bound, front, hypervolume, reference_point

if TYPE_CHECKING:
    from muse_spark_ray.cost import Totals
    from muse_spark_ray.pareto import Direction

Location = str | PathLike[str] | Store | None
DEFAULT_OBJECTIVES: dict[str, Direction] = {"accuracy": "max", "cost_usd": "min"}
COST_COLUMNS = ("cost_usd", "gpu_hours", "cpu_core_hours", "hours")

# What people count; the others are shown only where there are any.
_COUNTED = ("finished", "running", "failed", "pending")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class SweepSummary:
    """One line of a list of sweeps.

    Args:
        name: the sweep's name.
        state: running, finished, stopped, interrupted or failed.
        trials: number of trials by state.
        started: UTC seconds of its first driver; None before there was one.
        wall_seconds: time that drivers have run, all together.
    """

    name: str
    state: str
    trials: Mapping[str, int]
    started: float | None
    wall_seconds: float


@dataclass(frozen=True)
class TrialView:
    """All that is known about one trial.

    Args:
        trial: its id.
        state: pending, running, finished, stopped, pruned or failed.
        config: the training config it ran with.
        curve: one row per epoch: epoch, metrics, and cost until then (`cost_usd`, `gpu_hours`, ...).
        cost_by_phase: columns phase, seconds, usd.
        usd: what it cost so far.
        checkpoint: where its checkpoint is; None without one.
        error: what went wrong; None if nothing did.
        reason: why it was stopped; None if it was not.
        attempts: how often it was started.
    """

    trial: str
    state: str
    config: dict[str, Any]
    curve: pd.DataFrame
    cost_by_phase: pd.DataFrame
    usd: float
    checkpoint: str | None
    error: str | None
    reason: str | None
    attempts: int


class Sweep:
    """One sweep in a store, read-only; tables are read once and again after `refresh`.

    Use `Sweep.open`. Nothing here starts or changes anything, so it may be used while the sweep runs.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self._cache: dict[str, Any] = {}

    @classmethod
    def open(cls, store: Location, name: str) -> Sweep:
        """Return a stored sweep.

        Args:
            store: a path, a URI, an open store, or None for the default store.
            name: the sweep's name.

        Raises:
            ConfigError: for a name that no sweep can have.
            LedgerError: if there is no such sweep, naming the nearest ones.
            StoreError: if the store cannot be reached.
        """
        opened = Store.open(store)
        if not opened.exists(f"{check_name('sweep', name)}/spec.yaml"):
            raise LedgerError(
                f"there is no sweep {name!r} in {opened.uri}. {suggestion(name, _names(opened))}",
                hint="muse-spark list shows all; another store is given with --store or MUSE_SPARK_STORE.",
            )
        return cls(opened, name)

    @staticmethod
    def list(store: Location = None) -> list[SweepSummary]:
        """Return a summary of every sweep in a store, by name."""
        opened = Store.open(store)
        return [Sweep(opened, name)._summary() for name in _names(opened)]

    def refresh(self) -> None:
        """Forget what was read, so that the next question sees what has been written since."""
        self._cache.clear()

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as plain data, as it was written when the sweep began."""
        return self._once("spec", self._read_spec)

    @property
    def objectives(self) -> dict[str, Direction]:
        """The objectives of the spec, {column: "max" or "min"}."""
        return dict(self.spec.get("objectives") or DEFAULT_OBJECTIVES)

    @property
    def prices(self) -> PriceBook:
        """The price book that the sweep began with."""
        return self._once("prices", self._read_prices)

    def state(self) -> dict[str, Any]:
        """Return `state.json` with `state` as it really is: "interrupted" if the driver died without a word."""
        said = read_state(self.store, self.name)
        return {**said, "state": effective_state(said, now=time.time())}

    def trials(self) -> pd.DataFrame:
        """Return one row per trial (columns as in `ledger.schema.TRIALS`)."""
        return self._once("trials", lambda: read_trials(self.store, self.name))

    def epochs(self) -> pd.DataFrame:
        """Return one row per (trial, epoch): trial, attempt, epoch, end (UTC seconds) and every metric."""
        return self._once("epochs", lambda: read_epochs(self.store, self.name))

    def intervals(self) -> pd.DataFrame:
        """Return the cost intervals: what was held, how much of it, when, and for what."""
        return self._once("intervals", lambda: read_intervals(self.store, self.name))

    def points(self, *, prices: PriceBook | None = None) -> pd.DataFrame:
        """Return every candidate of a front: a trial stopped after an epoch, and what it had cost until then.

        Args:
            prices: another price book than the sweep's own.

        Returns:
            One row per (trial, epoch): trial, epoch, the metrics, cost_usd, gpu_hours, cpu_core_hours, hours, state.
        """
        if prices is not None:
            return self._join(prices)
        return self._once("points", lambda: self._join(self.prices))

    def front(
        self,
        objectives: Mapping[str, Direction] | None = None,
        *,
        bounds: Sequence[Bound] = (),
        prices: PriceBook | None = None,
    ) -> pd.DataFrame:
        """Return the points that no other point dominates, by the first minimised objective.

        Args:
            objectives: {column of `points`: "max" or "min"}; the spec's if None.
            bounds: limits that a point has to meet.
            prices: another price book than the sweep's own.

        Returns:
            Rows of `points` and a column `tie`; `.attrs["excluded"]` counts what was left out and why, including
            trials that ended or still run without having reported an epoch.

        Raises:
            ConfigError: for an unknown column or direction.
        """
        wanted = dict(objectives or self.objectives)
        found = front(self._candidates(prices), wanted, bounds=bounds)
        ordered = found.sort_values(_first_minimised(wanted), kind="stable")
        ordered.attrs = {**found.attrs, "excluded": self._excluded(found.attrs["excluded"])}
        return ordered

    def reference(
        self, objectives: Mapping[str, Direction] | None = None, *, prices: PriceBook | None = None
    ) -> dict[str, float]:
        """Return the reference point of hypervolumes: the spec's, and the worst value seen where it names none."""
        wanted = dict(objectives or self.objectives)
        given = self.spec.get("reference") or {}
        worst = {} if wanted.keys() <= given.keys() else reference_point(self._candidates(prices), wanted)
        merged = {**worst, **given}
        return {name: float(merged[name]) for name in wanted if name in merged}

    def hypervolume(
        self,
        objectives: Mapping[str, Direction] | None = None,
        *,
        reference: Mapping[str, float] | None = None,
        prices: PriceBook | None = None,
    ) -> float:
        """Return the hypervolume of the front over a reference point (`Sweep.reference` if None); 0 without points."""
        wanted = dict(objectives or self.objectives)
        return self._volume(self._candidates(prices), wanted, reference or self.reference(wanted, prices=prices))

    def totals(self, *, prices: PriceBook | None = None) -> Totals:
        """Return what the whole sweep has used and cost."""
        return totals(self.intervals(), prices or self.prices)

    def status(self) -> dict[str, Any]:
        """Return state, trials by state, spend and budget as plain data, ready for JSON.

        Trials that were running when a driver died count as pending: a resumed sweep takes them up again.
        """
        state = self.state()
        spent = self.totals()
        return _strict_mapping(
            {
                "state": state["state"],
                "trials": self._counts(is_running=state["state"] == "running"),
                "spend": {
                    "usd": spent.usd,
                    "gpu_hours": spent.gpu_hours,
                    "cpu_core_hours": spent.cpu_core_hours,
                    "wall_seconds": float(state.get("wall_seconds", 0.0)),
                },
                "budget": dict(self.spec.get("budget") or {}),
            }
        )

    def config_of(self, trial: str) -> dict[str, Any]:
        """Return the training config of a trial as plain data; LedgerError names the nearest for an unknown one."""
        return _config(self._trial_row(trial))

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return what was drawn for each trial, {trial: {dotted path: value}}; its whole config where that is unknown."""
        rows = self._once("rows", self._rows_by_trial)
        return {trial: json.loads(row["drawn"]) if row.get("drawn") else _config(row) for trial, row in rows.items()}

    def trial(self, trial: str) -> TrialView:
        """Return all that is known about a trial.

        Raises:
            LedgerError: if the sweep has no such trial, naming the nearest ones.
        """
        row = self._trial_row(trial)
        points, intervals = self.points(), self.intervals()
        spent = totals(intervals[intervals["trial"] == trial], self.prices)
        # Waiting takes time and costs nothing, so it has no price entry.
        phases = [
            (name, seconds, spent.usd_by_phase.get(name, 0.0)) for name, seconds in spent.seconds_by_phase.items()
        ]
        return TrialView(
            trial=trial,
            state=row["state"] or "pending",
            config=_config(row),
            curve=points[points["trial"] == trial].drop(columns=["trial", "state"]).reset_index(drop=True),
            cost_by_phase=pd.DataFrame(phases, columns=["phase", "seconds", "usd"]),
            usd=spent.usd,
            checkpoint=row["checkpoint"],
            error=row["error"],
            reason=row["reason"],
            attempts=1 + (row["attempt"] or 0),
        )

    def front_document(
        self,
        objectives: Mapping[str, Direction] | None = None,
        *,
        bounds: Sequence[Bound] = (),
        prices: PriceBook | None = None,
    ) -> dict[str, Any]:
        """Return the front as plain data that strict JSON can hold; NaN and infinities are None.

        Args:
            objectives: as for `front`.
            bounds: as for `front`.
            prices: as for `front`.

        Returns:
            sweep, objectives, points (trial, epoch, each objective, tie, config), excluded, the hypervolume of these
            points, and its reference.
        """
        wanted = dict(objectives or self.objectives)
        rows = self.front(wanted, bounds=bounds, prices=prices)
        reference = self.reference(wanted, prices=prices)
        columns = ["trial", "epoch", *(name for name in wanted if name not in ("trial", "epoch")), "tie"]
        points = rows[columns].astype(object).to_dict("records")
        return _strict_mapping(
            {
                "sweep": self.name,
                "objectives": wanted,
                "points": [{**point, "config": self.config_of(point["trial"])} for point in points],
                "excluded": rows.attrs["excluded"],
                "hypervolume": self._volume(rows, wanted, reference),
                "reference": reference,
            }
        )

    def __repr__(self) -> str:
        line = self._summary()
        return f"Sweep({self.name!r}, {line.state}, {_shown(line.trials)}, store={self.store.uri!r})"

    def _repr_html_(self) -> str:
        line = self._summary()
        rows = {"state": line.state, "trials": _shown(line.trials), "store": self.store.uri}
        cells = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
        return f"<table><caption>{escape(self.name)}</caption>{cells}</table>"

    def _once(self, key: str, read: Callable[[], _Value]) -> _Value:
        if key not in self._cache:
            self._cache[key] = read()
        value: _Value = self._cache[key]
        return value

    def _read_spec(self) -> dict[str, Any]:
        import yaml

        path = f"{self.name}/spec.yaml"
        try:
            spec = yaml.load(self.store.read_bytes(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as error:
            raise LedgerError(f"{path} in {self.store.uri} is no YAML: {error}") from error
        if not isinstance(spec, dict):
            raise LedgerError(f"{path} in {self.store.uri} holds {type(spec).__name__}; it must be a mapping")
        return spec

    def _read_prices(self) -> PriceBook:
        path = f"{self.name}/prices.json"
        try:
            return PriceBook.from_dict(json.loads(self.store.read_bytes(path)))
        except FileNotFoundError:
            # Its driver died between the two files; the catalogue is what it would have written.
            return PriceBook.load()
        except ValueError as error:
            raise LedgerError(f"{path} in {self.store.uri} is no JSON: {error}") from error

    def _join(self, prices: PriceBook) -> pd.DataFrame:
        epochs = self.epochs()
        spent = running_totals(self.intervals(), epochs[["trial", "epoch", "end"]], prices)
        reserved = {"attempt", "end", "state", *COST_COLUMNS}
        metrics = epochs.drop(columns=[name for name in epochs.columns if name in reserved])
        points = metrics.merge(spent[["trial", "epoch", *COST_COLUMNS]], on=["trial", "epoch"], how="left")
        trials = self.trials()
        return points.assign(state=points["trial"].map(dict(zip(trials["trial"], trials["state"], strict=True))))

    def _candidates(self, prices: PriceBook | None) -> pd.DataFrame:
        # The spec's own objectives are columns even before the first epoch has been reported.
        points = self.points(prices=prices)
        return points.assign(**{name: math.nan for name in self.objectives if name not in points.columns})

    def _excluded(self, counts: Mapping[str, int]) -> dict[str, int]:
        trials = self.trials()
        silent = trials.loc[~trials["trial"].isin(self.epochs()["trial"]), "state"]
        extra = silent.replace("stopped", "pruned").value_counts().to_dict()
        return {reason: int(count) + int(extra.get(reason, 0)) for reason, count in counts.items()}

    def _volume(self, rows: pd.DataFrame, objectives: dict[str, Direction], reference: Mapping[str, float]) -> float:
        return hypervolume(rows, objectives, reference=reference) if len(rows) and reference else 0.0

    def _trial_row(self, trial: str) -> dict[str, Any]:
        rows = self._once("rows", self._rows_by_trial)
        if trial not in rows:
            raise LedgerError(
                f"sweep {self.name!r} has no trial {trial!r}. {suggestion(trial, rows)}",
                hint=f"muse-spark pareto {self.name} shows trials on the front.",
            )
        return rows[trial]

    def _rows_by_trial(self) -> dict[str, dict[str, Any]]:
        trials = self.trials().astype(object)
        rows = trials.where(trials.notna(), None).to_dict("records")
        return {row["trial"]: {str(name): value for name, value in row.items()} for row in rows}

    def _counts(self, *, is_running: bool) -> dict[str, int]:
        states = self.trials()["state"].fillna("pending")
        if not is_running:
            states = states.replace("running", "pending")
        seen = {str(state): int(count) for state, count in states.value_counts().items()}
        return dict.fromkeys(_COUNTED, 0) | seen

    def _summary(self) -> SweepSummary:
        state = self.state()
        return SweepSummary(
            name=self.name,
            state=state["state"],
            trials=self._counts(is_running=state["state"] == "running"),
            started=state.get("started"),
            wall_seconds=float(state.get("wall_seconds", 0.0)),
        )


def _names(store: Store) -> list[str]:
    return [name for name in store.list() if store.exists(f"{name}/spec.yaml")]


def _first_minimised(objectives: Mapping[str, Direction]) -> str:
    return next((name for name, direction in objectives.items() if direction == "min"), next(iter(objectives)))


def _config(row: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(row["config"] or "{}")
    return config


def _shown(trials: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in trials.items() if count) or "no trials"


def _strict_mapping(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return plain data in which everything that strict JSON cannot hold is None."""
    return {str(name): _strict(value) for name, value in values.items()}


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _strict_mapping(value)
    if isinstance(value, (list, tuple)):
        return [_strict(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value

"""Ray Tune's part: it starts a light trial for each config, reuses their processes, and tells the engine what they say."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from ray import tune
from ray.tune.search import Searcher

from muse_spark_ray.runtime.session import TRIAL_SLOT
from muse_spark_ray.search.proxy import TrialProxy

# Tune's own result files, snapshots and signal handler are switched off: the ledger is what is kept.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000000",
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "100000000",
    "RAY_AIR_NEW_OUTPUT": "0",
}


class Listener(Protocol):
    """What Tune asks and tells."""

    def next_job(self, tune_id: str) -> dict[str, Any] | None:
        """Return the config of the next Tune trial; None for 'not now'."""
        ...

    @property
    def is_over(self) -> bool:
        """No trial will be started any more."""
        ...

    def take(self, tune_id: str, events: list[dict[str, Any]]) -> None:
        """Take in what a trial said."""
        ...

    def lost(self, tune_id: str) -> None:
        """Take in that the Tune trial itself died."""
        ...


class EngineSearcher(Searcher):
    """Joins Tune to the engine. It has no metric: partial and missing values are the engine's business."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def suggest(self, trial_id: str) -> Any:
        """Return the next config, `FINISHED`, or None to be asked again."""
        job = self._listener.next_job(trial_id)
        if job is None and self._listener.is_over:
            return Searcher.FINISHED
        return job

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Pass on events."""
        self._listener.take(trial_id, list(result.get("events", ())))

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Pass on the last events, or that the proxy died."""
        if error or result is None:
            self._listener.lost(trial_id)
        else:
            self._listener.take(trial_id, list(result.get("events", ())))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the engine out of the copy that Tune writes for restoring, which nobody reads."""
        return {name: value for name, value in self.__dict__.items() if name != "_listener"}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the ledger rebuilds the search."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""


def run_tune(listener: Listener, *, slots: Mapping[str, float]) -> None:
    """Run Tune until the listener has no more trials.

    Args:
        listener: The engine.
        slots: Resources of one light trial; never a CPU, which its gang may be waiting for.
    """
    os.environ.update(SETTINGS)
    for name in ("ray.tune", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory(prefix="muse-tune-", ignore_cleanup_errors=True) as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        tune.Tuner(
            tune.with_resources(TrialProxy, dict(slots)),
            tune_config=tune.TuneConfig(
                search_alg=EngineSearcher(listener),
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=_short_name,
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=folder,
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()


def _short_name(trial: Any) -> str:
    """Name a trial's folder by its id alone, so that no parameter makes it too long."""
    return str(trial.trial_id)


def proxy_slots(cluster: Mapping[str, float]) -> dict[str, float]:
    """Return what a light trial holds: a slot where the cluster offers slots, else one byte of memory."""
    return {TRIAL_SLOT: 1.0} if cluster.get(TRIAL_SLOT) else {"memory": 1.0}

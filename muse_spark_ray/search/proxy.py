"""The light Tune trial that stands for a training on a gang."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from ray import tune

from muse_spark_ray.errors import ClusterError
from muse_spark_ray.runtime.lease import Event, Failed, Job, LeaseClient, is_final

# Reports of fast epochs are handed to Tune together, at most so often; Tune's loop shares the cores with the training.
GATHER_SECONDS = 0.25


class TrialProxy(tune.Trainable):
    """Leases a gang through the broker, hands it a job, and passes its events on as Tune results.

    It holds no CPU. Failures of the training travel as events and not as errors, so that Tune reuses this process.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start the lease of a first trial."""
        self._client = LeaseClient(config["broker"])
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start the lease of the next trial in the same process."""
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Return the events since the last step; `done` with the last of them."""
        events: list[dict[str, Any]] = []
        deadline: float | None = None
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            event = self._next(left)
            if event is None:
                return {"events": events, "done": False}
            events.append(plain(event))
            if is_final(event):
                self._is_over = True
                return {"events": events, "done": True}
            deadline = deadline or time.monotonic() + GATHER_SECONDS

    def cleanup(self) -> None:
        """Give the gang back if Tune ends the trial early."""
        if not self._is_over:
            self._client.cancel()

    def _begin(self, config: dict[str, Any]) -> None:
        self._is_over = False
        self._client.submit(Job(**config["job"]))

    def _next(self, timeout: float | None) -> Event | None:
        try:
            return self._client.next_event(timeout=timeout)
        except ClusterError as error:
            return Failed(str(error), "", "lost", False, time.time())


def plain(event: Event) -> dict[str, Any]:
    """Return an event as plain data: its `kind`, its fields, and of a Failed also which `failure` it is."""
    fields = asdict(event)
    return {"failure": fields.pop("kind", None), **fields, "kind": type(event).__name__}

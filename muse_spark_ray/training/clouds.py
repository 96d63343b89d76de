"""Clouds tell a machine itself that it will be taken away: one thread a node asks for that, and announces it.

Formats as their providers document them:

* AWS: EC2 User Guide, Spot Instance interruption notices; two minutes ahead, `instance-action` behind a session token.
* Google Cloud: Compute Engine, `instance/preempted` on the metadata server; 30 seconds ahead.
* Azure: Scheduled Events for Linux VMs, an event of type `Preempt`; at least 30 seconds ahead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from muse_spark_ray.training.notice import PreemptionNotices

logger = logging.getLogger(__name__)

Cloud = Literal["aws", "gcp", "azure"]
ADDRESS_VARIABLE = "MUSE_SPARK_METADATA_URL"
_ADDRESSES = {
    "aws": "http://169.254.169.254",
    "gcp": "http://metadata.google.internal",
    "azure": "http://169.254.169.254",
}
_ANSWER_SECONDS = 2.0
_GCP_SECONDS = 30.0
_TOKEN_SECONDS = 21_600


class Found(Exception):  # noqa: N818 - an answer, not an error
    """The machine will be taken away, in so many seconds if that is known."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def _get(url: str, *, method: str = "GET", **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with urlopen(Request(url, method=method, headers=named), timeout=_ANSWER_SECONDS) as answer:
        return str(answer.read(65_536).decode())


def _seconds_until(when: datetime) -> float:
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return (aware - datetime.now(UTC)).total_seconds()


def ask_aws(address: str) -> None:
    """Raise Found if a spot instance will be stopped, hibernated or terminated."""
    ttl = {"X_aws_ec2_metadata_token_ttl_seconds": str(_TOKEN_SECONDS)}
    token = _get(f"{address}/latest/api/token", method="PUT", **ttl)
    try:
        text = _get(f"{address}/latest/meta-data/spot/instance-action", X_aws_ec2_metadata_token=token)
    except HTTPError as error:
        if error.code == 404:  # the answer where nothing is planned
            return
        raise
    raise Found(_seconds_until(datetime.fromisoformat(json.loads(text)["time"])))


def ask_gcp(address: str) -> None:
    """Raise Found if the instance is being preempted."""
    if _get(f"{address}/computeMetadata/v1/instance/preempted", Metadata_Flavor="Google").strip() == "TRUE":
        raise Found(_GCP_SECONDS)


def ask_azure(address: str) -> None:
    """Raise Found if this virtual machine will be evicted."""
    events = json.loads(_get(f"{address}/metadata/scheduledevents?api-version=2020-07-01", Metadata="true"))["Events"]
    evictions = [event for event in events if event["EventType"] == "Preempt"]
    if not evictions:
        return
    name = _get(f"{address}/metadata/instance/compute/name?api-version=2021-02-01&format=text", Metadata="true")
    for event in evictions:
        if name.strip() in event["Resources"]:
            until = event.get("NotBefore")
            raise Found(_seconds_until(parsedate_to_datetime(until)) if until else None)


_QUESTIONS: dict[str, Callable[[str], None]] = {"aws": ask_aws, "gcp": ask_gcp, "azure": ask_azure}


@contextlib.contextmanager
def listening_to_cloud(notices: PreemptionNotices, cloud: Cloud | None, *, every: float = 2.0) -> Iterator[None]:
    """Ask a cloud's metadata server in a thread, on the first rank of each node, until it announces the end.

    A server that does not answer is asked again, and told of once.

    Args:
        notices: Where the end is announced.
        cloud: Whose machine this is; None asks nobody.
        every: Seconds between two questions.
    """
    if cloud is None or int(os.environ.get("LOCAL_RANK", "0")) != 0:
        yield
        return
    address = os.environ.get(ADDRESS_VARIABLE, _ADDRESSES[cloud]).rstrip("/")
    is_over = threading.Event()

    def ask_on() -> None:
        is_told = False
        while not is_over.wait(every):
            try:
                _QUESTIONS[cloud](address)
            except Found as found:
                notices.announce(f"{cloud} takes this machine away", seconds=found.seconds)
                return
            except (OSError, ValueError, KeyError, TypeError) as error:
                if not is_told:
                    logger.warning("the metadata server of %s does not tell of preemptions: %s", cloud, error)
                is_told = True

    thread = threading.Thread(target=ask_on, name="cloud-notices", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

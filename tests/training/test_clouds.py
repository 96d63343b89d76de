"""Notices of AWS, Google Cloud and Azure, from a local server that speaks their formats."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toys import blobs, small_net

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError, PreemptedError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.training.checkpoint import load_state
from muse_spark_ray.training.clouds import ADDRESS_VARIABLE, listening_to_cloud
from muse_spark_ray.training.notice import PreemptionNotices


class Metadata(http.server.ThreadingHTTPServer):
    """Answers as the three metadata servers do; `ends_in` seconds is when the machine goes, None: it stays."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ends_in: float | None = None
        self.is_broken = False
        self.machine = "mine"
        self.asked: list[str] = []

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        self.asked.append(path)
        until = None if self.ends_in is None else datetime.now(UTC) + timedelta(seconds=self.ends_in)
        if self.is_broken:
            return 503, "try later"
        if path == "/latest/api/token":
            return (200, "secret") if method == "PUT" and headers["X-aws-ec2-metadata-token-ttl-seconds"] else (405, "")
        if path == "/latest/meta-data/spot/instance-action":
            if headers["X-aws-ec2-metadata-token"] != "secret":
                return 401, ""
            text = None if until is None else until.strftime("%Y-%m-%dT%H:%M:%SZ")
            return (404, "") if text is None else (200, json.dumps({"action": "terminate", "time": text}))
        if path == "/computeMetadata/v1/instance/preempted":
            return (200, "FALSE" if until is None else "TRUE") if headers["Metadata-Flavor"] == "Google" else (403, "")
        if headers["Metadata"] != "true":
            return 400, ""
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, "mine"
        other = {"EventType": "Reboot", "Resources": ["mine"], "NotBefore": ""}
        mine = {"EventType": "Preempt", "Resources": [self.machine], "EventStatus": "Scheduled"}
        named = [] if until is None else [{**mine, "NotBefore": format_datetime(until, usegmt=True)}]
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": [other, *named]})


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        code, text = server.answer(self.command, self.path, self.headers)
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    server = Metadata()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(ADDRESS_VARIABLE, f"http://127.0.0.1:{server.server_port}")
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("cloud", "seconds"), [("aws", 120.0), ("gcp", 30.0), ("azure", 45.0)])
def test_a_notice_is_heard_with_its_deadline(
    metadata: Metadata, wait_until: Callable[..., None], cloud: Any, seconds: float
) -> None:
    notices = PreemptionNotices()
    with listening_to_cloud(notices, cloud, every=0.01):
        wait_until(lambda: len(metadata.asked) > 4, why="questions")
        assert notices.heard is None
        metadata.ends_in = seconds
        wait_until(lambda: notices.heard is not None, why="a notice")
        assert notices.heard is not None
        assert notices.heard.reason == f"{cloud} takes this machine away"
        assert notices.heard.deadline is not None
        assert notices.heard.deadline - time.monotonic() <= seconds
        assert notices.heard.deadline - time.monotonic() > 0 or seconds < 60


def test_the_eviction_of_another_machine_is_none_of_ours(metadata: Metadata, wait_until: Callable[..., None]) -> None:
    metadata.machine, metadata.ends_in = "another", 30.0
    notices = PreemptionNotices()
    with listening_to_cloud(notices, "azure", every=0.01):
        wait_until(lambda: sum("compute/name" in path for path in metadata.asked) > 2, why="questions")
        assert notices.heard is None


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_server_that_fails_is_asked_again_and_told_of_once(
    metadata: Metadata, wait_until: Callable[..., None], caplog: pytest.LogCaptureFixture, cloud: Any
) -> None:
    metadata.is_broken = True
    notices = PreemptionNotices()
    with listening_to_cloud(notices, cloud, every=0.01):
        wait_until(lambda: len(metadata.asked) > 4, why="questions")
        metadata.is_broken, metadata.ends_in = False, 60.0
        wait_until(lambda: notices.heard is not None, why="a notice")
    assert caplog.text.count("does not tell of preemptions") == 1


def test_a_training_saves_and_ends_before_its_machine_does(metadata: Metadata, tmp_path: Path) -> None:
    metadata.ends_in = 100.0
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    config = {"batch_size": 5, "checkpoint": {"save_dir": str(tmp_path), "save_freq": "last", "cloud": "aws"}}
    trainer = MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), blobs(), None, config)
    with pytest.raises(PreemptedError, match="aws takes this machine away"):
        trainer.fit(1_000_000)
    updates = trainer.get_training_report()["updates"]
    assert load_state(tmp_path / "last")["counters"]["updates"] == updates > 0
    assert not [thread for thread in threading.enumerate() if thread.name == "cloud-notices"]


def test_a_cloud_that_is_none_of_the_three_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.cloud"):
        train_config({"checkpoint": {"cloud": "oracle"}})

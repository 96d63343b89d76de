"""What `open_ray` refuses and leaves behind; real embedded sessions are in the tests of leases."""

from __future__ import annotations

import os
import socket

import pytest

from muse_spark_ray.errors import ClusterError
from muse_spark_ray.runtime.session import SETTINGS, RaySession, open_ray


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_an_address_where_nobody_listens_is_named_with_exit_code_5() -> None:
    address = f"127.0.0.1:{unused_port()}"
    with pytest.raises(ClusterError, match=address) as caught:
        open_ray(address)
    assert caught.value.exit_code == 5
    assert caught.value.hint


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", "host:port"])
def test_a_malformed_address_says_what_is_allowed(address: str) -> None:
    with pytest.raises(ClusterError, match="'auto' or 'host:port'"):
        open_ray(address)


def test_the_environments_address_is_used_for_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused_port()}")
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1"):
        open_ray("auto")


def test_a_refused_session_leaves_the_environment_as_it_was() -> None:
    before = dict(os.environ)
    with pytest.raises(ClusterError):
        open_ray("nonsense")
    assert dict(os.environ) == before


@pytest.mark.ray
def test_a_second_session_is_refused_and_settings_are_taken_back(ray_session: RaySession) -> None:
    assert ray_session.is_embedded
    assert set(SETTINGS) <= set(os.environ)
    with pytest.raises(ClusterError, match="connected to Ray already"):
        open_ray()
    ray_session.close()
    assert not {name for name in SETTINGS if name.startswith("RAY_TRAIN_")} & set(os.environ)

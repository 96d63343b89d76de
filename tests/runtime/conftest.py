"""One embedded Ray per module, with its own folder and ports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muse_spark_ray.runtime.session import RaySession, open_ray


@pytest.fixture(scope="module")
def ray_session() -> Iterator[RaySession]:
    with open_ray("local", num_cpus=2) as session:
        yield session

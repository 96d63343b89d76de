from __future__ import annotations

import pytest

from muse_spark_ray.cost import gpu_fraction, visible_devices

UUIDS = ["GPU-aaaa-0", "GPU-aabb-1", "GPU-bbbb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("variable", "physical"),
    [
        ("2,3", [2, 3]),
        ("3,2", [3, 2]),
        ("GPU-cccc-3", [3]),
        ("", []),
        (None, [0, 1, 2, 3]),
        ("1", [1]),
        ("GPU-b", [2]),
        ("GPU-aabb,GPU-aaaa", [1, 0]),
        ("GPU-aa", []),
        ("0, 2", [0, 2]),
        ("1,-1,2", [1]),
        ("1,9,2", [1]),
        ("no", []),
        ("NoDevFiles", []),
        ("1,1", []),
        ("MIG-GPU-bbbb-2/3/0", [2]),
        ("MIG-x,MIG-y", [3, 3]),
        ("MIG-unknown", []),
    ],
)
def test_visible_devices_are_the_physical_ones_in_order(variable, physical):
    """C5, COST-3."""
    assert visible_devices(variable, UUIDS, parents={"MIG-x": 3, "MIG-y": 3}) == physical


def test_slices_are_parts_of_a_gpu():
    """COST-4."""
    assert 2 * gpu_fraction(3) == pytest.approx(0.857143, abs=1e-6)
    assert gpu_fraction(1, total=4) == 0.25

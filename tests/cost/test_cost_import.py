from __future__ import annotations

import subprocess
import sys

from muse_spark_ray import cost


def test_import_is_light():
    code = "import sys, muse_spark_ray.cost; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "ray", "optuna", "pandas", "pynvml", "yaml"} & set(loaded)


def test_public_names_exist():
    assert sorted(cost.__all__) == cost.__all__
    assert all(hasattr(cost, name) for name in cost.__all__)

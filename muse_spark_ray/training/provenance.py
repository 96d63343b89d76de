"""Where a checkpoint comes from: code, packages, machine."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

_PACKAGES = ("muse-spark-ray", "torch", "numpy", "ray", "optuna")
_GIT_SECONDS = 5.0


@cache
def code_version() -> dict[str, Any]:
    """Return the git commit of the current folder and whether files differ from it; None for both outside git."""
    commit = _git("rev-parse", "HEAD")
    changes = None if commit is None else _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


@cache
def environment() -> dict[str, Any]:
    """Return the versions and devices that a result may depend on."""
    has_gpu = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in _PACKAGES if (found := _installed(name)) is not None},
        "cuda": torch.version.cuda if has_gpu else None,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if has_gpu else [],
        "threads": torch.get_num_threads(),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

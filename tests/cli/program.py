"""The command line in a process of its own, on small sweeps with a store of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 240

SPEC = """\
name: {name}
task: {{data: {{name: digits, max_samples: 300}}}}
train: {{epochs: 3}}
search:
  optimizer.lr: {{low: 0.01, high: 0.3, log: true}}
  task.model.width: {{low: 8, high: 64, log: true}}
budget: {{trials: 4}}
"""


@dataclass
class Program:
    """Runs `muse-spark` against one store."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "MUSE_SPARK_STORE": str(self.store), "NO_COLOR": "1", "COLUMNS": "160"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "muse_spark_ray", *arguments]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program that the test will kill or wait for; its output goes to a file."""
        with (self.folder / "log.txt").open("w") as log:
            return subprocess.Popen(
                self.command(*arguments), env=self.environment(), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--format", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout, parse_constant=_refuse)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no strict JSON")

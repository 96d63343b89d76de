"""What the README shows is true: its lines, examples, tables and verbs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from muse_spark_ray.cli.cards import card_rows, markdown_table
from muse_spark_ray.spec.load import load_spec

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_two_lines_do_all_set_up() -> None:
    part = README.split("<!-- set-up -->")[1].split("<!-- end of set-up -->")[0]
    lines = [line for line in part.splitlines() if line.startswith("python3 -m venv")]
    assert len(lines) == 2
    assert lines[0].endswith("muse-spark sweep experiments/digits.yaml")
    assert lines[1].endswith("pytest")


def test_the_script_runs_as_it_stands(tmp_path: Path) -> None:
    script = next(block for block in _blocks("python") if "MuseSparkTrainer(" in block)
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "checkpoints" / "report.json").is_file()


def test_the_spec_is_valid(tmp_path: Path) -> None:
    text = next(block for block in _blocks("yaml") if "my-sweep" in block)
    (tmp_path / "spec.yaml").write_text(text)
    assert load_spec(tmp_path / "spec.yaml").name == "my-sweep"


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.name)
def test_the_experiments_are_valid(path: Path) -> None:
    assert load_spec(path).search


def test_the_table_of_strategies_is_the_declarations() -> None:
    assert markdown_table(card_rows()) in README


def test_every_verb_is_documented() -> None:
    from typer.main import get_command

    from muse_spark_ray.cli.main import app

    verbs = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert {verb for verb in verbs if f"`{verb}" not in README and f"muse-spark {verb}" not in README} == set()


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target

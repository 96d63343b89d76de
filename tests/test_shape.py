"""The few numbers that keep the package readable, and the promise that a strategy is one file.

A number is raised only with the reason in the commit.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest
from public import public_modules

import muse_spark_ray
from muse_spark_ray.strategy import HOOKS, Strategy

ROOT = Path(muse_spark_ray.__file__).parent
STEP_LINES, FUNCTION_LINES, HOOK_COUNT, CONSTRUCTOR_PARAMETERS = 60, 80, 10, 8
STATE = {"state_dict", "load_state_dict", "rebuild_model", "report", "ended"}


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_the_step_fits_on_a_screen() -> None:
    lines = dict(_functions(ROOT / "training" / "loop.py"))
    assert lines["accumulate_gradients"] + lines["apply_update"] <= STEP_LINES


def test_no_function_is_long() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in ROOT.rglob("*.py")
        for name, lines in _functions(path)
        if lines > FUNCTION_LINES
    }
    assert not long


def test_a_strategy_has_few_hooks_and_all_are_listed() -> None:
    public = {name for name, value in vars(Strategy).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert public - STATE == set(HOOKS)
    assert len(HOOKS) <= HOOK_COUNT


def test_public_constructors_take_few_parameters() -> None:
    wide = {}
    for module in public_modules():
        for name in module.__all__:
            member = getattr(module, name)
            # A config's fields are its keys; a built-in base has no signature to read.
            if inspect.isclass(member) and not issubclass(member, pydantic.BaseModel | BaseException):
                parameters = inspect.signature(member).parameters
                if len(parameters) > CONSTRUCTOR_PARAMETERS:
                    wide[f"{module.__name__}.{name}"] = list(parameters)
    assert not wide


STRATEGY = '''
"""A strategy of a user."""

from muse_spark_ray.strategy import Card, Stage, Strategy, StrategyConfig, knob


class Softly(Strategy):
    """Count updates and weaken each loss."""

    stage = Stage.LOSS
    card = Card(saves="nothing", costs="nothing", pays="never", hurts="never", source="none, 2026")

    class Config(StrategyConfig):
        strength: float = knob(0.5, gt=0, le=1, search=(0.1, 1.0, "log"), doc="factor of each loss")

    def __init__(self, config, context):
        super().__init__(config, context)
        self.updates = 0

    def loss(self, losses, outputs, batch, step):
        return losses * self.config.strength

    def after_update(self, model, step):
        self.updates += 1

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]
'''

SPEC = """
name: softly
search:
  strategies.softly: [false, true]
  strategies.softly.strength: {low: 0.1, high: 1.0, if: {strategies.softly: true}}
budget: {trials: 2}
"""

USE = """
import json, sys
import optuna, torch
from toys import blobs, small_net
from muse_spark_ray import MuseSparkTrainer, load_spec
from muse_spark_ray.search.space import draw
from muse_spark_ray.spec.schema import sweep_schema
from muse_spark_ray.strategy import declared_distributions, strategies

def first_loss(block):
    net = small_net()
    trainer = MuseSparkTrainer(net, torch.optim.SGD(net.parameters(), lr=0.0), None, blobs(), None, {"strategies": block})
    report = trainer.fit(1)
    return report["strategies"], report["history"][0]["train_loss"]

spec = load_spec(sys.argv[1])
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
drawn = [draw(study.ask(), spec.search) for _ in range(8)]
print(json.dumps({
    "bare": first_loss({}),
    "trained": first_loss({"softly": {"strength": 0.25}}),
    "drawn": drawn,
    "configs": [spec.trial_config(values).strategies.softly is not None for values in drawn],
    "schema": "softly" in sweep_schema()["$defs"]["StrategiesConfig"]["properties"],
    "ranges": declared_distributions(strategies()["softly"].Config),
}))
"""


def _run(arguments: list[str], folder: Path) -> str:
    paths = [str(ROOT.parent), str(Path(__file__).parent / "training")]
    environment = os.environ | {"MUSE_SPARK_STRATEGIES": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user with one strategy in it, beside it a sweep spec."""
    folder = tmp_path / "strategies"
    folder.mkdir()
    (folder / "softly.py").write_text(STRATEGY)
    (tmp_path / "sweep.yaml").write_text(SPEC)
    (tmp_path / "use.py").write_text(USE)
    return folder


def test_one_file_is_all_that_a_strategy_needs(folder: Path, tmp_path: Path) -> None:
    found = json.loads(_run([str(tmp_path / "use.py"), str(tmp_path / "sweep.yaml")], folder))
    (_, bare), (names, weakened) = found["bare"], found["trained"]
    assert names == ["softly"]
    assert weakened == pytest.approx(0.25 * bare, rel=1e-5)
    assert {values["strategies.softly"] for values in found["drawn"]} == {True, False}
    assert found["configs"] == [values["strategies.softly"] for values in found["drawn"]]
    assert all(("strategies.softly.strength" in v) == v["strategies.softly"] for v in found["drawn"])
    assert found["schema"]
    assert found["ranges"]["strength"]["attributes"] == {"low": 0.1, "high": 1.0, "log": True, "step": None}


def test_the_table_of_strategies_lists_it(folder: Path) -> None:
    rows = json.loads(_run(["-m", "muse_spark_ray", "strategies", "--format", "json"], folder))
    own = next(row for row in rows if row["strategy"] == "softly")
    assert own["settings (defaults)"] == "strength=0.5"
    assert own["source"] == "none, 2026"


def test_it_keeps_the_contract_by_inheriting_the_suite(folder: Path, tmp_path: Path) -> None:
    """A third party's own test file: one class with the name of the strategy."""
    suite = "from muse_spark_ray.testing.strategy_contract import StrategyContract\n\n\nclass TestSoftly(StrategyContract):\n"
    (tmp_path / "test_softly.py").write_text(suite + '    names = ("softly",)\n')
    chosen = ["-k", "not two_ranks", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    text = _run(["-m", "pytest", "-q", *chosen, str(tmp_path / "test_softly.py")], folder)
    assert "passed" in text
    assert "failed" not in text

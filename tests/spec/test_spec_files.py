"""Sweep and training files: what is refused and in which words, what `--set` and the environment do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray import load_spec
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import apply_overrides, load_train, train_config
from muse_spark_ray.spec.paths import value_at

GOOD = """\
name: good
task: {data: {name: digits}}
train:
  epochs: 3
  optimizer: {name: sgd}
search:
  optimizer.lr: {low: 1e-4, high: 0.1, log: true}
budget: {trials: 4}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSE_SPARK_STORE", raising=False)
    return tmp_path


def spec_of(text: str, *overrides: str) -> Any:
    Path("spec.yaml").write_text(text)
    return load_spec("spec.yaml", overrides=overrides)


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        spec_of(text, *overrides)
    return caught.value.message


def test_defaults_are_accuracy_and_money(folder: Path) -> None:
    spec = spec_of(GOOD)
    assert spec.objectives == {"accuracy": "max", "cost_usd": "min"}
    assert spec.search["optimizer.lr"].low == 1e-4
    assert (spec.sampler, spec.seed, spec.resources.workers, spec.store) == ("tpe", 0, 1, None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("train:", "trian:", "spec.yaml:3 unknown key trian. Did you mean train? Allowed here: name, task,"),
        ("name: sgd", "nmae: sgd", "spec.yaml:5 unknown key train.optimizer.nmae. Did you mean name?"),
        ("name: sgd", "name: adamm", "spec.yaml:5 train.optimizer.name is 'adamm': input should be 'sgd', 'adam'"),
        ("epochs: 3", "epochs: three", "spec.yaml:4 train.epochs is 'three'"),
        ("epochs: 3", "epochs: '3'", "spec.yaml:4 train.epochs is '3'"),
        ("epochs: 3", "epochs: 0", "spec.yaml:4 train.epochs is 0: input should be greater than or equal to 1"),
        ("epochs: 3", "epochs: 1.5", "spec.yaml:4 train.epochs is 1.5"),
        ("epochs: 3", "epochs: true", "spec.yaml:4 train.epochs is True"),
        ("{name: sgd}", "{lr: 010}", "spec.yaml:5 train.optimizer.lr is '010'"),
        ("{name: sgd}", "{lr: on}", "spec.yaml:5 train.optimizer.lr is 'on'"),
        ("{name: sgd}", "{lr: .nan}", "spec.yaml:5 train.optimizer.lr is nan"),
        ("{name: sgd}", "{weight_decay: .inf}", "spec.yaml:5 train.optimizer.weight_decay is inf"),
        ("{name: sgd}", "{name: sgd, momentum: 0.0, nesterov: true}", "spec.yaml:5 train.optimizer: nesterov: true"),
        ("{data: {name: digits}}", "{data: {name: digit}}", "spec.yaml:2 task.data.name is 'digit'"),
        ("{data: {name: digits}}", "[digits]", "spec.yaml:2 task is ['digits']"),
        ("optimizer.lr:", "optimizer.lrr:", "spec.yaml:7 search: unknown key optimizer.lrr. Did you mean lr?"),
        ("high: 0.1", "high: 1e-5", "low must not be above high (0.0001 > 1e-05); swap them"),
        ("high: 0.1", "high: 1000", "spec.yaml:7 search: optimizer.lr is 1000"),
        ("low: 1e-4", "low: -1", "log: true needs low above 0, not -1"),
        ("low: 1e-4", "low: .nan", "spec.yaml:7 search.optimizer.lr.low"),
        ("high: 0.1", "step: 0.1", "give low and high"),
        ("log: true", "log: true, step: 0.1", "log and step do not go together"),
        ("log: true", "choices: [0.1]", "give choices, or low and high, not both"),
        ("{low: 1e-4, high: 0.1, log: true}", "[]", "choices is empty"),
        ("{low: 1e-4, high: 0.1, log: true}", "[0.1, text]", "spec.yaml:7 search: optimizer.lr is 'text'"),
        ("log: true}", "log: true, if: {task.model.nmae: mlp}}", "which is not searched"),
        ("{trials: 4}", "{}", "no limit is set"),
        ("{trials: 4}", "{trials: 0}", "spec.yaml:8 budget.trials is 0"),
        ("{trials: 4}", "{wall_seconds: 0}", "spec.yaml:8 budget.wall_seconds is 0"),
        ("{trials: 4}", "{gpu_hours: -1}", "spec.yaml:8 budget.gpu_hours is -1"),
        ("{trials: 4}", "{trials: 4}\nobjectives: {}", "no objective is given"),
        ("{trials: 4}", "{trials: 4}\nobjectives: {acuracy: max}", "Did you mean accuracy?"),
        ("{trials: 4}", "{trials: 4}\nobjectives: {accuracy: up}", "spec.yaml:9 objectives.accuracy is 'up'"),
        ("{trials: 4}", "{trials: 4}\nreference: {accuracy: 0}", "they must agree"),
        ("{trials: 4}", "{trials: 4}\nsampler: best", "spec.yaml:9 sampler is 'best'"),
        (
            "{trials: 4}",
            "{trials: 4}\nsampler: grid",
            "sampler: grid needs a step or a list for each parameter; optimizer.lr",
        ),
        ("{trials: 4}", "{trials: 4}\nresources: {concurrency: 0}", "spec.yaml:9 resources.concurrency is 0"),
        ("name: good", "name: a/b", "spec.yaml:1 name is 'a/b'"),
        ("name: good\n", "", "name is missing"),
        ("budget: {trials: 4}\n", "", "budget is missing"),
        ("  epochs: 3", "  task: {}", "spec.yaml:4 train.task: a sweep's task stands at the top level"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(folder: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    assert message in refusal(GOOD.replace(old, new, 1))


def test_all_problems_are_said_at_once(folder: Path) -> None:
    message = refusal(GOOD.replace("{trials: 4}", "{trials: 0}").replace("task:", "tusk:"))
    assert len(message.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds NoneType, not keys and values"),
        (b"- a\n- b\n", "holds list, not keys and values"),
        (b"text", "holds str, not keys and values"),
        (b"name: \xff\xfe", "cannot be read"),
        (b"search: &s {a: *s}", "nested more than"),
    ],
)
def test_a_file_that_holds_no_keys(folder: Path, content: bytes, words: str) -> None:
    Path("odd.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_spec("odd.yaml")


@pytest.mark.parametrize("path", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(folder: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="config file"):
        load_spec(path)


# ---------------------------------------------------------------- --set and the environment


def test_overrides_win_over_the_file_and_later_ones_over_earlier(folder: Path) -> None:
    spec = spec_of(
        GOOD, "train.epochs=5", "train.epochs=6", "search.batch_size=[8, 16]", "search.optimizer.lr.high=0.2"
    )
    assert spec.train["epochs"] == 6
    assert spec.search["batch_size"].choices == [8, 16]
    assert spec.search["optimizer.lr"].high == 0.2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", "--set 'train.epochs' is not of the form a.b=c"),
        ("=3", "is not of the form a.b=c"),
        ("train..epochs=3", "is not of the form a.b=c"),
        ("train.epochs=[1", "--set train.epochs=[1:1 is not valid YAML"),
        ("train.epochs=x", "--set train.epochs train.epochs is 'x'"),
        ("train.optimizer.name.first=x", "--set train.optimizer.name.first train.optimizer.name: input should be"),
        ("search.optimizer.lr.hihg=1", "--set search.optimizer.lr.hihg"),
        ("serach.optimizer.lr=[1]", "Did you mean search?"),
    ],
)
def test_a_wrong_override_names_itself(folder: Path, override: str, message: str) -> None:
    assert message in refusal(GOOD, override)


def test_the_environment_names_the_store_unless_the_file_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSE_SPARK_STORE", "s3://bucket/sweeps")
    assert spec_of(GOOD).store == "s3://bucket/sweeps"
    assert spec_of(GOOD + "store: here\n").store == "here"


KEYS = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(".".join)


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, st.integers())), PATHS, st.integers())
def test_an_override_is_found_where_it_was_put_and_changes_nothing_else(
    data: dict[str, Any], path: str, value: int
) -> None:
    before = repr(data)
    changed = apply_overrides(data, [f"{path}={value}"])
    assert value_at(changed, path) == value
    assert repr(data) == before
    assert {key: changed[key] for key in changed if key != path[0]} == {k: data[k] for k in data if k != path[0]}


# ---------------------------------------------------------------- training files and the mission's keys

MISSION: dict[str, Any] = {
    "use_amp": True,
    "gradient_accumulation_steps": 4,
    "adaptive_sampling": {"strategy": "medium_loss", "update_freq": 100},
    "dynamic_lr_scheduler": {"type": "cosine_with_warmup_restarts", "warmup_steps": 100, "cycle_length": 500},
    "checkpoint": {"save_dir": "saved", "save_freq": "epoch", "keep_last": 3},
}


def test_the_missions_keys_mean_what_its_guides_say() -> None:
    config = train_config(MISSION)
    assert config.precision.amp == "on"
    assert config.gradient_accumulation_steps == 4
    sampling = config.strategies.switched_on()["adaptive_sampling"]
    assert (sampling.strategy, sampling.update_freq) == ("medium_loss", 100)
    schedule = config.schedule
    assert (schedule.type, schedule.warmup_steps, schedule.cycle_length) == ("cosine_with_warmup_restarts", 100, 500)
    saved = config.checkpoint
    assert (saved.save_dir, saved.save_freq, saved.keep_last) == ("saved", "epoch", 3)


@pytest.mark.parametrize(
    ("values", "path", "value"),
    [
        ({"use_amp": False}, "precision.amp", "off"),
        ({"label_smoothing": 0.2}, "strategies.label_smoothing.epsilon", 0.2),
        ({"label_smoothing": True}, "strategies.label_smoothing.epsilon", 0.1),
        ({"gradient_clipping": 1.0}, "clip_norm", 1.0),
        ({"strategies": {"ema": False}}, "strategies.ema", None),
    ],
)
def test_each_key_has_one_internal_place(values: dict[str, Any], path: str, value: Any) -> None:
    assert value_at(train_config(values).model_dump(), path) == value


def test_a_key_of_the_mission_and_its_internal_place_are_not_given_together() -> None:
    with pytest.raises(ConfigError, match=r"use_amp and precision\.amp say the same thing"):
        train_config({"use_amp": True, "precision": {"amp": "off"}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"adaptive_sampling": {"strategy": "hard_loss"}}, "'hard_loss'"),
        ({"adaptive_sampling": {"update_frequency": 3}}, "Did you mean update_freq"),
        ({"dynamic_lr_scheduler": {"type": "cosine_with_warmup_restarts"}}, "needs cycle_length"),
        ({"checkpoint": {"keep_last": 0}}, "keep_last: 0 would keep nothing"),
        ({"checkpoint": {"save_freq": 0}}, "must be above 0"),
        ({"use_apm": True}, "Did you mean use_amp?"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({1: 2}, "1"),
    ],
)
def test_wrong_training_keys_are_explained(values: dict[Any, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train_config(values)
    assert words in caught.value.message


def test_a_training_file_is_read_like_a_sweep_file(folder: Path) -> None:
    Path("train.yaml").write_text("epochs: 2\noptimizer: {lr: 1e-2}\n")
    assert load_train("train.yaml", overrides=["optimizer.lr=1e-3"]).optimizer.lr == 1e-3
    Path("train.yaml").write_text("epochs: 2\noptimiser: {lr: 1e-2}\n")
    with pytest.raises(ConfigError, match=r"train\.yaml:2 unknown key optimiser\. Did you mean optimizer\?"):
        load_train("train.yaml")


@pytest.mark.parametrize("name", ["mild", "medium", "hot"])
def test_a_recipe_is_a_config_that_file_and_flags_go_over(folder: Path, name: str) -> None:
    alone = load_train(None, start=name)
    assert alone.schedule.type == "onecycle"
    Path("train.yaml").write_text("epochs: 9\noptimizer: {lr: 0.5}\n")
    both = load_train("train.yaml", start=name, overrides=["optimizer.lr=0.25"])
    assert (both.epochs, both.optimizer.name, both.optimizer.lr) == (9, "adamw", 0.25)
    assert both.strategies == alone.strategies


def test_an_unknown_recipe_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="recipe is 'spicy'; there are mild, medium, hot"):
        load_train(None, start="spicy")


def test_where_checkpoints_go_is_no_part_of_a_configs_identity() -> None:
    plain = train_config({})
    assert plain.identity() == train_config({"checkpoint": {"save_dir": "x"}}).identity()
    assert plain.identity() != train_config({"seed": 1}).identity()
    assert plain.identity() != train_config({"strategies": {"ema": True}}).identity()

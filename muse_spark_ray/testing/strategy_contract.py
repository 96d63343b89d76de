"""The tests that every strategy passes; third parties inherit them.

A distribution that offers a strategy writes

    from muse_spark_ray.testing.strategy_contract import StrategyContract

    class TestOurs(StrategyContract):
        names = ("our_strategy",)
        settings = {"our_strategy": {"every": 2}}      # knobs whose defaults would not act on 60 samples

and pytest runs the suite. For the full text of a failed assertion, call
`pytest.register_assert_rewrite("muse_spark_ray.testing.strategy_contract")` before the import.

What a strategy computes is for its own tests; here stands what the loop, the search and the docs rely on.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import optuna
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from muse_spark_ray.data.known import known_lengths
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.spec.train import train_config_class
from muse_spark_ray.strategy import (
    Batch,
    Card,
    Context,
    Stage,
    Step,
    Strategy,
    Tools,
    Trait,
    declared_distributions,
    strategies,
)
from muse_spark_ray.testing.ranks import on_ranks
from muse_spark_ray.testing.states import assert_same, foreign_parts, repeatable
from muse_spark_ray.testing.toys import CLASSES, IMAGE, SAMPLES, blobs, toy_net, toy_trainer
from muse_spark_ray.training.checkpoint import load_state

EPOCHS, BORDER = 4, 2
DRAWS = 50
_PACKAGE = "muse_spark_ray.strategies."


def _unweighted(size: int) -> None:
    """Return no weights: each sample weighs 1."""


class StrategyContract:
    """What holds for every strategy, tested by name.

    Args:
        names: Strategies to test; empty tests those of this package.
        settings: Strategy name to the knobs to test it with; its defaults otherwise.
    """

    names: ClassVar[Sequence[str]] = ()
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test once for each strategy."""
        if "name" in metafunc.fixturenames:
            metafunc.parametrize("name", list(self.names) or packaged_strategies())

    def block(self, name: str) -> dict[str, Any]:
        """Return the `strategies` block of a config that switches a strategy on."""
        return {name: dict(self.settings.get(name, {}))}

    def test_off_changes_no_bit(self, name: str, tmp_path: Path) -> None:
        """Absent, false and never mentioned train alike, also after a run in the same process that had it on."""
        never = _final_state(tmp_path / "never", None)
        _final_state(tmp_path / "on", self.block(name))
        for label, block in _blocks_that_switch_off(name).items():
            assert_same(never, _final_state(tmp_path / label, block))

    def test_saving_disturbs_nothing(self, name: str, tmp_path: Path) -> None:
        """A run that saves after each epoch has the weights of one that never saves."""
        silent = _visible_result(strategies=self.block(name))
        assert_same(silent, _visible_result(strategies=self.block(name), folder=tmp_path))

    @pytest.mark.parametrize("accumulation", [1, 3])
    def test_resumes_bit_for_bit(self, name: str, tmp_path: Path, accumulation: int) -> None:
        """A run stopped at an epoch border and continued ends in the state of one that was not stopped."""
        config: dict[str, Any] = {
            "gradient_accumulation_steps": accumulation,
            "schedule": {"type": "cosine"},
            "clip_norm": 1.0,
        }
        whole = _final_state(tmp_path / "whole", self.block(name), **config)
        parts = _final_state_in_two(tmp_path / "parts", self.block(name), **config)
        assert_same(whole, parts)

    @pytest.mark.parametrize("accumulation", [1, 3])
    def test_resumes_bit_for_bit_in_mid_epoch(self, name: str, tmp_path: Path, accumulation: int) -> None:
        """Every state saved within an epoch, too, goes on to the state of the run that wrote it."""
        config: dict[str, Any] = {
            "gradient_accumulation_steps": accumulation,
            "schedule": {"type": "cosine"},
            "clip_norm": 1.0,
        }
        keep = {"every_steps": 5 if accumulation == 1 else 2, "keep_last": -1}
        toy_trainer(folder=tmp_path, strategies=self.block(name), checkpoint=keep, **config).fit(EPOCHS)
        whole = _newest(tmp_path)
        within = sorted(tmp_path.glob("epoch_*_step_*"))
        assert len(within) >= EPOCHS - 1
        for folder in within[1 :: max(1, len(within) // 3)]:
            alone = tmp_path / "alone" / folder.name
            alone.mkdir(parents=True)
            shutil.copytree(folder, alone / folder.name)
            assert_same(whole, _final_state(alone, self.block(name), seed=99, **config))

    @pytest.mark.parametrize("precision", ["off", "bf16"])
    def test_learns(self, name: str, precision: str) -> None:
        """Separable classes are told apart, in fp32 and in bf16."""
        _assert_learns(toy_trainer(strategies=self.block(name), precision={"amp": precision}))

    def test_learns_with_loss_scaling_or_refuses_it(self, name: str) -> None:
        """With fp16 a strategy works, or its declared traits refuse the run before it starts."""
        config = {"amp": "fp16", "init_scale": 1024.0}
        if Trait.LOSS_SCALING in strategies()[name].refuses:
            with pytest.raises(ConfigError, match=name):
                toy_trainer(strategies=self.block(name), precision=config)
        else:
            _assert_learns(toy_trainer(strategies=self.block(name), precision=config))

    def test_learns_over_ragged_windows(self, name: str) -> None:
        """60 samples in micro-batches of 8, three to a window: the last window and its last batch are smaller."""
        _assert_learns(toy_trainer(strategies=self.block(name), gradient_accumulation_steps=3))

    @pytest.mark.parametrize("size", [1, 5, 8])
    @pytest.mark.parametrize("weighing", [_unweighted, torch.zeros, torch.ones, torch.rand])
    def test_a_batch_keeps_its_weight(self, name: str, size: int, weighing: Callable[[int], Tensor | None]) -> None:
        """`transform_batch` may drop or mix samples, but the sum of their weights stays."""
        torch.manual_seed(0)
        batch = _batch(size, weighing(size))
        before = batch.weight
        after = self.build(name).transform_batch(batch, Step(epoch=1, update=3))
        assert after.weight == pytest.approx(before, rel=1e-5, abs=1e-6)
        assert 0 < after.size <= size

    @pytest.mark.parametrize("size", [1, 8])
    def test_losses_stay_one_a_sample(self, name: str, size: int) -> None:
        """`loss` returns [B] float32, connected to the outputs it was given."""
        outputs = torch.randn(size, CLASSES, requires_grad=True)
        batch = _batch(size, None)
        losses = torch.nn.functional.cross_entropy(outputs, batch.targets, reduction="none")
        changed = self.build(name).loss(losses, outputs, batch, Step(epoch=1, update=3))
        assert changed.shape == (size,)
        assert changed.dtype == torch.float32
        assert changed.requires_grad

    @pytest.mark.parametrize("epoch", range(7))
    def test_an_order_holds_each_sample_at_most_once(self, name: str, epoch: int) -> None:
        """`order_samples` takes from what is left of the epoch, repeats nothing and answers the same again."""
        strategy = self.build(name)
        _show_losses(strategy, epoch)
        left = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))[:40]
        order = strategy.order_samples(left, Step(epoch=epoch, update=3 * epoch))
        assert len(order) > 0
        assert len(set(order.tolist())) == len(order) or Trait.REPEATED_SAMPLES in strategy.makes
        assert set(order.tolist()) <= set(left.tolist())
        assert torch.equal(order, strategy.order_samples(left, Step(epoch=epoch, update=3 * epoch)))

    def test_two_ranks_stay_equal_and_resume(self, name: str, tmp_path: Path) -> None:
        """Two ranks keep the same bits throughout, and go on from a border or from mid-epoch as if never stopped."""
        results, others = on_ranks(_rank_results, 2, str(tmp_path), self.block(name))
        for result, other in zip(results, others, strict=True):
            assert_same(result, other)
            assert_same(results[0], result)

    def test_every_drawn_config_is_valid(self, name: str) -> None:
        """The declared search space holds nothing that the config refuses."""
        texts = declared_distributions(strategies()[name].Config)
        space = {knob: _distribution(text) for knob, text in texts.items()}
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(DRAWS):
            drawn = study.ask(space).params
            config = train_config({"strategies": {name: {**self.block(name)[name], **drawn}}})
            assert set(drawn) <= set(config.strategies.switched_on()[name].model_dump())

    def test_config_survives_json(self, name: str) -> None:
        """A training config with the strategy is the same, and has the same identity, after JSON."""
        config = train_config({"strategies": self.block(name)})
        again = train_config_class().model_validate_json(config.model_dump_json())
        assert again == config
        assert again.identity() == config.identity()

    def test_state_is_plain(self, name: str) -> None:
        """The state holds tensors and plain containers only, so that it loads without running code."""
        strategy = self.build(name)
        _show_losses(strategy, 0)
        state = strategy.state_dict()
        assert not foreign_parts(state)
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        twin = self.build(name)
        twin.load_state_dict(loaded)
        assert_same(dict(twin.state_dict()), dict(state))

    def test_declaration_is_complete(self, name: str) -> None:
        """The docs table, the order and the search need a summary, a stage, a full card and a sentence a knob."""
        member = strategies()[name]
        assert (member.__dict__.get("__doc__") or "").strip()
        assert isinstance(member.stage, Stage)
        assert not [field.name for field in fields(Card) if not getattr(member.card, field.name).strip()]
        assert re.search(r"\b(19|20)\d\d\b|://", member.card.source), f"no year and no address: {member.card.source}"
        assert not [knob for knob, info in member.Config.model_fields.items() if not (info.description or "").strip()]

    def test_overhead_is_measured(self, name: str, record_property: Callable[[str, object], None]) -> None:
        """The time of an update, relative to the same without the strategy, is printed and recorded."""
        ratio = overhead_ratio(self.block(name))
        record_property("overhead_ratio", ratio)
        print(f"{name}: {ratio:.2f} x the time of an update without it (toy network)")

    def build(self, name: str) -> Strategy:
        """Return the strategy as a run would build it for the toy problem, its model prepared."""
        config = train_config({"strategies": self.block(name)}).strategies.switched_on()[name]
        data = blobs()
        tools = Tools(example=data.tensors[0][:1], lengths=known_lengths(data), batch_size=8)
        context = Context(SAMPLES, CLASSES, targets=data.tensors[1], tools=tools)
        strategy = strategies()[name](config, context)
        model = strategy.prepare_model(toy_net())
        strategy.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        return strategy


def packaged_strategies() -> list[str]:
    """Return the names of the strategies that this package ships."""
    return [name for name, member in strategies().items() if member.__module__.startswith(_PACKAGE)]


def _blocks_that_switch_off(name: str) -> dict[str, dict[str, Any]]:
    return {"absent": {}, "false": {name: False}, "null": {name: None}}


def overhead_ratio(block: Mapping[str, Any], *, rounds: int = 3) -> float:
    """Measure what switching strategies on costs an update of the toy problem.

    Args:
        block: The `strategies` block.
        rounds: Runs with and without it, taking turns.

    Returns:
        Median seconds of an update with the block over those without, 1 for no cost.
    """
    times = [(_seconds_per_update(block), _seconds_per_update({})) for _ in range(rounds)]
    return median(on for on, _ in times) / median(off for _, off in times)


def _seconds_per_update(block: Mapping[str, Any]) -> float:
    history = toy_trainer(strategies=block).fit(EPOCHS)["history"]
    updates = [b["updates"] - a["updates"] for a, b in zip([{"updates": 0}, *history], history, strict=False)]
    seconds = [epoch["samples"] / epoch["samples_per_second"] for epoch in history]
    return float(sum(seconds) / sum(updates))


def _final_state(folder: Path, block: Mapping[str, Any] | None, **config: Any) -> dict[str, Any]:
    toy_trainer(folder=folder, strategies=block, **config).fit(EPOCHS)
    return _newest(folder)


def _final_state_in_two(folder: Path, block: Mapping[str, Any], **config: Any) -> dict[str, Any]:
    toy_trainer(folder=folder, strategies=block, **config).fit(EPOCHS, on_epoch=lambda record: record.epoch == BORDER)
    resumed = toy_trainer(folder=folder, strategies=block, seed=99, **config)
    assert resumed.fit(EPOCHS)["resumed_from"] == BORDER
    return _newest(folder)


def _newest(folder: Path) -> dict[str, Any]:
    return repeatable(load_state(folder / f"epoch_{EPOCHS:06d}"))


def _visible_result(*, until: int = EPOCHS, **config: Any) -> dict[str, Any]:
    """Train the toy network; return what any rank can show of it: weights, those to evaluate, the history."""
    net = toy_net()
    trainer = toy_trainer(net, **config)
    report = trainer.fit(EPOCHS, on_epoch=lambda record: record.epoch == until)
    best = dict(trainer.get_best_model().state_dict())
    return {"weights": dict(net.state_dict()), "best": best, "history": repeatable(report)["history"]}


def _rank_results(folder: str, block: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Train on this rank without a stop, stopped between two epochs, and stopped within one."""
    whole, parts, within = (Path(folder) / name for name in ("whole", "parts", "within"))
    own: dict[str, Any] = {"batch_size": 4, "strategies": block, "gradient_accumulation_steps": 2}
    keep = {"every_steps": 3, "keep_last": -1}
    unstopped = _visible_result(folder=whole, checkpoint=keep, **own)
    _visible_result(folder=parts, until=BORDER, **own)
    if dist.get_rank() == 0:
        saved = sorted(whole.glob("epoch_*_step_*"))
        shutil.copytree(saved[len(saved) // 2], within / saved[len(saved) // 2].name)
    dist.barrier()
    return unstopped, *(_visible_result(folder=part, seed=99, **own) for part in (parts, within))


def _assert_learns(trainer: Any) -> None:
    report = trainer.fit(8)
    assert report["state"] == "finished"
    assert report["updates"] > 0
    assert report["bad_steps"] == 0
    assert report["best_val_acc"] > 70.0
    assert all(bool(torch.isfinite(v).all()) for v in trainer.get_best_model().state_dict().values())


def _batch(size: int, weights: Tensor | None) -> Batch:
    generator = torch.Generator().manual_seed(size)
    inputs = torch.randn(size, *IMAGE, generator=generator)
    return Batch(inputs, torch.arange(size) % CLASSES, torch.arange(size), weights)


def _show_losses(strategy: Strategy, epoch: int) -> None:
    """Let a strategy see the losses of an epoch, as the loop would."""
    losses = torch.rand(SAMPLES, generator=torch.Generator().manual_seed(0))
    strategy.loss(losses, torch.zeros(SAMPLES, CLASSES), _batch(SAMPLES, None), Step(epoch=epoch, update=epoch))


def _distribution(text: Mapping[str, Any]) -> optuna.distributions.BaseDistribution:
    return optuna.distributions.json_to_distribution(json.dumps(text))

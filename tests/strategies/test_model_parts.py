"""Strategies that change parts of the model: stochastic depth, dropout, freezing, checkpointing, LoRA, compile, pruning."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from images import build
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from toys import blobs, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategies.layer_freezing import frozen_share
from muse_spark_ray.strategies.lora import merged
from muse_spark_ray.strategies.plateau import shrink_and_perturb
from muse_spark_ray.strategies.sequence_warmup import length_at
from muse_spark_ray.strategies.stochastic_depth import drop_rates
from muse_spark_ray.strategies.structured_pruning import ratio_after
from muse_spark_ray.strategy import Batch, Decision, Step, seeded
from muse_spark_ray.testing.toys import blobs as images
from muse_spark_ray.testing.toys import toy_net
from muse_spark_ray.training.checkpoint import load_state


class Block(nn.Module):
    """x + f(x); counts its passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        result: Tensor = x + self.inner(x)
        return result


def residual_net(depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Sequential(*[Block(6) for _ in range(depth)]), nn.Linear(6, 3))


# ---------------------------------------------------------------- stochastic depth


def test_deeper_blocks_are_left_out_more_often() -> None:
    assert drop_rates(4, 0.4) == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_blocks_left_out_do_not_run_and_evaluation_uses_all() -> None:
    model = residual_net()
    plain = copy.deepcopy(model)
    build("stochastic_depth", blocks="1.*", rate=0.9).prepare_model(model)
    x = torch.randn(5, 4)
    assert torch.equal(model.eval()(x), plain.eval()(x))
    model.train()
    before = [block.passes for block in model[1]]  # type: ignore[union-attr]
    torch.manual_seed(0)
    outputs = torch.stack([model(x) for _ in range(4000)])
    runs = [(block.passes - b) / 4000 for block, b in zip(model[1], before, strict=True)]  # type: ignore[arg-type]
    assert runs == pytest.approx([0.7, 0.4, 0.1], abs=0.03)
    assert torch.allclose(outputs.mean(0), plain(x), atol=0.35)
    assert list(model.state_dict()) == list(plain.state_dict())


def test_a_block_that_changes_the_shape_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match=r"0 maps \(8, 4\) to \(8, 6\); only blocks that keep the shape"):
        trained(
            residual_net(),
            in_order(blobs(), 8),
            epochs=5,
            strategies={"stochastic_depth": {"blocks": "0", "rate": 0.1}},
        )


def test_a_pattern_without_a_match_lists_the_modules() -> None:
    with pytest.raises(ConfigError, match=r"blocks 'layers\.\*' matches no module of the model, which has: 0, 1, 2, 3"):
        trained(small_net(), blobs(), epochs=1, strategies={"stochastic_depth": {"blocks": "layers.*"}})


# ---------------------------------------------------------------- dropout


def test_dropout_is_on_from_its_first_to_its_last_epoch() -> None:
    model = small_net(dropout=0.5)
    seen = []
    trainer = MuseSparkTrainer(
        model, None, None, blobs(), None, {"strategies": {"dropout": {"rate": 0.3, "first_epoch": 2, "last_epoch": 3}}}
    )
    model[2].register_forward_hook(lambda module, *_: seen.append(module.p))
    trainer.fit(4, on_epoch=lambda record: bool(seen.append(-1)))
    epochs = " ".join(map(str, seen)).split("-1")
    assert [set(epoch.split()) for epoch in epochs[:4]] == [{"0.0"}, {"0.3"}, {"0.3"}, {"0.0"}]


def test_a_model_without_dropout_is_told() -> None:
    with pytest.raises(ConfigError, match="the model has no dropout layer"):
        trained(nn.Linear(4, 3), blobs(), epochs=1, strategies={"dropout": True})


# ---------------------------------------------------------------- layer freezing


def test_the_frozen_share_rises_to_its_end() -> None:
    assert [frozen_share(e, begin=2, over=4, share=0.8) for e in range(8)] == pytest.approx(
        [0, 0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8]
    )


def test_frozen_layers_keep_their_weights_and_the_others_go_on() -> None:
    model, after = small_net(), []
    block = {"layer_freezing": {"begin": 1, "over": 1, "share": 0.5}}
    trainer = MuseSparkTrainer(model, None, None, blobs(), None, {"strategies": block})
    trainer.fit(3, on_epoch=lambda record: bool(after.append([model[0].weight.clone(), model[3].weight.clone()])))  # type: ignore[operator]
    assert torch.equal(after[0][0], after[2][0])
    assert not torch.equal(after[0][1], after[2][1])
    assert not model[0].weight.requires_grad
    assert trainer.history[0]["frozen_layers"] == 1


# ---------------------------------------------------------------- activation checkpointing


def test_recomputed_blocks_give_the_same_bits_with_dropout() -> None:
    plain, thrifty = small_net(dropout=0.5), small_net(dropout=0.5)
    torch.manual_seed(1)
    trained(plain, blobs(), epochs=2)
    torch.manual_seed(1)
    trained(thrifty, blobs(), epochs=2, strategies={"activation_checkpointing": {"blocks": "2, 3"}})
    assert torch.equal(weights(plain), weights(thrifty))


def test_the_insides_of_a_block_run_twice() -> None:
    model = residual_net(depth=1)
    trained(model, in_order(blobs(16), 8), epochs=1, strategies={"activation_checkpointing": {"blocks": "1.0"}})
    assert model[1][0].passes == 4  # type: ignore[index, union-attr]


# ---------------------------------------------------------------- LoRA


def test_only_adapters_are_trained_and_merging_gives_the_plain_model() -> None:
    model = small_net()
    frozen = weights(model).clone()
    trainer = trained(model, blobs(), epochs=5, strategies={"lora": {"rank": 2, "layers": "0"}})
    assert trainer.get_training_report()["strategy_reports"]["lora"] == {
        "parameters": 4 * 8 + 8 + 8 * 3 + 3 + 2 * 4 + 8 * 2,
        "trained_parameters": 2 * 4 + 8 * 2,
    }
    base = {n: p for n, p in model.named_parameters() if "lora" not in n}
    assert torch.equal(torch.cat([p.detach().flatten() for p in base.values()]), frozen)
    plain = merged(model.eval())
    assert list(plain.state_dict()) == list(small_net().state_dict())
    x = torch.randn(7, 4)
    assert torch.allclose(plain(x), model(x), atol=1e-6)
    assert not torch.allclose(plain(x), small_net().eval()(x), atol=1e-2)
    assert type(plain[0]) is nn.Linear  # type: ignore[index]


def test_a_named_module_is_trained_as_a_whole() -> None:
    model = small_net()
    before = [model[0].weight.detach().clone(), model[3].weight.detach().clone()]
    trained(model, blobs(), epochs=2, strategies={"lora": {"train": "3"}})
    assert torch.equal(model[0].weight, before[0])
    assert not torch.equal(model[3].weight, before[1])


def test_a_model_without_linear_layers_is_told() -> None:
    with pytest.raises(ConfigError, match=r"lora\.layers: 1 holds no nn.Linear"):
        trained(small_net(), blobs(), epochs=1, strategies={"lora": {"layers": "1"}})


# ---------------------------------------------------------------- compile


def test_a_compiled_model_trains_alike_and_its_compiling_is_booked() -> None:
    plain, compiled, records = small_net(), small_net(), []
    trained(plain, in_order(blobs(), 20), epochs=2)
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    block = {"strategies": {"compile": {"backend": "aot_eager"}}}
    trainer = MuseSparkTrainer(compiled, optimizer, None, in_order(blobs(), 20), None, block)
    report = trainer.fit(2, on_epoch=lambda record: bool(records.append(record)))
    assert torch.allclose(weights(plain), weights(compiled), atol=1e-6)
    seconds = report["strategy_reports"]["compile"]["compile_seconds"]
    booked = sum(span.seconds for record in records for span in record.spans if span.phase == "compile")
    assert 0 < booked <= seconds * 1.01
    assert list(trainer.get_best_model().state_dict()) == list(plain.state_dict())


# ---------------------------------------------------------------- sequence warm-up


def test_sequences_grow_to_their_full_length() -> None:
    lengths = [length_at(u, 64, start=8, updates=7, multiple=8) for u in range(9)]
    assert lengths == [8, 16, 24, 32, 40, 48, 56, 64, 64]
    assert length_at(0, 4, start=8, updates=7, multiple=8) == 4


def test_inputs_and_their_labels_are_cut_together() -> None:
    strategy = build("sequence_warmup", start=4, updates=10, multiple=4)
    tokens = torch.arange(24).view(2, 12)
    cut = strategy.transform_batch(Batch(tokens, tokens + 1), Step(0, 0))
    assert cut.inputs.tolist() == tokens[:, :4].tolist()
    assert cut.targets.tolist() == (tokens + 1)[:, :4].tolist()
    whole = strategy.transform_batch(Batch(tokens, torch.tensor([0, 1])), Step(0, 10))
    assert whole.inputs.shape == (2, 12)


# ---------------------------------------------------------------- plateau


def _acts(values: list[float], **settings: Any) -> list[Decision | None]:
    strategy = build("plateau", smoothing=0.0, min_delta=0.0, **settings)
    strategy.prepare_model(nn.Linear(2, 2))
    return [strategy.after_epoch({"val_loss": v, "accuracy": -v}, Step(e, e, 5)) for e, v in enumerate(values, 1)]


@pytest.mark.parametrize("metric", ["val_loss", "accuracy"])
def test_a_metric_that_stands_still_lowers_the_rate(metric: str) -> None:
    decisions = _acts([3, 2, 2, 2, 2, 2, 1], patience=2, factor=0.5, metric=metric)
    assert [d.lr_factor if d else None for d in decisions] == [None, None, None, 0.5, None, 0.5, None]


def test_a_cooldown_is_not_counted() -> None:
    decisions = _acts([1] * 8, patience=1, cooldown=2)
    assert [d is not None for d in decisions] == [False, True, False, False, True, False, False, True]


def test_the_loop_does_what_the_plateau_asks() -> None:
    rates = {}
    for action in ("reduce", "restart"):
        block = {
            "plateau": {"action": action, "patience": 1, "min_delta": 100.0, "factor": 0.5, "metric": "train_loss"}
        }
        trainer = trained(small_net(), blobs(), epochs=4, schedule={"type": "cosine"}, strategies=block, batch_size=60)
        rates[action] = [epoch["lr"] for epoch in trainer.history]
    assert rates["restart"] == pytest.approx([0.085355, 0.05, 0.05, 0.0], abs=1e-6)
    assert rates["reduce"] == pytest.approx([0.085355, 0.05, 0.00732, 0.0], abs=1e-4)


def test_perturbed_weights_are_the_same_on_every_rank() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.load_state_dict(first.state_dict())
    before = weights(first)
    for model in (first, second):
        shrink_and_perturb(model, shrink=0.5, noise=0.1, generator=seeded(0, 3, 1))
    assert torch.equal(weights(first), weights(second))
    assert torch.allclose(weights(first), 0.5 * before, atol=0.3)
    assert not torch.equal(weights(first), 0.5 * before)


# ---------------------------------------------------------------- structured pruning


def _pruned(tmp_path: Path | None = None, epochs: int = 4, **settings: Any) -> tuple[nn.Module, MuseSparkTrainer]:
    net = toy_net()
    checkpoint = {} if tmp_path is None else {"checkpoint": {"save_dir": str(tmp_path)}}
    block = {"strategies": {"structured_pruning": {"begin": 1, **settings}}, "batch_size": 8, **checkpoint}
    trainer = MuseSparkTrainer(net, None, None, images(), images(20, seed=1), block)
    trainer.fit(epochs)
    return net, trainer


@pytest.mark.parametrize("importance", ["l1", "l2", "bn_scale", "taylor"])
def test_half_of_the_channels_are_really_gone(importance: str) -> None:
    net, trainer = _pruned(importance=importance, ratio=0.5, epochs=10)
    assert net[0].weight.shape == (4, 1, 1, 2)  # type: ignore[index]
    assert net[1].running_mean.shape == (4,)  # type: ignore[index]
    assert net[5].weight.shape == (3, 8)  # type: ignore[index]
    report = trainer.get_training_report()
    sizes = report["strategy_reports"]["structured_pruning"]
    assert sizes["parameters"] == {"before": 8 * 3 + 16 + 51, "after": 4 * 3 + 8 + 27}
    assert sizes["macs"]["after"] < 0.6 * sizes["macs"]["before"]
    assert min(sizes["latency_ms"].values()) > 0
    assert report["best_epoch"] > 1
    assert report["best_val_acc"] > 70


def test_plans_remove_in_steps() -> None:
    assert [ratio_after(s, of=4, final=0.8, plan="iterative") for s in range(5)] == pytest.approx(
        [0, 0.2, 0.4, 0.6, 0.8]
    )
    gradual = [ratio_after(s, of=4, final=0.8, plan="gradual") for s in range(5)]
    assert gradual == pytest.approx([0, 0.4625, 0.7, 0.7875, 0.8])
    net, trainer = _pruned(plan="iterative", steps=2, ratio=0.5, epochs=4)
    assert net[0].weight.shape[0] == 4  # type: ignore[index]
    assert [("parameters" in epoch) for epoch in trainer.history] == [True, True, False, False]


def test_a_pruned_training_resumes_in_its_shape(tmp_path: Path) -> None:
    whole, _ = _pruned(tmp_path / "whole", epochs=4, ratio=0.5)
    _pruned(tmp_path / "parts", epochs=2, ratio=0.5)
    resumed, trainer = _pruned(tmp_path / "parts", epochs=4, ratio=0.5)
    assert trainer.get_training_report()["resumed_from"] == 2
    assert resumed[0].weight.shape == whole[0].weight.shape  # type: ignore[index]
    assert load_state(tmp_path / "parts" / "epoch_000004")["model"]["0.weight"].shape == (4, 1, 1, 2)


def test_nothing_is_cut_after_the_last_epoch() -> None:
    net, _ = _pruned(epochs=1)
    assert net[0].weight.shape[0] == 8  # type: ignore[index]


def test_averages_do_not_go_with_layers_that_shrink() -> None:
    block = {"strategies": {"structured_pruning": True, "ema": True}}
    with pytest.raises(ConfigError, match=r"strategies\.ema does not work with layers that lose channels"):
        MuseSparkTrainer(toy_net(), None, None, images(), None, block)


def test_a_single_layer_cannot_be_pruned() -> None:
    with pytest.raises(ConfigError, match="no layer besides the one that gives the outputs"):
        trained(
            nn.Linear(4, 3), TensorDataset(*blobs().tensors), epochs=3, strategies={"structured_pruning": {"begin": 1}}
        )

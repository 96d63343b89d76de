"""The public face of the trainer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from toys import Batches, blobs, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.training.optimizers import parameter_groups

MISSION = {
    "use_amp": False,
    "gradient_accumulation_steps": 2,
    "adaptive_sampling": {"strategy": "medium_loss", "update_freq": 5},
    "dynamic_lr_scheduler": {"type": "cosine_with_warmup_restarts", "warmup_steps": 4, "cycle_length": 8},
}


def test_the_mission_config_trains_and_learns() -> None:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = MuseSparkTrainer(
        net,
        optimizer,
        nn.CrossEntropyLoss(),
        DataLoader(blobs(120), 8, shuffle=True),
        DataLoader(blobs(30), 8),
        MISSION,
    )
    report = trainer.fit(epochs=12)
    assert report["best_val_acc"] > 90
    assert report["strategies"] == ["adaptive_sampling"]
    assert trainer.get_best_model()(blobs().tensors[0]).shape == (60, 3)


def test_the_users_optimizer_is_stepped_itself() -> None:
    net = small_net()
    before = weights(net).clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), blobs()).fit(epochs=1)
    assert optimizer.state
    assert not torch.equal(before, weights(net))


def test_without_validation_there_is_no_accuracy_and_the_model_itself_is_best() -> None:
    net = small_net()
    trainer = trained(net, blobs(), epochs=2)
    report = trainer.get_training_report()
    assert report["best_val_acc"] is None
    assert report["history"][0]["val_loss"] is None
    assert torch.equal(weights(trainer.get_best_model()), weights(net))


def test_two_identical_epochs_report_t16() -> None:
    report = trained(small_net(), in_order(blobs(), 8), epochs=2, lr=0.0, validation=blobs(30)).get_training_report()
    first, second = report["history"]
    assert first["accuracy"] == second["accuracy"]
    assert report["best_val_acc"] == pytest.approx(100 * first["accuracy"])
    assert report["best_epoch"] == 1
    assert report["total_time"] > 0
    assert (report["peak_gpu_memory"] is None) == (not torch.cuda.is_available())


def test_best_model_has_the_weights_of_the_best_epoch() -> None:
    net = small_net()
    kept: list[torch.Tensor] = []
    accuracies: list[Any] = []

    def note(record: Any) -> bool:
        kept.append(weights(net).clone())
        accuracies.append(record.metrics["accuracy"])
        return False

    optimizer = torch.optim.SGD(net.parameters(), lr=2.0)
    trainer = MuseSparkTrainer(net, optimizer, nn.CrossEntropyLoss(), blobs(), blobs(30, seed=5))
    trainer.fit(epochs=6, on_epoch=note)
    best = accuracies.index(max(accuracies))
    assert torch.equal(weights(trainer.get_best_model()), kept[best])
    assert torch.equal(weights(net), kept[-1])


@pytest.mark.parametrize(("ask_at", "state"), [(1, "stopped"), (2, "finished")])
def test_a_training_asked_to_stop_at_its_last_epoch_is_finished(ask_at: int, state: str) -> None:
    trainer = MuseSparkTrainer(small_net(), None, None, blobs(), config={"optimizer": {"lr": 0.01}})
    report = trainer.fit(epochs=2, on_epoch=lambda record: record.epoch == ask_at)
    assert (report["epochs"], report["state"]) == (ask_at, state)
    assert ("stop_reason" in report) == (state == "stopped")


def test_the_same_seed_gives_the_same_order_and_each_epoch_another() -> None:
    seen: list[list[float]] = []

    class Watching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen[-1] += x[:, 0].tolist()
            return super().forward(x)

    for seed in (7, 7, 8):
        seen.append([])
        trained(Watching(4, 3), DataLoader(blobs(), 8, shuffle=True), epochs=2, seed=seed)
    assert seen[0] == seen[1] != seen[2]
    assert sorted(seen[0][:60]) == sorted(seen[0][60:])
    assert seen[0][:60] != seen[0][60:]


def test_weight_decay_spares_biases_and_normalisation_t15() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2))
    decayed, spared = parameter_groups(model, weight_decay=0.1)
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight), id(model[4].weight)]
    assert spared["weight_decay"] == 0.0
    assert len(spared["params"]) == 6


def test_mean_squared_error_is_the_default_for_real_targets() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(20, 2), torch.randn(20, 1))
    report = MuseSparkTrainer(nn.Linear(2, 1), None, None, data, data, {"optimizer": {"lr": 0.01}}).fit(epochs=2)
    assert report["best_val_acc"] is None
    assert report["best_val_loss"] > 0


class _Map(Dataset[Any]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index % 3


def test_map_style_data_with_loader_workers() -> None:
    report = trained(
        small_net(), DataLoader(_Map(), 4, shuffle=True, num_workers=2), epochs=2, lr=1e-4
    ).get_training_report()
    assert [epoch["samples"] for epoch in report["history"]] == [30, 30]


def test_a_loader_with_its_own_sampler_is_read_as_it_is() -> None:
    loader = DataLoader(blobs(), 8, sampler=WeightedRandomSampler(torch.ones(60), 40))
    assert trained(small_net(), loader, epochs=1).get_training_report()["history"][0]["samples"] == 40
    with pytest.raises(ConfigError, match="sample order the trainer controls"):
        trained(small_net(), loader, epochs=1, adaptive_sampling={"update_freq": 5})


def test_a_plain_function_as_criterion_works_but_not_with_sampling() -> None:
    def criterion(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    assert trained(small_net(), blobs(), epochs=1, criterion=criterion).get_training_report()["updates"] > 0
    with pytest.raises(ConfigError, match="one loss per sample"):
        trained(small_net(), blobs(), epochs=1, criterion=criterion, adaptive_sampling={"update_freq": 5})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_ampp": True}, "Did you mean use_amp"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr is 'fast'"),
        ({"adaptive_sampling": {"low": 0.8, "high": 0.2}}, "must be below high"),
        ({"dynamic_lr_scheduler": {"type": "cosine_with_warmup_restarts"}}, "needs cycle_length"),
        ({"use_amp": True, "precision": {"amp": "off"}}, "say the same thing"),
        ({"checkpoint": {"keep_last": 0}}, "keep nothing"),
    ],
)
def test_a_wrong_config_is_refused_with_what_to_do(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MuseSparkTrainer(small_net(), None, None, blobs(), None, config)


def test_wrong_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="train_loader is None"):
        MuseSparkTrainer(small_net())
    with pytest.raises(DataError, match="0 samples"):
        MuseSparkTrainer(
            small_net(), None, nn.CrossEntropyLoss(), torch.utils.data.TensorDataset(torch.empty(0, 4), torch.empty(0))
        )
    with pytest.raises(DataError, match="a pair"):
        trained(small_net(), Batches([(torch.ones(1), torch.ones(1), torch.ones(1))]).loader(), epochs=1)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="at least 1"):
        MuseSparkTrainer(small_net(), None, None, blobs()).fit(epochs=0)

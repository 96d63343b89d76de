"""Validation metrics: the values of scikit-learn, whatever the batches and ranks; any of them may be what counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from toys import blobs, small_net, trained

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.spec.metrics import METRICS, MetricSettings, unfit
from muse_spark_ray.testing.ranks import on_ranks

ASKED = [
    "balanced_accuracy", "f1", "roc_auc", "pr_auc", "calibration_error", "utility", "top_k_accuracy", "recall_at_precision"
]  # fmt: skip
UTILITY = [[1.0, -1.0, -4.0], [0.0, 2.0, 0.0], [-3.0, 0.5, 1.0]]
TASK = {"metrics": ASKED, "metric_settings": {"utility": UTILITY, "top_k": 2, "min_precision": 0.6, "bins": 10}}


def _scores() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    targets = torch.tensor([0] * 50 + [1] * 30 + [2] * 11)[torch.randperm(91, generator=generator)]
    return torch.randn(91, 3, generator=generator) + 1.5 * nn.functional.one_hot(targets, 3), targets


def _evaluated(data: Any, task: dict[str, Any] | None = None) -> dict[str, Any]:
    """Evaluate scores as they are: the model is the identity."""
    net = nn.Linear(3, 3)
    nn.init.eye_(net.weight)
    nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    trainer = MuseSparkTrainer(
        net, optimizer, nn.CrossEntropyLoss(), blobs(6, features=3), data, {"task": task or TASK}
    )
    return dict(trainer.fit(1)["history"][0])


def _expected() -> dict[str, float]:
    scores, targets = _scores()
    p, y = scores.softmax(1).numpy(), targets.numpy()
    guess = p.argmax(1)
    confidence, right = p.max(1), guess == y
    bins = np.clip((confidence * 10).astype(int), 0, 9)
    recalls = []
    for c in range(3):
        precision, recall, _ = sk.precision_recall_curve(y == c, p[:, c])
        recalls.append(recall[precision >= 0.6].max())
    return {
        "accuracy": sk.accuracy_score(y, guess),
        "balanced_accuracy": sk.balanced_accuracy_score(y, guess),
        "f1": sk.f1_score(y, guess, average="macro"),
        "roc_auc": sk.roc_auc_score(y, p, multi_class="ovr"),
        "pr_auc": np.mean([sk.average_precision_score(y == c, p[:, c]) for c in range(3)]),
        "top_k_accuracy": sk.top_k_accuracy_score(y, p, k=2),
        "recall_at_precision": float(np.mean(recalls)),
        "utility": float(np.mean([UTILITY[t][g] for t, g in zip(y, guess, strict=True)])),
        "calibration_error": sum(
            abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean()
            for b in range(10)
            if (bins == b).any()
        ),
    }


@pytest.mark.parametrize("batch_size", [7, 91])
def test_values_are_those_of_scikit_learn(batch_size: int) -> None:
    found = _evaluated(DataLoader(TensorDataset(*_scores()), batch_size))
    assert {name: found[name] for name in _expected()} == pytest.approx(_expected(), abs=1e-5)


def _on_a_rank() -> dict[str, Any]:
    return _evaluated(TensorDataset(*_scores()))


def test_ranks_of_unequal_shares_measure_the_same() -> None:
    first, second = on_ranks(_on_a_rank, 2)
    assert {name: first[name] for name in _expected()} == pytest.approx(_expected(), abs=1e-5)
    assert first["f1"] == second["f1"]


def test_a_class_that_validation_lacks_does_not_count() -> None:
    scores, targets = _scores()
    part = targets < 2
    found = _evaluated(TensorDataset(scores[part], targets[part]))
    recalls = [(scores[part].argmax(1)[targets[part] == c] == c).float().mean() for c in range(2)]
    assert found["balanced_accuracy"] == pytest.approx(float(torch.stack(recalls).mean()), abs=1e-6)
    y, p = targets[part].numpy(), scores[part].softmax(1).numpy()
    assert found["roc_auc"] == pytest.approx(np.mean([sk.roc_auc_score(y == c, p[:, c]) for c in range(2)]), abs=1e-5)
    assert found["pr_auc"] == pytest.approx(
        np.mean([sk.average_precision_score(y == c, p[:, c]) for c in range(2)]), abs=1e-5
    )


def test_real_values() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 2)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(40, 1)
    net = nn.Linear(2, 1)
    task = {"metric": "r2", "metrics": ["mae", "rmse"]}
    trainer = MuseSparkTrainer(net, None, nn.MSELoss(), TensorDataset(x, y), TensorDataset(x, y), {"task": task})
    history = trainer.fit(3)["history"]
    guess = net(x).detach()
    assert history[-1]["r2"] == pytest.approx(sk.r2_score(y, guess), abs=1e-5)
    assert history[-1]["mae"] == pytest.approx(sk.mean_absolute_error(y, guess), abs=1e-5)
    assert history[-1]["rmse"] == pytest.approx(sk.root_mean_squared_error(y, guess), abs=1e-5)


def test_any_of_them_says_which_epoch_is_best(tmp_path: Path) -> None:
    task = {"metric": "calibration_error", "metrics": ["parameters", "latency_ms"]}
    trainer = trained(
        small_net(),
        blobs(),
        epochs=4,
        validation=blobs(30, seed=1),
        task=task,
        checkpoint={"save_dir": str(tmp_path), "keep_last": 1},
    )
    report = trainer.get_training_report()
    errors = [epoch["calibration_error"] for epoch in report["history"]]
    assert report["best_epoch"] == 1 + errors.index(min(errors))
    assert report["history"][0]["parameters"] == sum(p.numel() for p in small_net().parameters())
    assert report["history"][0]["latency_ms"] > 0


@pytest.mark.parametrize(
    ("name", "settings", "classes", "words"),
    [
        ("f1", {}, None, "the targets are real values"),
        ("mae", {}, 3, "the targets are classes"),
        ("top_k_accuracy", {"top_k": 3}, 3, "says nothing about 3 classes"),
        ("utility", {}, 3, "gives no matrix"),
        ("utility", {"utility": [[1.0]]}, 3, "has 1 rows, the task 3 classes"),
    ],
)
def test_what_a_task_cannot_report_is_said_before_training(
    name: str, settings: dict[str, Any], classes: int | None, words: str
) -> None:
    assert words in str(unfit(name, MetricSettings(**settings), classes))
    data = blobs() if classes else TensorDataset(torch.randn(9, 4), torch.randn(9, 1))
    net = small_net() if classes else nn.Linear(4, 1)
    with pytest.raises(ConfigError, match=words):
        MuseSparkTrainer(net, None, None, data, data, {"task": {"metrics": [name], "metric_settings": settings}})


def test_a_matrix_that_is_not_square_and_a_name_unknown_are_refused() -> None:
    with pytest.raises(ConfigError, match="it must be square"):
        train_config({"task": {"metric_settings": {"utility": [[1.0, 2.0], [1.0]]}}})
    with pytest.raises(ConfigError, match=r"task\.metric"):
        train_config({"task": {"metric": "accuracies"}})


def test_every_metric_is_described() -> None:
    assert all(info.doc for info in METRICS.values())

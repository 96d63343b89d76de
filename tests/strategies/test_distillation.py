"""Distillation: losses by their papers' formulas, the teacher's weight, its scores in a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import FIRST, LATER, batch, build
from torch import nn
from torch.utils.data import TensorDataset
from toys import blobs, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.strategies.distillation import distillation_losses, similarity_losses, weight_at
from muse_spark_ray.testing.ranks import on_ranks


def test_distillation_t12() -> None:
    """T^2 * KL(teacher || student), both at temperature T, per sample."""
    student, teacher, heat = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), 2.0
    p, q = (teacher / heat).softmax(1), (student / heat).softmax(1)
    expected = heat**2 * float((p * (p / q).log()).sum())
    assert distillation_losses(student, teacher, temperature=heat).tolist() == [pytest.approx(expected, abs=1e-6)]


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.floats(0.5, 20))
def test_a_student_like_its_teacher_has_no_loss(scores: list[float], temperature: float) -> None:
    same = torch.tensor([scores])
    assert float(distillation_losses(same, same + 7.0, temperature=temperature)) == pytest.approx(0.0, abs=1e-3)


def _teachers(folder: Path) -> str:
    (folder / "teachers.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def good():\n    torch.manual_seed(3)\n"
        "    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))\n"
        "def narrow(): return nn.Linear(4, 2)\n"
        "def none(): return 3\n"
        "def broken(): raise RuntimeError('no teacher today')\n"
    )
    return str(folder / "teachers.py")


def test_the_teacher_stays_as_it_was_loss_4(tmp_path: Path) -> None:
    strategy = build("distillation", teacher=f"{_teachers(tmp_path)}:good")
    teacher = strategy._teacher  # type: ignore[attr-defined]
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    inputs = torch.randn(5, 4)
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    first = strategy.loss(torch.zeros(5), torch.zeros(5, 3), batch(5).with_(inputs=inputs), FIRST)
    assert torch.equal(first, strategy.loss(torch.zeros(5), torch.zeros(5, 3), batch(5).with_(inputs=inputs), LATER))
    assert all(torch.equal(before[name], value) for name, value in teacher.state_dict().items())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.8] * 6),
        ("linear", [0.8, 0.6, 0.4, 0.2, 0.0, 0.0]),
        ("cosine", [0.8, 0.682843, 0.4, 0.117157, 0.0, 0.0]),
    ],
)
def test_the_teachers_weight_over_the_epochs(schedule: str, expected: list[float]) -> None:
    weights = [weight_at(epoch, weight=0.8, schedule=schedule, epochs=4) for epoch in range(6)]
    assert weights == pytest.approx(expected, abs=1e-6)


def test_a_student_that_is_sure_listens_less(tmp_path: Path) -> None:
    strategy = build("distillation", teacher=f"{_teachers(tmp_path)}:good", weight=0.5, schedule="confidence")
    scores = torch.tensor([[0.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    sample = batch(2).with_(inputs=torch.randn(2, 4), targets=torch.tensor([0, 1]))
    taught = distillation_losses(scores, strategy.teach(sample.inputs), temperature=4.0)  # type: ignore[attr-defined]
    mixed = strategy.loss(torch.zeros(2), scores, sample, FIRST)
    sure = float(scores[1].softmax(0)[1])
    assert mixed.tolist() == pytest.approx(
        [float(taught[0]) * 0.5 * 2 / 3, float(taught[1]) * 0.5 * (1 - sure)], rel=1e-4
    )


def test_a_student_learns_from_a_teacher_alone(tmp_path: Path) -> None:
    """With all labels the same, only the teacher knows the classes."""
    teacher = trained(small_net(seed=9), blobs(), epochs=40)
    torch.save(teacher.get_best_model().state_dict(), tmp_path / "weights.pt")
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def teacher(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))\n"
    )
    unlabelled = TensorDataset(blobs().tensors[0], torch.zeros(60, dtype=torch.int64))
    settings = {
        "teacher": str(tmp_path / "net.py"),
        "weights": str(tmp_path / "weights.pt"),
        "weight": 1.0,
        "temperature": 1.0,
    }
    student = trained(small_net(), unlabelled, epochs=60, validation=blobs(), strategies={"distillation": settings})
    assert student.get_training_report()["best_val_acc"] > 90


def test_a_checkpoint_of_ours_is_a_file_of_weights(tmp_path: Path) -> None:
    trainer = trained(small_net(), blobs(), epochs=1, checkpoint={"save_dir": str(tmp_path)})
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def teacher(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))\n"
    )
    strategy = build("distillation", teacher=str(tmp_path / "net.py"), weights=str(tmp_path / "last"))
    teacher = strategy._teacher  # type: ignore[attr-defined]
    assert torch.equal(weights(teacher), weights(trainer.get_best_model()))


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("absent", None, "defines none of absent"),
        ("none", None, "returned a int; it must return a torch.nn.Module"),
        ("good", "missing.pt", "weights 'missing.pt' cannot be loaded"),
        ("good", "junk.pt", "cannot be loaded"),
    ],
)
def test_a_teacher_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str | None, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(ConfigError, match=words):
        build("distillation", teacher=f"{_teachers(tmp_path)}:{name}", weights=file)


def test_a_teacher_is_needed_and_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"distillation\.teacher is missing"):
        train_config({"strategies": {"distillation": True}})
    with pytest.raises(ConfigError, match=r"the teacher returns \(8, 2\), the student \(8, 3\)"):
        trained(
            small_net(),
            blobs(),
            epochs=1,
            batch_size=8,
            strategies={"distillation": {"teacher": f"{_teachers(tmp_path)}:narrow"}},
        )


# ---------------------------------------------------------------- features


def test_layers_that_see_the_same_likeness_have_no_loss() -> None:
    x = torch.randn(5, 4)
    rotation = torch.linalg.qr(torch.randn(4, 4)).Q
    assert similarity_losses(x, x @ rotation * 3.0).tolist() == pytest.approx([0.0] * 5, abs=1e-6)
    assert similarity_losses(torch.eye(2), torch.ones(2, 7)).tolist() == pytest.approx([(1 - 0.5**0.5) ** 2 + 0.5] * 2)


def test_features_of_other_widths_are_matched(tmp_path: Path) -> None:
    """With weight 0 for its scores, the teacher still shapes the student's hidden layer."""
    teacher = f"{_teachers(tmp_path)}:good"
    losses = {}
    for weight in (0.0, 5.0):
        settings = {"teacher": teacher, "weight": 0.0, "features": {"1": "1"}, "feature_weight": weight}
        student = small_net()
        trainer = trained(student, blobs(), epochs=15, strategies={"distillation": settings})
        x = blobs().tensors[0]
        theirs = trainer._run.stack.members[0]._teacher[:2](x)  # type: ignore[attr-defined]
        losses[weight] = float(similarity_losses(student[:2](x), theirs).mean().detach())
    assert losses[5.0] < 0.7 * losses[0.0]


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = {"teacher": f"{_teachers(tmp_path)}:good", "features": {"7": "1"}}
    with pytest.raises(ConfigError, match=r"features '7' matches no module of the model, which has: 0, 1, 2, 3"):
        trained(small_net(), blobs(), epochs=1, strategies={"distillation": settings})


# ---------------------------------------------------------------- cache


def _with_cache(folder: Path, **settings: Any) -> dict[str, Any]:
    cache = {"teacher": f"{_teachers(folder)}:good", "cache": str(folder / "cache" / "scores.parquet"), **settings}
    return {"distillation": cache}


def test_cached_scores_train_the_same_student_without_the_teacher(tmp_path: Path) -> None:
    live, cached, again = small_net(), small_net(), small_net()
    block = _with_cache(tmp_path)
    without = {"distillation": {k: v for k, v in block["distillation"].items() if k != "cache"}}
    trained(live, in_order(blobs(), 8), epochs=3, strategies=without)
    trainer = trained(cached, in_order(blobs(), 8), epochs=3, strategies=block)
    assert torch.allclose(weights(live), weights(cached), atol=1e-6)
    file = tmp_path / "cache" / "scores.parquet"
    written = file.stat().st_mtime_ns
    assert pq.read_table(file).num_rows == 60
    trainer = MuseSparkTrainer(
        again, torch.optim.SGD(again.parameters(), lr=0.1), None, in_order(blobs(), 8), None, {"strategies": block}
    )
    trainer._run.stack.members[0]._teacher.forward = None  # type: ignore[attr-defined]
    trainer.fit(3)
    assert torch.equal(weights(again), weights(cached))
    assert file.stat().st_mtime_ns == written


def test_the_teachers_pass_is_booked_as_shared(tmp_path: Path) -> None:
    records: list[Any] = []
    net = small_net()
    trainer = MuseSparkTrainer(net, None, None, blobs(), None, {"strategies": _with_cache(tmp_path)})
    trainer.fit(1, on_epoch=lambda record: bool(records.append(record)))
    assert next(span for span in records[0].spans if span.phase == "shared").seconds > 0


@pytest.mark.parametrize("damage", ["teacher", "junk"])
def test_a_cache_of_another_teacher_is_written_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    trained(small_net(), blobs(), epochs=1, strategies=_with_cache(tmp_path))
    file = tmp_path / "cache" / "scores.parquet"
    before = file.read_bytes()
    settings: dict[str, Any] = {}
    if damage == "junk":
        file.write_bytes(b"junk")
    else:
        teacher = trained(_other_teacher(), blobs(), epochs=1)
        torch.save(teacher.get_best_model().state_dict(), tmp_path / "other.pt")
        settings["weights"] = str(tmp_path / "other.pt")
    with caplog.at_level(logging.WARNING):
        trained(small_net(), blobs(), epochs=1, strategies=_with_cache(tmp_path, **settings))
    assert "is written anew" in caplog.text
    assert (file.read_bytes() == before) == (damage == "junk")


def _other_teacher() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_a_cache_does_not_go_with_changed_inputs(tmp_path: Path) -> None:
    block = _with_cache(tmp_path) | {"mixup": True}
    with pytest.raises(
        ConfigError, match=r"strategies\.distillation does not work with inputs that differ from the stored"
    ):
        trained(small_net(), blobs(), epochs=1, strategies=block)
    assert not (tmp_path / "cache").exists()


def _rank_trains(block: dict[str, Any]) -> list[float]:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    MuseSparkTrainer(net, optimizer, None, in_order(blobs(), 4), None, {"strategies": block}).fit(2)
    return weights(net).tolist()


def test_ranks_fill_the_cache_together(tmp_path: Path) -> None:
    block = _with_cache(tmp_path)
    first, second = on_ranks(_rank_trains, 2, block)
    assert first == second
    alone = small_net()
    trained(alone, in_order(blobs(), 8), epochs=2, strategies=block)
    assert torch.allclose(torch.tensor(first), weights(alone), atol=1e-6)

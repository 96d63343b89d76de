"""Focal and robust losses, distillation, selective backprop: values from their papers' formulas."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import FIRST, LATER, batch, build
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from toys import blobs, small_net, trained, weights

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.strategies.distillation import distillation_losses, load_teacher
from muse_spark_ray.strategies.focal_loss import focus
from muse_spark_ray.strategies.robust_loss import generalised_cross_entropy, symmetric_cross_entropy
from muse_spark_ray.strategies.selective_backprop import hardest, selected

HALF = torch.tensor([[0.0, 0.0]])  # each class has the probability 1/2
FIRST_CLASS = torch.tensor([[1.0, 0.0]])


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, targets, reduction="none")


def test_focal_loss_at_a_half() -> None:
    losses = cross_entropy(HALF, FIRST_CLASS)
    assert focus(losses, HALF, FIRST_CLASS, gamma=2.0).tolist() == [pytest.approx(0.25 * math.log(2))]


@given(st.floats(-20, 20), st.floats(0, 5))
def test_focal_loss_never_exceeds_the_loss_and_gamma_zero_is_off(score: float, gamma: float) -> None:
    scores = torch.tensor([[score, 0.0]])
    losses = cross_entropy(scores, FIRST_CLASS)
    assert float(focus(losses, scores, FIRST_CLASS, gamma=gamma)) <= float(losses) + 1e-6
    assert torch.equal(focus(losses, scores, FIRST_CLASS, gamma=0.0), losses)


def test_generalised_cross_entropy_lies_between_cross_entropy_and_absolute_error() -> None:
    scores, targets = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    probability = float(scores.softmax(1)[0, 1])
    assert float(generalised_cross_entropy(scores, targets, q=1.0)) == pytest.approx(1 - probability, abs=1e-6)
    assert float(generalised_cross_entropy(scores, targets, q=0.001)) == pytest.approx(-math.log(probability), rel=0.01)
    assert float(generalised_cross_entropy(scores, targets, q=0.5)) == pytest.approx(
        2 * (1 - probability**0.5), abs=1e-6
    )


def test_symmetric_cross_entropy_adds_the_reverse_with_log_zero_as_minus_four() -> None:
    found = symmetric_cross_entropy(HALF, FIRST_CLASS, alpha=2.0, beta=3.0)
    assert float(found) == pytest.approx(2.0 * math.log(2) + 3.0 * 0.5 * 4.0)


def test_a_wrong_label_costs_at_most_a_bounded_amount() -> None:
    certain = torch.tensor([[50.0, 0.0]])
    wrong = torch.tensor([[0.0, 1.0]])
    assert float(cross_entropy(certain, wrong)) > 49
    assert float(generalised_cross_entropy(certain, wrong, q=0.5)) <= 2.0
    assert float(symmetric_cross_entropy(certain, wrong, alpha=0.0, beta=1.0)) <= 4.0


# ---------------------------------------------------------------- distillation


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


def test_the_teachers_weight_fades(tmp_path: Path) -> None:
    strategy = build("distillation", teacher=f"{_teachers(tmp_path)}:good", weight=0.8, fade_epochs=4)
    assert [strategy._share(epoch) for epoch in range(6)] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0, 0.0])  # type: ignore[attr-defined]


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
    teacher = load_teacher(str(tmp_path / "net.py"), str(tmp_path / "epoch_000001" / "state.pt"))
    assert torch.equal(weights(teacher), weights(trainer.get_best_model()))


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("absent", None, "defines none of absent"),
        ("none", None, "returned a int; a teacher is a torch.nn.Module"),
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
        load_teacher(f"{_teachers(tmp_path)}:{name}", file)


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


# ---------------------------------------------------------------- selective backprop


def test_the_hardest_samples_are_chosen_in_the_order_of_the_batch() -> None:
    losses = torch.tensor([0.1, 5.0, math.nan, 2.0, math.inf, 3.0])
    assert hardest(losses, torch.ones(6), 0.5).tolist() == [1, 3, 5]
    assert hardest(losses, torch.tensor([1.0, 0, 1, 1, 1, 0]), 0.5).tolist() == [0, 3]
    assert hardest(torch.full((4,), math.nan), torch.ones(4), 0.5).numel() == 1


@given(st.lists(st.floats(0, 10), min_size=2, max_size=12), st.floats(0.05, 1.0), st.integers(0, 99))
def test_what_is_chosen_weighs_what_all_weighed(given_weights: list[float], fraction: float, seed: int) -> None:
    torch.manual_seed(seed)
    plain = batch(len(given_weights), weights=torch.tensor(given_weights))
    assert plain.weights is not None
    if plain.weight == 0:
        return
    part = selected(plain, hardest(torch.rand(plain.size), plain.weights, fraction))
    assert part.weight == pytest.approx(plain.weight, rel=1e-4)
    assert 1 <= part.size <= plain.size


def test_scoring_leaves_modes_statistics_and_random_numbers_alone() -> None:
    strategy = build("selective_backprop", warmup_epochs=0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(72), nn.Dropout(0.5), nn.Linear(72, 3))
    model[1].eval()  # frozen by its owner
    strategy.prepare_model(model)
    model[1].training = False
    state, stream = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    part = strategy.transform_batch(batch(6), FIRST)
    assert part.size == 3
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert torch.equal(stream, torch.get_rng_state())


def test_backward_passes_are_saved_and_samples_are_counted_whole() -> None:
    passed: list[int] = []

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                passed.append(len(x))
            return super().forward(x)

    report = trained(
        Counting(4, 3),
        blobs(),
        epochs=3,
        batch_size=20,
        strategies={"selective_backprop": {"fraction": 0.25, "warmup_epochs": 1}},
    ).get_training_report()
    assert sum(passed) == 60 + 15 + 15
    assert [epoch["samples"] for epoch in report["history"]] == [60, 60, 60]

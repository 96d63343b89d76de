"""The data sets a spec can name: what is read, how it is split, and what is refused in which words."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.data import DataConfig, load_task
from muse_spark_ray.data.splits import random_split
from muse_spark_ray.errors import ConfigError, DataError, MuseSparkError

FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(MuseSparkError) as caught:
        load_task(DataConfig(**config))
    assert isinstance(caught.value, DataError | ConfigError)
    assert caught.value.exit_code == 2
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "samples", "classes", "shape"),
    [
        ("digits", 1797, 10, (1, 8, 8)),
        ("wine", 178, 3, (13,)),
        ("iris", 150, 3, (4,)),
        ("breast_cancer", 569, 2, (30,)),
    ],
)
def test_bundled_sets(name: Any, samples: int, classes: int, shape: tuple[int, ...]) -> None:
    task = load_task(DataConfig(name=name))
    assert len(task.train) + len(task.validation) == samples
    assert len(task.validation) == pytest.approx(samples / 5, abs=1)
    assert (task.classes, task.shape) == (classes, shape)
    assert task.train.inputs.dtype == torch.float32
    assert task.train.targets.dtype == torch.int64
    counts = [torch.bincount(part.targets) for part in (task.train, task.validation)]
    assert (counts[1] - 0.2 * sum(counts)).abs().max() < 1.5  # each class in both parts alike, to a sample


def test_inputs_are_scaled_by_the_training_part_alone() -> None:
    task = load_task(DataConfig(name="wine"))
    assert torch.allclose(task.train.inputs.mean(0), torch.zeros(13), atol=1e-5)
    assert torch.allclose(task.train.inputs.std(0, unbiased=False), torch.ones(13), atol=1e-4)
    assert not torch.allclose(task.validation.inputs.mean(0), torch.zeros(13), atol=1e-3)


def test_the_split_follows_its_seed_only() -> None:
    first, again, other = (load_task(DataConfig(name="iris", split_seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.validation.targets, other.validation.targets)


def test_max_samples_takes_from_the_training_part_only() -> None:
    task = load_task(DataConfig(name="digits", max_samples=100))
    assert (len(task.train), len(task.validation)) == (100, 359)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.floats(0.01, 0.99), st.integers(0, 1000), st.booleans())
def test_a_split_is_disjoint_complete_and_leaves_no_part_empty(
    labels: list[int], fraction: float, seed: int, stratified: bool
) -> None:
    train, held_out = random_split(np.array(labels), fraction=fraction, seed=seed, stratified=stratified)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(len(labels)))
    assert len(train) > 0
    assert len(held_out) > 0
    again = random_split(np.array(labels), fraction=fraction, seed=seed, stratified=stratified)
    assert np.array_equal(train, again[0])


# ---------------------------------------------------------------- files


def test_npz_and_csv_give_the_same_task(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
    np.savez("d.npz", x=x, y=y)
    rows = "\n".join(",".join(map(repr, [*map(float, row), int(label)])) for row, label in zip(x, y, strict=True))
    Path("d.csv").write_text(f"a,b,c,label\n{rows}\n")
    from_npz, from_csv = (
        load_task(DataConfig(name="npz", path="d.npz")),
        load_task(DataConfig(name="csv", path="d.csv")),
    )
    assert from_npz.classes == from_csv.classes == 4
    assert torch.allclose(from_npz.train.inputs, from_csv.train.inputs)
    assert torch.equal(from_npz.validation.targets, from_csv.validation.targets)


def test_text_labels_are_numbered_and_a_target_can_be_named(folder: Path) -> None:
    rows = "\n".join(f"{'cat' if i % 2 else 'dog'},{i},{i * i}" for i in range(20))
    Path("d.csv").write_text(f"kind,a,b\n{rows}\n")
    assert load_task(DataConfig(name="csv", path="d.csv", target="kind")).classes == 2


def test_real_values_make_a_regression(folder: Path) -> None:
    np.savez("d.npz", x=np.random.rand(20, 3), y=np.random.rand(20))
    task = load_task(DataConfig(name="npz", path="d.npz"))
    assert task.classes is None
    assert task.train.targets.shape == (16, 1)


def test_a_factory_gives_arrays(folder: Path) -> None:
    Path("mine_good.py").write_text("import numpy as np\ndef make(): return np.eye(6), [0, 1] * 3\n")
    assert load_task(DataConfig(name="factory", factory="mine_good:make")).classes == 2


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.ones((4, 2)), np.array([0, 1, 0]), "4 inputs but targets of the shape (3,)"),
        (np.ones((4, 2)), np.array(3), "targets of the shape ()"),
        (np.ones((1, 2)), np.array([0]), "1 samples; at least 2 are needed"),
        (np.ones((0, 2)), np.array([], dtype=int), "0 samples"),
        (np.ones(4), np.arange(4), "inputs have the shape (4,)"),
        (np.ones((4, 0)), np.arange(4), "inputs have the shape (4, 0)"),
        (np.array(["a", "b"])[:, None], np.arange(2), "inputs are of type <U1; they must be numbers"),
        (np.array([[1.0], [np.nan], [np.inf]]), np.array([0, 1, 0]), "2 of 3 inputs are not finite, first in row 1"),
        (np.array([[1.0], [1e300]]), np.array([0, 1]), "1 of 2 inputs are not finite, first in row 1"),
        (np.ones((3, 1)), np.array([0.5, np.nan, 1]), "1 of 3 targets are not finite, first in row 1"),
        (np.ones((3, 1)), np.array([0, -1, 1]), "label -1 in row 1 is out of range"),
        (np.ones((3, 1)), np.array([0, 1, 100]), "label 100 in row 2 is out of range"),
        (np.ones((3, 1)), np.array([2, 2, 2]), "all labels are 2; at least 2 classes are needed"),
        (np.ones((3, 1)), np.array([[0], [1], [0]]), "class targets have the shape (3, 1)"),
    ],
)
def test_data_that_no_training_can_use_is_refused(folder: Path, x: Any, y: Any, words: str) -> None:
    np.savez("d.npz", x=x, y=y)
    message = refusal({"name": "npz", "path": "d.npz"})
    assert words in message
    assert "d.npz" in message


@pytest.mark.parametrize("keep", [0, 10, 100, 0.5, 0.95])
def test_a_cut_off_npz_is_refused(folder: Path, keep: float) -> None:
    np.savez_compressed("whole.npz", x=np.random.rand(50, 3), y=np.arange(50) % 3)
    raw = Path("whole.npz").read_bytes()
    Path("d.npz").write_bytes(raw[: int(keep if keep == int(keep) else keep * len(raw))])
    assert "d.npz cannot be read as an npz archive" in refusal({"name": "npz", "path": "d.npz"})


def test_damaged_bytes_in_an_npz_are_noticed(folder: Path) -> None:
    np.savez_compressed("d.npz", x=np.random.rand(500, 3), y=np.arange(500) % 3)
    raw = bytearray(Path("d.npz").read_bytes())
    raw[200:260] = bytes(60)
    Path("d.npz").write_bytes(raw)
    assert "d.npz" in refusal({"name": "npz", "path": "d.npz"})


def test_an_npz_that_runs_code_is_refused(folder: Path) -> None:
    np.savez("d.npz", x=np.array([object()]), y=np.array([0]))
    assert "d.npz cannot be read" in refusal({"name": "npz", "path": "d.npz"})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"name": "npz"}, "task.data.path is missing"),
        ({"name": "npz", "path": "no.npz"}, "no.npz does not exist"),
        ({"name": "npz", "path": "."}, "does not exist"),
        ({"name": "csv", "path": "text.csv"}, "columns ['a'] are not numbers"),
        ({"name": "csv", "path": "holes.csv"}, "1 of 3 inputs are not finite, first in row 1"),
        ({"name": "csv", "path": "holes.csv", "target": "z"}, "task.data.target is 'z'"),
        ({"name": "csv", "path": "empty.csv"}, "empty.csv cannot be read as CSV"),
        ({"name": "csv", "path": "ragged.csv"}, "ragged.csv cannot be read as CSV"),
        ({"name": "csv", "path": "binary.csv"}, "binary.csv cannot be read as CSV"),
        ({"name": "csv", "path": "one.csv"}, "inputs have the shape (2, 0)"),
        ({"name": "npz", "path": "names.npz"}, "has the arrays ['a']; it must have x (inputs) and y (targets)"),
        ({"name": "factory"}, "needs module:function"),
        ({"name": "factory", "factory": "nowhere_at_all:make"}, "cannot be imported"),
        ({"name": "factory", "factory": "mine:absent"}, "mine defines none of absent"),
        ({"name": "factory", "factory": "mine:broken"}, "mine:broken failed: RuntimeError: no disk"),
        (
            {"name": "factory", "factory": "mine:single"},
            "mine:single returned a list; it must return (inputs, targets)",
        ),
        ({"name": "fashion_mnist", "path": "."}, "train-images-idx3-ubyte.gz does not exist"),
    ],
)
def test_what_cannot_be_read_is_named(folder: Path, config: dict[str, Any], words: str) -> None:
    Path("text.csv").write_text("a,y\nred,0\nblue,1\n")
    Path("holes.csv").write_text("a,y\n1,0\n,1\n3,0\n")
    Path("empty.csv").write_text("")
    Path("ragged.csv").write_text("a,y\n1,0\n1,2,3,4\n")
    Path("binary.csv").write_bytes(bytes(range(128, 256)) * 4)
    Path("one.csv").write_text("y\n0\n1\n")
    np.savez("names.npz", a=np.ones(3))
    Path("mine.py").write_text("def broken(): raise RuntimeError('no disk')\ndef single(): return [1]\n")
    assert words in refusal(config)


# ---------------------------------------------------------------- Fashion-MNIST's form


def _write_idx(folder: Path, *, images: int = 20, labels: int = 20) -> None:
    for part in ("train", "t10k"):
        pixels = np.arange(images * 4, dtype=np.uint8).tobytes()
        header = struct.pack(">BBBBIII", 0, 0, 8, 3, images, 2, 2)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels))
        classes = (np.arange(labels) % 3).astype(np.uint8).tobytes()
        header = struct.pack(">BBBBI", 0, 0, 8, 1, labels)
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + classes))


def test_idx_files_are_read_with_their_own_split(folder: Path) -> None:
    _write_idx(folder)
    task = load_task(DataConfig(name="fashion_mnist", path=str(folder)))
    assert (len(task.train), len(task.validation), task.classes, task.shape) == (20, 20, 3, (1, 2, 2))


@pytest.mark.parametrize("damage", [b"", b"no gzip at all", None])
def test_a_damaged_idx_file_is_named(folder: Path, damage: bytes | None) -> None:
    _write_idx(folder)
    path = folder / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-12] if damage is None else damage)
    assert f"{path} is corrupt" in refusal({"name": "fashion_mnist", "path": str(folder)})


def test_idx_files_that_do_not_belong_together_are_refused(folder: Path) -> None:
    _write_idx(folder, labels=19)
    assert "40 inputs but targets of the shape (38,)" in refusal({"name": "fashion_mnist", "path": str(folder)})


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_itself() -> None:
    task = load_task(DataConfig(name="fashion_mnist", max_samples=1000))
    assert (len(task.train), len(task.validation), task.classes, task.shape) == (1000, 10000, 10, (1, 28, 28))

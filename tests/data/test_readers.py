"""Tables, pictures and shards: what is read, what is left out, what is said of a damaged one."""

from __future__ import annotations

import io
import logging
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from muse_spark_ray.data import DataConfig, load_task
from muse_spark_ray.data.readers import read
from muse_spark_ray.data.readers.shards import parse_example, read_tfrecord
from muse_spark_ray.errors import ConfigError, DataError


def _config(name: Any, path: Path | str, **settings: Any) -> DataConfig:
    return DataConfig(name=name, path=str(path), **settings)


# ---------------------------------------------------------------- Parquet


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for part in range(3):
        rows = np.arange(part * 10, part * 10 + 10)
        columns = {
            "a": rows * 1.0,
            "b": rows * 2.0,
            "who": [f"w{r % 4}" for r in rows],
            "label": [["x", "y"][r % 2] for r in rows],
        }
        pq.write_table(pa.table(columns), tmp_path / f"part{part}.parquet", row_group_size=4)
    return tmp_path


def test_parquet_files_of_a_folder_are_one_table(table: Path) -> None:
    found = read(_config("parquet", table, columns=["b", "a"]))
    assert found.inputs[:, 0].tolist() == [2.0 * row for row in range(30)]
    assert found.targets.tolist() == [row % 2 for row in range(30)]
    assert found.labels == ["x", "y"]


def test_rows_are_chosen_before_they_are_read(table: Path) -> None:
    settings = {"columns": ["a"], "where": [["a", ">=", 12.0], ["label", "==", "y"]]}
    found = read(_config("parquet", table / "*.parquet", **settings))
    assert found.inputs.ravel().tolist() == [13.0, 15.0, 17.0, 19.0, 21.0, 23.0, 25.0, 27.0, 29.0]


def test_a_group_column_is_no_input_and_stays_together(table: Path) -> None:
    config = _config("parquet", table, split="group", group="who", columns=["a"])
    found = read(config)
    assert found.inputs.shape == (30, 1)
    task = load_task(config)
    scaled = {tuple(row) for row in task.train.inputs.tolist()} & {
        tuple(row) for row in task.validation.inputs.tolist()
    }
    assert not scaled


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"where": [["c", "==", 1]]}, r"where names \['c'\]"),
        ({"target": "zz"}, "target is 'zz'"),
        ({"columns": ["who"]}, r"columns \['who'\] are not numbers"),
    ],
)
def test_columns_that_are_not_there_are_named(table: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        read(_config("parquet", table, **settings))


def test_a_condition_that_is_none_is_refused_at_load() -> None:
    with pytest.raises(ValueError, match=r"must be .column, operator, value"):
        _config("parquet", "x", where=[["a", "~", 1]])


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_off_parquet_file_is_named(table: Path, share: float) -> None:
    file = table / "part1.parquet"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read(_config("parquet", table, columns=["a"]))


# ---------------------------------------------------------------- pictures


def _png(value: int, size: tuple[int, int] = (6, 4)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (value, 0, 255)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number, label in enumerate(["cat", "dog"]):
        (tmp_path / label).mkdir()
        for i in range(5):
            (tmp_path / label / f"{i}.png").write_bytes(_png(100 * number + i))
    return tmp_path


def test_a_folder_for_each_class(pictures: Path) -> None:
    found = read(_config("images", pictures))
    assert found.inputs.shape == (10, 3, 4, 6)
    assert found.inputs[7, 0, 0, 0] == pytest.approx(102 / 255)
    assert found.targets.tolist() == [0] * 5 + [1] * 5
    assert found.labels == ["cat", "dog"]
    assert read(_config("images", pictures, image_size=8, greyscale=True)).inputs.shape == (10, 1, 8, 8)
    assert load_task(_config("images", pictures)).about["labels"] == ["cat", "dog"]


def test_train_and_val_folders_are_a_split(tmp_path: Path) -> None:
    for part, count in (("train", 4), ("val", 2)):
        for label in ("a", "b"):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                (tmp_path / part / label / f"{i}.png").write_bytes(_png(i))
    task = load_task(_config("images", tmp_path))
    assert (len(task.train), len(task.validation)) == (8, 4)


def test_a_corrupt_picture_fails_or_is_left_out(pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    (pictures / "dog" / "2.png").write_bytes(_png(1)[:40])
    with pytest.raises(DataError, match=r"dog.2\.png cannot be read"):
        read(_config("images", pictures))
    with caplog.at_level(logging.WARNING):
        found = read(_config("images", pictures, on_corrupt="skip"))
    assert len(found.targets) == 9
    assert "1 of the data's files or records could not be read" in caplog.text


def test_pictures_of_several_sizes_need_one(pictures: Path) -> None:
    (pictures / "dog" / "9.png").write_bytes(_png(1, (9, 9)))
    with pytest.raises(DataError, match="all must have the same") as caught:
        read(_config("images", pictures))
    assert "image_size" in str(caught.value.hint)


def test_a_folder_without_classes_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds 0 folder\(s\) of classes"):
        read(_config("images", tmp_path))


# ---------------------------------------------------------------- decoded copies


def test_a_decoded_copy_is_read_in_place_of_the_pictures_until_they_change(
    pictures: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path_factory.mktemp("copies")
    settings = {"cache": str(copies), "image_size": 4}
    first = read(_config("images", pictures, **settings))
    with monkeypatch.context() as without:
        without.setattr(Image, "open", _no_decoder)
        again = read(_config("images", pictures, **settings))
    assert np.array_equal(first.inputs, again.inputs)
    assert first.targets.tolist() == again.targets.tolist()
    assert again.labels == ["cat", "dog"]
    assert load_task(_config("images", pictures, **settings)).about["labels"] == ["cat", "dog"]
    assert read(_config("images", pictures, **{**settings, "image_size": 8})).inputs.shape == (10, 3, 8, 8)
    (pictures / "cat" / "0.png").write_bytes(_png(77))
    changed = read(_config("images", pictures, **settings))
    assert changed.inputs[0, 0, 0, 0] == pytest.approx(77 / 255)
    assert not list(copies.glob("partial-*"))


def _no_decoder(*_: Any) -> None:
    raise AssertionError("a picture was decoded again")


def test_groups_survive_in_a_decoded_copy(table: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"columns": ["a"], "split": "group", "group": "who", "cache": str(tmp_path_factory.mktemp("copies"))}
    first, again = (read(_config("parquet", table, **settings)) for _ in range(2))
    assert first.keys is not None
    assert again.keys is not None
    assert first.keys.tolist() == again.keys.tolist()
    assert len(load_task(_config("parquet", table, **settings)).train) > 0


def test_a_damaged_copy_is_made_anew_and_a_full_disk_keeps_none(
    pictures: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    copies = tmp_path_factory.mktemp("copies")
    first = read(_config("images", pictures, cache=str(copies)))
    (inputs,) = copies.glob("*/inputs.npy")
    inputs.write_bytes(inputs.read_bytes()[:90])
    with caplog.at_level(logging.WARNING):
        again = read(_config("images", pictures, cache=str(copies)))
        assert np.array_equal(first.inputs, again.inputs)
        assert "is made anew" in caplog.text
        (copies / "a file").write_text("")
        elsewhere = read(_config("images", pictures, cache=str(copies / "a file")))
    assert np.array_equal(first.inputs, elsewhere.inputs)
    assert "decoded data are not kept" in caplog.text


def test_a_copy_is_for_files_only() -> None:
    with pytest.raises(ValueError, match="cache is for sources of files"):
        DataConfig(name="digits", cache="/tmp/copies")


# ---------------------------------------------------------------- tar shards


def _shard(path: Path, samples: list[tuple[str, dict[str, bytes]]]) -> Path:
    with tarfile.open(path, "w") as shard:
        for key, parts in samples:
            for suffix, content in parts.items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(content)
                shard.addfile(info, io.BytesIO(content))
    return path


def _npy(value: float) -> bytes:
    out = io.BytesIO()
    np.save(out, np.full((2, 3), value, np.float32))
    return out.getvalue()


def test_tar_shards_hold_samples_of_several_files(tmp_path: Path) -> None:
    for shard in range(2):
        samples = [(f"{shard:03d}{i}", {"png": _png(10 * shard + i), "cls": str(i % 2).encode()}) for i in range(3)]
        _shard(tmp_path / f"data-{shard}.tar", samples)
    found = read(_config("webdataset", tmp_path))
    assert found.targets.tolist() == [0, 1, 0] * 2
    assert np.round(found.inputs[:, 0, 0, 0] * 255).tolist() == [0, 1, 2, 10, 11, 12]
    arrays = _shard(tmp_path / "arrays.tar", [(f"s{i}", {"npy": _npy(i), "cls": b"1"}) for i in range(2)])
    assert read(_config("webdataset", arrays)).inputs[:, 0, 0].tolist() == [0.0, 1.0]


def test_a_sample_without_a_class_and_a_cut_off_shard(tmp_path: Path) -> None:
    whole = [(f"s{i}", {"npy": _npy(i), "cls": b"1"}) for i in range(4)]
    odd = _shard(tmp_path / "odd.tar", [*whole, ("s9", {"npy": _npy(9)})])
    with pytest.raises(DataError, match=r"odd\.tar: s9 has the parts \['npy'\]"):
        read(_config("webdataset", odd))
    assert len(read(_config("webdataset", odd, on_corrupt="skip")).targets) == 4
    cut = tmp_path / "cut.tar"
    cut.write_bytes(odd.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"shard .*cut\.tar is corrupt"):
        read(_config("webdataset", cut))
    assert 0 < len(read(_config("webdataset", cut, on_corrupt="skip")).targets) < 4


# ---------------------------------------------------------------- TFRecord


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _example(features: dict[str, Any]) -> bytes:
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            kind, raw = 1, b"".join(_field(1, value) for value in values)
        elif isinstance(values[0], float):
            kind, raw = 2, _field(1, struct.pack(f"<{len(values)}f", *values))
        else:
            kind, raw = 3, _field(1, b"".join(map(_varint, values)))
        entries += _field(1, _field(1, name.encode()) + _field(2, _field(kind, raw)))
    return _field(1, entries)


def _masked(content: bytes) -> bytes:
    crc = pytest.importorskip("google_crc32c").value(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _tfrecord(path: Path, examples: list[bytes]) -> Path:
    records = [(struct.pack("<Q", len(e)), e) for e in examples]
    path.write_bytes(b"".join(size + _masked(size) + e + _masked(e) for size, e in records))
    return path


def test_an_example_holds_numbers_and_bytes() -> None:
    found = parse_example(_example({"a": [1.5, -2.0], "b": [3, -4, 1 << 40], "c": [b"xy", b""]}))
    assert found["a"].tolist() == [1.5, -2.0]
    assert found["b"].tolist() == [3, -4, 1 << 40]
    assert found["c"] == [b"xy", b""]


def test_records_become_rows(tmp_path: Path) -> None:
    examples = [_example({"x": [float(i), 1.0], "z": [0.5], "label": [i % 3]}) for i in range(6)]
    found = read(_config("tfrecord", _tfrecord(tmp_path / "a.tfrecord", examples), target="label"))
    assert found.inputs.tolist() == [[float(i), 1.0, 0.5] for i in range(6)]
    assert found.targets.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ConfigError, match="target is 'y'"):
        read(_config("tfrecord", tmp_path, target="y"))


@pytest.mark.parametrize("damage", ["flip", "cut", "length"])
def test_a_damaged_record_is_noticed(tmp_path: Path, damage: str) -> None:
    examples = [_example({"x": [float(i)], "label": [i % 2]}) for i in range(5)]
    file = _tfrecord(tmp_path / "a.tfrecord", examples)
    raw = bytearray(file.read_bytes())
    size = len(raw) // 5
    if damage == "flip":
        raw[3 * size + 20] ^= 4
    elif damage == "length":
        raw[3 * size] ^= 1
    file.write_bytes(bytes(raw[: 3 * size + 20] if damage == "cut" else raw))
    with pytest.raises(DataError, match="corrupt at record 3"):
        list(read_tfrecord(file))
    assert len(read(_config("tfrecord", file, target="label", on_corrupt="skip")).targets) == 3


def test_a_hugging_face_set_from_a_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `huggingface` is not installed")
    datasets.Dataset.from_dict({"a": [1.0, 2.0, 3.0], "y": [0, 1, 0]}).save_to_disk(str(tmp_path / "set"))
    assert read(_config("huggingface", tmp_path / "set")).targets.tolist() == [0, 1, 0]

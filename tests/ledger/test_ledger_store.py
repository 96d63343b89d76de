from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyarrow import fs

from muse_spark_ray.errors import ConfigError, StoreError
from muse_spark_ray.ledger import Store, check_name
from muse_spark_ray.ledger.local import LocalStore
from muse_spark_ray.ledger.remote import RemoteStore


def generic(folder: Path) -> Store:
    return RemoteStore(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "")


@pytest.fixture(params=["local", "file-uri", "generic"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "local":
            return Store.open(tmp_path / "store")
        case "file-uri":
            return Store.open((tmp_path / "with space").as_uri())
    return generic(tmp_path)


def test_files_appear_whole_and_are_replaced(store: Store) -> None:
    store.write_atomic("a/b/c.bin", b"one")
    store.write_atomic("a/b/c.bin", b"two")
    assert store.read_bytes("a/b/c.bin") == b"two"
    assert store.list("a") == ["b"]
    assert store.list("a/b") == ["c.bin"]
    assert store.exists("a/b/c.bin")
    assert store.exists("a/b")


def test_what_is_not_there(store: Store) -> None:
    assert store.list("nowhere") == []
    assert not store.exists("nowhere")
    with pytest.raises(FileNotFoundError):
        store.read_bytes("nowhere/x")
    store.delete("nowhere/x")


def test_write_new_never_replaces(store: Store) -> None:
    store.write_new("s/spec.yaml", b"first")
    with pytest.raises(FileExistsError):
        store.write_new("s/spec.yaml", b"second")
    assert store.read_bytes("s/spec.yaml") == b"first"
    assert store.list("s") == ["spec.yaml"]


def test_delete_removes_one_file(store: Store) -> None:
    store.require_writable()
    store.write_atomic("a/x", b"")
    store.write_atomic("a/y", b"")
    store.delete("a/x")
    assert store.list("a") == ["y"]


def test_file_uri_with_escapes_is_the_folder(tmp_path: Path) -> None:
    assert Store.open((tmp_path / "with space").as_uri()).uri == str(tmp_path / "with space")


def test_opening_a_store_makes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    assert store.list() == []
    assert not (tmp_path / "store").exists()


def test_default_store_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSE_SPARK_STORE", str(tmp_path / "chosen"))
    assert Store.open().uri == str(tmp_path / "chosen")
    monkeypatch.delenv("MUSE_SPARK_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Store.open().uri == str(tmp_path / "muse_spark_ray" / "sweeps")


def test_store_below_a_file_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store.open(tmp_path / "file" / "store")
    with pytest.raises(ConfigError, match="file/store is not writable"):
        store.require_writable()
    with pytest.raises(ConfigError, match="is not writable"):
        store.write_atomic("a/b", b"")
    with pytest.raises(ConfigError, match="a file has the name of the folder"):
        Store.open(tmp_path / "file").require_writable()


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "a" / "taken").mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot be written"):
        store.write_atomic("a/taken", b"x")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["taken"]


def test_unreachable_bucket_is_told_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"s3://bucket/sweeps.* cannot be reached") as raised:
        Store.open("s3://key:secret@bucket/sweeps?endpoint_override=http%3A%2F%2F127.0.0.1%3A9&region=us-east-1")
    assert time.monotonic() - began < 15
    assert raised.value.exit_code == 5
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("uri", ["foo://bucket/x", "s3://bucket/x?colour=red", "s3:///x", "file://host/x"])
def test_uri_of_no_known_kind_is_a_config_error(uri: str) -> None:
    with pytest.raises(ConfigError, match="store is"):
        Store.open(uri)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a b", "ä", "x" * 65, "a\n", "/etc", "a.b", "\0"])
def test_names_that_could_leave_the_store_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 64"):
        check_name("sweep", name)


def test_names_that_are_allowed() -> None:
    assert [check_name("trial", name) for name in ("a", "A-b_9", "x" * 64)] == ["a", "A-b_9", "x" * 64]

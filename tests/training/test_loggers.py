"""Numbers while a training runs: the JSON-lines file, TensorBoard, and loggers that fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from toys import blobs, small_net, trained

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.errors import ConfigError


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_line_an_epoch_lies_beside_the_checkpoints_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    for epochs in (2, 4):
        trained(small_net(), blobs(), epochs=epochs, validation=blobs(30), checkpoint={"save_dir": str(tmp_path)})
    lines = _lines(tmp_path)
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert all(line["val_loss"] > 0 and line["lr"] == 0.1 for line in lines)
    assert lines[-1]["training_seconds_left"] == 0


def test_hours_and_money_are_told_at_a_known_price(tmp_path: Path) -> None:
    price = 3600.0
    trainer = trained(
        small_net(), blobs(), epochs=3, checkpoint={"save_dir": str(tmp_path)}, logging={"usd_per_device_hour": price}
    )
    lines = _lines(tmp_path)
    spent = [sum(e["samples"] / e["samples_per_second"] for e in trainer.history[: n + 1]) for n in range(3)]
    assert [line["device_hours"] * 3600 for line in lines] == pytest.approx(spent)
    assert [line["cost_usd"] for line in lines] == pytest.approx(spent)
    assert lines[0]["cost_usd_left"] == pytest.approx(2 * spent[0])
    assert lines[-1]["cost_usd_left"] == 0


def test_without_a_price_no_money_is_told(tmp_path: Path) -> None:
    trained(small_net(), blobs(), epochs=1, checkpoint={"save_dir": str(tmp_path)})
    (line,) = _lines(tmp_path)
    assert line["device_hours"] > 0
    assert not {"cost_usd", "cost_usd_left"} & set(line)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained(small_net(), blobs(), epochs=1)
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    trained(small_net(), blobs(), epochs=2, logging={"tensorboard": str(tmp_path)})
    (file,) = tmp_path.glob("events.out.tfevents*")
    raw = file.read_bytes()
    assert raw.count(b"train_loss") == 2
    assert raw.count(b"samples_per_second") == 2


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_not_there_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    trainer = MuseSparkTrainer(small_net(), None, None, blobs(), None, {"logging": {name: "x"}})
    with pytest.raises(ConfigError, match=rf"logging\.{name} needs the package {name}"):
        trainer.fit(1)


class _Server(ModuleType):
    """A tracking package that takes down what it is told, and is away from the second epoch on."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._take(name, args, kwargs)

    def _take(self, name: str, args: Any, kwargs: Any) -> None:
        self.calls.append((name, args))
        if name == "log_metrics" and kwargs["step"] == 2:
            raise ConnectionError("server is away")


def test_a_server_that_is_away_does_not_end_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = _Server()
    monkeypatch.setitem(sys.modules, "mlflow", server)
    trainer = trained(small_net(), blobs(), epochs=4, logging={"mlflow": "http://127.0.0.1:1", "experiment": "e"})
    assert trainer.get_training_report()["epochs"] == 4
    names = [name for name, _ in server.calls]
    assert names == ["set_tracking_uri", "set_experiment", "start_run", "log_dict", "log_metrics", "log_metrics"]
    assert "MLflow is left out from now on: ConnectionError: server is away" in caplog.text

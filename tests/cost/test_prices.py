from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from muse_spark_ray.cost import Interval, PriceBook, accelerator_name
from muse_spark_ray.cost.accelerators import resource_key
from muse_spark_ray.cost.offers import catalogue_prices
from muse_spark_ray.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text)
    return path


def test_price_change_in_the_middle_of_an_interval():
    """C2: ten minutes at $1.0/h, then twenty at $3.0/h."""
    book = PriceBook({"gpu": [(0, 1.0), (600, 3.0)]})
    assert book.usd(Interval("t", "gpu", 1, 0, 1800, "train")) == pytest.approx(1.166667, abs=1e-6)
    assert [book.usd_per_hour("gpu", at) for at in (-5, 0, 599, 600, 1e9, None)] == [1, 1, 1, 3, 3, 3]


def test_first_price_holds_before_its_time():
    book = PriceBook({"cpu": [(1000, 2.0), (2000, 4.0)]})
    assert book.usd(Interval("t", "cpu", 1, 0, 3600, "train")) == pytest.approx((2000 * 2 + 1600 * 4) / 3600)


def test_exact_at_real_times():
    book = PriceBook({"gpu": [(1.79e9, 1.0), (1.79e9 + 600, 3.0)]})
    assert book.usd(Interval("t", "gpu", 1, 1.79e9, 1.79e9 + 1800, "train")) == pytest.approx(7 / 6, rel=1e-12)


def test_unknown_price_is_none_and_never_a_guess():
    book = PriceBook({"cpu": 0.04})
    assert book.usd_per_hour("gpu:H100") is None
    assert book.usd(Interval("t", "gpu:H100", 1, 0, 10, "train")) is None
    assert book.usd(Interval("t", "gpu:H100", 1, 0, 10, "wait")) == 0
    assert PriceBook.load().usd_per_hour("gpu") is None
    assert PriceBook.load().usd_per_hour("gpu:H100@nowhere") is None
    assert PriceBook.load().usd_per_hour("gpu:MI300X") is None
    assert "gpu:MI300X" in PriceBook.load().describe("gpu:MI300X")


def test_cpus_of_a_gpu_host_are_in_the_price_of_the_gpu():
    assert PriceBook.load().usd(Interval("t", "host_cpu", 8, 0, 3600, "train")) == 0


def test_catalogue_gives_medians_over_offers():
    book = PriceBook.load()
    # Eight for $6.32 in every region of the source.
    assert book.usd_per_hour("gpu:V100@lambda") == pytest.approx(0.79)
    assert book.describe("gpu:A10G@aws") == "median of 12 on-demand offers, catalogue 2026-12-01"
    assert book.describe("gpu:A10G@aws:spot") == "median of 12 spot offers, catalogue 2026-12-01"
    assert book.usd_per_hour("cpu") == pytest.approx((0.029200 + 0.045519) / 2)
    assert book.as_of == "2026-12-01"
    assert "catalogue 2026-12-01" in book.source


def test_any_spelling_of_a_name_finds_the_same_price():
    book = PriceBook.load()
    right = book.usd_per_hour("gpu:A100-80GB")
    assert right is not None
    for name in ("gpu:a100-80gb", "gpu:NVIDIA A100-SXM4-80GB", "gpu:A100-80GB-SXM", "gpu:A100-80GB:on-demand"):
        assert book.usd_per_hour(name) == right
    assert book.usd_per_hour("gpu:H100@RunPod:spot") == book.usd_per_hour("gpu:h100@runpod:spot") is not None


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("Quadro RTX 6000", "RTX6000"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("A100-80G", "A100-80GB"),
        ("RTX-A6000", "RTXA6000"),
        ("A6000", "RTXA6000"),
        ("H200-SXM", "H200"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX-4090-Laptop-GPU"),
        ("NVIDIA L40", "L40"),
        ("AMD Instinct MI300X", "AMD-Instinct-MI300X"),
    ],
)
def test_driver_names_map_to_catalogue_names(device, name):
    assert accelerator_name(device) == name


def test_names_stay_as_they_are_when_mapped_again():
    for key in catalogue_prices():
        assert resource_key(key) == key


def test_own_prices_win_and_hold_for_narrower_names_but_not_for_spot(tmp_path):
    book = PriceBook.load(written(tmp_path, "as_of: 2026-11-30\nusd_per_hour: {'gpu:H100': 2.5, cpu: 3e-2}\n"))
    assert book.usd_per_hour("gpu:NVIDIA H100 80GB HBM3@aws") == 2.5
    assert book.usd_per_hour("gpu:H100@runpod:spot") == PriceBook.load().usd_per_hour("gpu:H100@runpod:spot")
    assert book.usd_per_hour("cpu@aws") == 0.03
    assert book.usd_per_hour("gpu:T4") == PriceBook.load().usd_per_hour("gpu:T4")
    assert book.describe("gpu:H100") == "prices.yaml of 2026-11-30"
    assert book.as_of == "2026-11-30"
    assert PriceBook({"gpu": 1.5}).usd_per_hour("gpu:H100@lambda:spot") == 1.5


def test_price_changes_in_the_file_are_utc(tmp_path):
    text = "usd_per_hour:\n  gpu:\n    - [2026-12-01T00:00:00Z, 1.0]\n    - [2026-12-01 00:10:00, 3.0]\n"
    book = PriceBook.load(written(tmp_path, text))
    began = 1_796_083_200.0
    assert book.usd(Interval("t", "gpu", 1, began, began + 1800, "train")) == pytest.approx(7 / 6)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("usd_per_hours: {cpu: 1}", ["usd_per_hours"]),
        ("usd_per_hour: {gpus: 1}", ["usd_per_hour.gpus"]),
        ("usd_per_hour: {host_cpu: 1}", ["host_cpu", "includes"]),
        ("usd_per_hour: {'gpu:H100:sport': 1}", ["gpu:H100:sport"]),
        ("usd_per_hour: {cpu: -1}", ["usd_per_hour.cpu", "-1"]),
        ("usd_per_hour: {cpu: cheap}", ["usd_per_hour.cpu", "cheap"]),
        ("usd_per_hour: {cpu: true}", ["usd_per_hour.cpu", "True"]),
        ("usd_per_hour: {cpu: .nan}", ["usd_per_hour.cpu", "nan"]),
        ("usd_per_hour: {cpu: []}", ["usd_per_hour.cpu", "empty"]),
        ("usd_per_hour: {cpu: [[5, 1], [5, 2]]}", ["usd_per_hour.cpu", "ascend"]),
        ("usd_per_hour: {cpu: [[soon, 1]]}", ["usd_per_hour.cpu[0]", "soon"]),
        ("usd_per_hour: {cpu: [1]}", ["usd_per_hour.cpu[0]"]),
        ("usd_per_hour: {'gpu:H100': 1, 'gpu:h100-sxm': 2}", ["gpu:h100-sxm", "twice"]),
        ("usd_per_hour: {1: 1}", ["usd_per_hour.1"]),
        ("usd_per_hour: 3", ["usd_per_hour is 3"]),
        ("currency: EUR\nusd_per_hour: {cpu: 1}", ["currency", "EUR"]),
        ("[1, 2]", ["list"]),
        ("usd_per_hour: {cpu: ", ["not valid YAML"]),
        ("usd_per_hour: !!python/object/apply:os.getcwd []", ["not valid YAML"]),
    ],
)
def test_wrong_price_files_are_refused_by_file_and_key(tmp_path, text, parts):
    with pytest.raises(ConfigError) as caught:
        PriceBook.load(written(tmp_path, text))
    assert "prices.yaml" in caught.value.message
    assert all(part in caught.value.message for part in parts)


def test_missing_price_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        PriceBook.load(tmp_path / "absent.yaml")


def test_wrong_prices_in_code_are_refused():
    with pytest.raises(ConfigError, match=r"usd_per_hour\.gpu is 'two'"):
        PriceBook({"gpu": "two"})  # type: ignore[dict-item]


def test_book_survives_json(tmp_path):
    book = PriceBook.load(written(tmp_path, "usd_per_hour: {'gpu:T4': [[0, 1], [60, 2]], 'gpu:Own Card': 0}\n"))
    again = PriceBook.from_dict(json.loads(json.dumps(book.to_dict(), allow_nan=False)))
    assert again.to_dict() == book.to_dict()
    for name in ("gpu:T4", "gpu:own-card", "cpu", "gpu:H100@aws"):
        assert again.schedule(name) == book.schedule(name)
        assert again.describe(name) == book.describe(name)
    with pytest.raises(ConfigError, match="stored prices"):
        PriceBook.from_dict({"as_of": None})


def test_sum_over_parts_of_an_interval_is_the_whole():
    dice = random.Random(3)
    book = PriceBook({"cpu": [(float(100 * k), dice.random()) for k in range(20)]})
    borders = sorted([0.0, 2500.0, *(dice.uniform(0, 2500) for _ in range(30))])
    parts = [book.usd(Interval("t", "cpu", 3, a, b, "train")) for a, b in itertools.pairwise(borders)]
    whole = book.usd(Interval("t", "cpu", 3, 0, 2500, "train"))
    assert whole == pytest.approx(sum(part for part in parts if part is not None))

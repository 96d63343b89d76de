"""The report page: complete, offline, deaf to hostile names (S10), useful when there is nothing to show."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from report_sweeps import TableSweep, digits_sweep, empty_sweep

from muse_spark_ray.cost import Interval, PriceBook
from muse_spark_ray.errors import ConfigError
from muse_spark_ray.ledger import LedgerWriter, Store, create_sweep
from muse_spark_ray.report import plots
from muse_spark_ray.report.html import write_plot, write_report
from muse_spark_ray.sweep import Sweep

ATTACK = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
PLOTS = {"front", "hypervolume", "phases", "curves", "parallel"}


class Page(HTMLParser):
    """What a browser would see: tags with attributes, script bodies, visible text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def figures(self) -> dict[str, dict[str, object]]:
        return dict(json.loads(next(script for script in self.scripts if script.startswith("{"))))


def hostile_sweep() -> TableSweep:
    sweep = digits_sweep(name=ATTACK)
    trials = sweep.trials_table
    best = sweep.front()["trial"].iloc[-1]
    trials.loc[trials["trial"] == best, "config"] = json.dumps({"model": {"name": ATTACK}, ATTACK: 1})
    trials.loc[trials["state"] == "failed", "error"] = ATTACK
    renames = {best: ATTACK}
    sweep.trials_table = trials.assign(trial=trials["trial"].replace(renames))
    sweep.points_table = sweep.points_table.assign(trial=sweep.points_table["trial"].replace(renames))
    return sweep


def test_report_shows_headline_front_plots_and_failures(digits: TableSweep, tmp_path: Path) -> None:
    page = Page(write_report(digits, tmp_path / "report.html"))
    for part in ("digits", "finished", "22", "$0.00641", "knee", "loss was NaN in 20 steps", "muse_spark_ray 0.1.0"):
        assert part in page.text
    assert set(page.figures) == PLOTS
    assert {attrs["id"] for tag, attrs in page.tags if attrs.get("class") == "plot"} == {
        f"plot-{name}" for name in PLOTS
    }
    assert "15 on the front · 249 dominated · 6 failed (excluded)" in page.text


def test_report_loads_nothing_and_forbids_the_network(digits: TableSweep, tmp_path: Path) -> None:
    page = Page(write_report(digits, tmp_path / "report.html"))
    loads = [(tag, attrs[key]) for tag, attrs in page.tags for key in ("src", "href", "data", "action") if key in attrs]
    assert loads == [("link", "data:,")]
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy
    assert not re.search(r"script-src[^;]*unsafe|https?:|\*", policy)
    assert "@import" not in "".join(page.texts)


def test_hostile_names_stay_text_in_html_and_json_s10(tmp_path: Path) -> None:
    path = write_report(hostile_sweep(), tmp_path / "report.html")
    page = Page(path)
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    figures = next(script for script in page.scripts if script.startswith("{"))
    assert not set("<>&") & set(figures)
    assert ATTACK in page.text
    assert set(page.figures) == PLOTS


def test_report_of_nothing_says_so(tmp_path: Path) -> None:
    page = Page(write_report(empty_sweep(), tmp_path / "report.html"))
    assert "No trial has been started yet." in page.text
    assert page.figures == {}


def test_report_of_failures_gives_the_reasons(tmp_path: Path) -> None:
    page = Page(write_report(empty_sweep(n_failed=3), tmp_path / "report.html"))
    assert "All 3 trials failed" in page.text
    assert "data file 2 is missing" in page.text


def test_report_of_points_that_are_all_nan_says_so(digits: TableSweep, tmp_path: Path) -> None:
    digits.points_table = digits.points_table.assign(accuracy=float("nan"))
    page = Page(write_report(digits, tmp_path / "report.html"))
    assert "The front is empty" in page.text
    assert set(page.figures) == {"phases"}


def test_report_replaces_the_old_file_and_leaves_no_other(digits: TableSweep, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(digits, path)
    write_report(empty_sweep(), path)
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    assert "No trial has been started yet." in Page(path).text


def test_a_path_that_cannot_be_written_is_named(digits: TableSweep, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*file/report\.html"):
        write_report(digits, tmp_path / "file" / "report.html")


def front_figure(sweep: TableSweep) -> object:
    return plots.front_plot(sweep.points(), sweep.front(), sweep.objectives)


def test_one_plot_is_an_offline_page_too(digits: TableSweep, tmp_path: Path) -> None:
    page = Page(write_plot(front_figure(digits), tmp_path / "front.html"))  # type: ignore[arg-type]
    assert set(page.figures) == {"one"}
    assert "Front: accuracy against cost (USD)" in page.text


def test_an_unknown_ending_names_the_allowed_ones(digits: TableSweep, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.pdf; it can end in \.html, \.png or \.svg"):
        write_plot(front_figure(digits), tmp_path / "front.pdf")  # type: ignore[arg-type]


@pytest.mark.skipif(find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_a_picture_without_matplotlib_says_what_to_install(digits: TableSweep, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs matplotlib") as caught:
        write_plot(front_figure(digits), tmp_path / "front.png")  # type: ignore[arg-type]
    assert caught.value.hint == 'pip install "muse-spark-ray[plot]"'


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures_are_drawn_by_matplotlib(digits: TableSweep, tmp_path: Path, kind: str, start: bytes) -> None:
    path = write_plot(front_figure(digits), tmp_path / f"front.{kind}")  # type: ignore[arg-type]
    assert path.read_bytes().startswith(start)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[Path], tuple[str, list[str]]]:
    """Load a page in a real browser; returns the finished DOM and what it wrote to the console."""
    flags = "--headless --no-sandbox --disable-gpu --virtual-time-budget=5000 --no-first-run --enable-logging=stderr"
    quiet = "--disable-background-networking --disable-component-update --disable-sync"

    def load(path: Path) -> tuple[str, list[str]]:
        command = [str(CHROMIUM), *flags.split(), *quiet.split(), f"--user-data-dir={tmp_path / 'profile'}"]
        command += ["--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return load


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("make", [digits_sweep, hostile_sweep], ids=["digits", "hostile"])
def test_a_browser_draws_all_plots_without_a_complaint(
    make: Callable[[], TableSweep], browse: Callable[[Path], tuple[str, list[str]]], tmp_path: Path
) -> None:
    dom, console = browse(write_report(make(), tmp_path / "report.html"))
    assert console == []
    for name in PLOTS:
        drawn = dom.split(f'id="plot-{name}"')[1].split("</section>")[0]
        assert "main-svg" in drawn
    assert "<title>pwned" not in dom


def test_points_of_a_running_sweep_are_reported(digits: TableSweep, tmp_path: Path) -> None:
    states = digits.trials_table["state"].where(digits.trials_table.index > 3, "running")
    digits.trials_table = digits.trials_table.assign(state=states, error=None)
    digits.points_table = digits.points_table.assign(
        state=digits.points_table["trial"].map(pd.Series(states.values, index=digits.trials_table["trial"]))
    )
    page = Page(write_report(digits, tmp_path / "report.html"))
    assert "4 running" in page.text
    assert "no reason was recorded" in page.text


def test_a_stored_sweep_is_reported(digits: TableSweep, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    create_sweep(store, "stored", spec="name: stored\nbudget: {trials: 24}\n", prices=PriceBook.load().to_dict())
    writer, points = LedgerWriter(store, "stored"), digits.points()
    for row in digits.trials().to_dict("records"):
        mine = points[points["trial"] == row["trial"]]
        ends = 1e9 + mine["hours"] * 3600
        epochs = mine[["trial", "epoch", "accuracy"]].assign(end=ends).to_dict("records")
        spans = zip([1e9, *ends[:-1]], ends, strict=True)
        writer.append(
            trials=[{"trial": row["trial"], "state": row["state"], "config": row["config"], "error": row["error"]}],
            epochs=epochs,
            intervals=[Interval(row["trial"], "cpu", 1.0, start, end, "train") for start, end in spans],
        )
    sweep = Sweep.open(store, "stored")
    page = Page(write_report(sweep, tmp_path / "report.html"))
    assert f"{len(sweep.front())} on the front" in page.text
    assert set(page.figures) == PLOTS

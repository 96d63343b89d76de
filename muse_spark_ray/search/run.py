"""Runs a sweep from a spec to its last word: Ray, gangs, engine, ticker, signals."""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import yaml

from muse_spark_ray.cost import PriceBook
from muse_spark_ray.data import load_task
from muse_spark_ray.errors import ConfigError, DataError, MuseSparkError
from muse_spark_ray.ledger import Driver, Store, create_sweep
from muse_spark_ray.runtime.gang import GangShape
from muse_spark_ray.runtime.pool import Pool
from muse_spark_ray.runtime.session import open_ray
from muse_spark_ray.search.engine import Engine, Verdict
from muse_spark_ray.search.tuning import proxy_slots, run_tune
from muse_spark_ray.spec.load import load_spec_text
from muse_spark_ray.spec.metrics import unfit
from muse_spark_ray.spec.sweep import SweepSpec
from muse_spark_ray.sweep import Sweep

logger = logging.getLogger(__name__)
TICK_SECONDS = 0.5
TICKS_PER_BEAT = 8
# Light trials beyond the gangs: their configs wait in the broker's queue when a gang becomes free.
SPARE_PROXIES = 1
CLOSE_SECONDS = 10.0

OnTick = Callable[[Engine], None]


def start_sweep(spec: SweepSpec, store: Store) -> None:
    """Write a new sweep into its store, after a look at the data that it will train on.

    Raises:
        ConfigError: If the name is used, or the store or the price file cannot be used.
        DataError: If the data is missing or broken.
    """
    prices = PriceBook.load(spec.prices_path)
    _check_task(spec)
    text = yaml.safe_dump(spec.model_dump(mode="json", by_alias=True, exclude_unset=True), sort_keys=False)
    create_sweep(store, spec.name, spec=text, prices=prices.to_dict())


def stored_spec(store: Store, name: str) -> SweepSpec:
    """Return the spec of a sweep in a store, to go on with it."""
    sweep = Sweep.open(store, name)
    text = store.read_bytes(f"{sweep.name}/spec.yaml").decode()
    return load_spec_text(text, where=f"spec.yaml of sweep {name}")


def run_sweep(spec: SweepSpec, store: Store, *, address: str | None, on_tick: OnTick) -> Verdict:
    """Run a stored sweep until its budget, its end, or a request to stop.

    Args:
        spec: What is searched.
        store: Holds the sweep; its finished trials are not run again.
        address: Ray cluster to join, None for one on this machine that ends with the sweep.
        on_tick: Called about twice a second with the engine, to show what happens.

    Returns:
        Why it ended; the ledger says the same.

    Raises:
        ConfigError: If another driver runs this sweep.
        ClusterError: If Ray or its gangs cannot be had.
    """
    driver = Driver.claim(store, spec.name)
    try:
        if (verdict := nothing_to_do(spec, store)) is not None:
            driver.close(verdict.state, reason=verdict.reason)
            return verdict
        with open_ray(address, num_cpus=None) as session:
            verdict = _run(spec, store, driver, on_tick, is_embedded=session.is_embedded)
    except (KeyboardInterrupt, SystemExit) as error:
        # While Ray starts, SIGTERM meets Ray's own handler, which exits.
        by = "SIGTERM" if isinstance(error, SystemExit) else "the keyboard"
        verdict = Verdict("interrupted", f"interrupted by {by}", keeps_trials=True)
        driver.close(verdict.state, reason=verdict.reason)
    except BaseException as error:
        driver.close("failed", reason=str(error))
        raise
    return verdict


def _run(spec: SweepSpec, store: Store, driver: Driver, on_tick: OnTick, *, is_embedded: bool) -> Verdict:
    import ray

    cluster: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    shape = GangShape(spec.resources.workers, spec.resources.cpus_per_worker, spec.resources.gpus_per_worker)
    gangs = gang_count(spec, shape, cluster)
    folder = store.local_path(f"{spec.name}/gangs")
    pool = Pool.start(shape, gangs, storage_dir=str(folder or "/tmp/muse_spark_ray/gangs"), name=spec.name)
    try:
        prices = Sweep(store, spec.name).prices
        expected = {"cpu": float(shape.workers * shape.cpus_per_worker)}
        engine = Engine(
            spec,
            store,
            pool=pool,
            prices=prices,
            proxies=gangs + SPARE_PROXIES,
            resources=expected,
            predecessor_died=driver.predecessor_died,
        )
        with _stops_on_signals(engine), _ticking(engine, driver, on_tick):
            run_tune(engine, slots=proxy_slots(cluster))
        pool.close(0.0 if is_embedded else CLOSE_SECONDS)
        engine.book_gangs()
        verdict = engine.close()
        driver.close(verdict.state, reason=verdict.reason)
        return verdict
    finally:
        pool.close(0.0)


def nothing_to_do(spec: SweepSpec, store: Store) -> Verdict | None:
    """Return how a sweep has ended if all trials of its budget have, so that resuming it starts nothing."""
    states = list(Sweep(store, spec.name).trials()["state"])
    if spec.budget.trials is None or len(states) < spec.budget.trials or {"pending", "running"} & set(states):
        return None
    return Verdict("finished", f"all {spec.budget.trials} trials of the budget are done")


def gang_count(spec: SweepSpec, shape: GangShape, cluster: dict[str, float]) -> int:
    """Return how many gangs to start: as many as fit, at most as many as asked for or as there are trials.

    Raises:
        ConfigError: If not even one fits on a cluster that has what it needs of each kind.
    """
    needs = {"CPU": shape.workers * shape.cpus_per_worker, "GPU": shape.workers * shape.gpus_per_worker}
    fits = [math.floor(cluster.get(name, 0.0) / amount) for name, amount in needs.items() if amount > 0]
    limits = [limit for limit in (spec.resources.concurrency, spec.budget.trials) if limit is not None]
    if min(fits) < 1:
        there = ", ".join(f"{cluster.get(name, 0.0):g} {name}" for name, amount in needs.items() if amount > 0)
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount > 0)
        raise ConfigError(
            f"one trial needs {wanted} (resources), Ray has {there}.",
            hint="lower resources.workers or resources.cpus_per_worker",
        )
    return min([*fits, *limits])


def _check_task(spec: SweepSpec) -> None:
    """Read the data once on the driver, so that what is wrong with it is said before anything starts."""
    try:
        task = load_task(spec.task.data)
    except MuseSparkError:
        raise
    except Exception as error:
        raise DataError(f"task.data cannot be loaded: {type(error).__name__}: {error}") from error
    for name in dict.fromkeys([*spec.task.all_metrics, *spec.objectives]):
        if reason := unfit(name, spec.task.metric_settings, task.classes):
            raise ConfigError(f"{reason}.", hint="change task.metric, task.metrics or objectives")


@contextmanager
def _stops_on_signals(engine: Engine) -> Iterator[None]:
    """First Ctrl-C or SIGTERM: stop cleanly; a second Ctrl-C: at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if engine.is_stopping:
            raise KeyboardInterrupt
        name = signal.Signals(number).name
        engine.stop(Verdict("interrupted", f"interrupted by {name}", keeps_trials=True))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _ticking(engine: Engine, driver: Driver, on_tick: OnTick) -> Iterator[None]:
    """Look after the sweep in a thread of its own, since Tune holds this one."""
    done = threading.Event()

    def look_after() -> None:
        ticks = 0
        while not done.wait(TICK_SECONDS):
            try:
                engine.tick()
                if ticks % TICKS_PER_BEAT == 0:
                    driver.beat()
                on_tick(engine)
            except Exception as error:
                if not isinstance(error, MuseSparkError):
                    logger.exception("the sweep's ticker failed")
                engine.stop(Verdict("failed", f"the sweep could not be looked after: {error}", keeps_trials=True))
                return
            ticks += 1

    thread = threading.Thread(target=look_after, name="sweep-ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        on_tick(engine)

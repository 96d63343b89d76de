"""Verbs that run something: sweep, train, stop."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muse_spark_ray.cli.output import note, write_json
from muse_spark_ray.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from muse_spark_ray.ledger import Store
    from muse_spark_ray.search.engine import Verdict
    from muse_spark_ray.spec.sweep import SweepSpec

StoreOption = Annotated[
    str | None, typer.Option("--store", envvar="MUSE_SPARK_STORE", help="Folder or URI (s3://, gs://) of results.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value of the file; may be repeated.")
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    app.command(epilog="Examples: `muse-spark sweep experiments/digits.yaml`, `muse-spark sweep --resume digits`")(
        sweep
    )
    app.command(
        epilog="Examples: `muse-spark train --config train.yaml --set optimizer.lr=0.01`, "
        "`muse-spark train --recipe mild --set task.data.name=fashion_mnist`"
    )(train)
    app.command(epilog="Example: `muse-spark stop digits`")(stop)


def sweep(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC.yaml]", help="Sweep spec.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="SWEEP", help="Go on with a sweep that was interrupted.")
    ] = None,
    overrides: Overrides = None,
    store: StoreOption = None,
    address: Annotated[
        str | None,
        typer.Option(
            envvar=["MUSE_SPARK_ADDRESS", "RAY_ADDRESS"],
            help="Ray cluster: auto or host:port. Default: one on this machine.",
        ),
    ] = None,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or none.")] = "auto",
) -> None:
    """Run a Pareto sweep, or go on with one: search, train on gangs of Ray workers, book the cost, show the front."""
    from muse_spark_ray.cli.progress import Progress
    from muse_spark_ray.ledger import Store as LedgerStore
    from muse_spark_ray.sweep import Sweep

    if (spec is None) == (resume is None):
        raise ConfigError("give either a spec file or --resume SWEEP.", hint="muse-spark sweep experiments/digits.yaml")
    if resume is not None:
        if overrides:
            raise ConfigError("--set does not go with --resume: a sweep goes on with the spec that it began with.")
        opened = LedgerStore.open(store)
        Sweep.open(opened, resume)
    else:
        from muse_spark_ray.spec.load import load_spec

        wanted = load_spec(Path(str(spec)), overrides=overrides or ())
        opened = LedgerStore.open(store or wanted.store)
    # Ray and Optuna take seconds to import; a typing mistake is answered before.
    from muse_spark_ray.search.run import run_sweep, start_sweep, stored_spec

    if resume is not None:
        wanted = stored_spec(opened, resume)
    else:
        start_sweep(wanted, opened)
    if progress != "none":
        note(f"sweep {wanted.name}: results go to {opened.uri}/{wanted.name}; starting Ray and the first gangs ...")
    view = Progress(progress, wanted)
    try:
        verdict = run_sweep(wanted, opened, address=address, on_tick=view.tick)
    except StoreError as error:
        again = f"muse-spark sweep --resume {wanted.name}{_store_flag(opened)}"
        raise StoreError(error.message, hint=f"once it can be written again, go on with: {again}") from error
    finally:
        view.close()
    _tell_end(wanted, opened, verdict)
    raise typer.Exit(_exit_code(wanted, opened, verdict))


def train(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Training config (YAML).")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Start from mild (cheap), medium (balanced) or hot (accurate).")
    ] = None,
    model_path: Annotated[
        str | None, typer.Option(help="Your network: path.py, path.py:function or module:function.")
    ] = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
) -> None:
    """Train one config in this process (or under torchrun), without Ray."""
    from muse_spark_ray.cli.training import run_training
    from muse_spark_ray.spec.load import load_train

    settings = list(overrides or ())
    if model_path is not None:
        settings += ["task.model={name: factory, factory: '" + model_path.replace("'", "''") + "'}"]
    if config is None and recipe is None:
        raise ConfigError("give --config FILE, --recipe NAME, or both.", hint="muse-spark train --recipe mild")
    report = run_training(load_train(config, overrides=settings, start=recipe))
    if as_json and report is not None:
        write_json(report)
    if report is not None and report["state"] == "diverged":
        raise typer.Exit(1)


def stop(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Name of the sweep.")], store: StoreOption = None
) -> None:
    """Ask a running sweep to stop cleanly; all its results are kept."""
    from muse_spark_ray.ledger import request_stop
    from muse_spark_ray.sweep import Sweep

    found = Sweep.open(store, sweep)
    state = found.state()["state"]
    if state != "running":
        note(f"sweep {sweep} is not running (it is {state}); nothing to stop.")
        return
    request_stop(found.store, sweep)
    note(f"sweep {sweep} will stop after the running epochs. Go on with it later: muse-spark sweep --resume {sweep}")


def _tell_end(spec: SweepSpec, store: Store, verdict: Verdict) -> None:
    """Print the front, where the files are, and what to type next."""
    from muse_spark_ray.cli.query import show_front
    from muse_spark_ray.sweep import Sweep

    found = Sweep.open(store, spec.name)
    show_front(found, found.front(), ())
    note(f"sweep {spec.name} {verdict.state}: {verdict.reason}.")
    for line in [*_prices(found), *_failures(found)]:
        note(line)
    note(f"report:  {_write_report(found)}")
    flag = _store_flag(store)
    if verdict.keeps_trials:
        note(f"go on:   muse-spark sweep --resume {spec.name}{flag}")
    note(
        f"next:    muse-spark pareto {spec.name}{flag} · muse-spark best {spec.name}{flag} --min-accuracy 0.95 --format yaml > train.yaml"
    )


def _store_flag(store: Store) -> str:
    """Return what has to be typed so that another verb finds a sweep of this store."""
    from muse_spark_ray.ledger import Store as LedgerStore

    return "" if store.uri == LedgerStore.open().uri else f" --store {shlex.quote(store.uri)}"


def _prices(found: Any) -> list[str]:
    """Say what the cost is made of, and what has no price."""
    spent, prices = found.totals(), found.prices
    lines = []
    for resource, seconds in spent.held_seconds_by_resource.items():
        price = prices.usd_per_hour(resource)
        if price is None:
            lines.append(
                f"warning: {prices.describe(resource)}; cost_usd of these trials is unknown, gpu_hours are exact"
            )
        elif price > 0:
            unit = "CPU-core-hours" if resource == "cpu" else f"hours of {resource}"
            lines.append(f"cost:    {seconds / 3600:.4g} {unit} at ${price:.4g} an hour ({prices.describe(resource)})")
    return lines


def _failures(found: Any) -> list[str]:
    trials = found.trials()
    failed = trials[trials["state"] == "failed"]
    if failed.empty:
        return []
    first = failed.iloc[0]
    return [
        f"{len(failed)} trials failed; the first, {first['trial']}: {first['reason']}",
        f"details: muse-spark show {found.name} {first['trial']}",
    ]


def _write_report(found: Any) -> str:
    """Write report.html into the sweep's folder, wherever that is."""
    import tempfile

    from muse_spark_ray.report.html import write_report

    path = f"{found.name}/report.html"
    local = found.store.local_path(path)
    if local is not None:
        return str(write_report(found, local))
    with tempfile.TemporaryDirectory() as folder:
        found.store.write_atomic(path, write_report(found, Path(folder) / "report.html").read_bytes())
    return f"{found.store.uri.rstrip('/')}/{path}"


def _exit_code(spec: SweepSpec, store: Store, verdict: Verdict) -> int:
    from muse_spark_ray.sweep import Sweep

    counts = Sweep.open(store, spec.name).status()["trials"]
    if verdict.state == "interrupted":
        return 143 if "SIGTERM" in verdict.reason else 130
    if verdict.state == "failed" or (counts["failed"] and not counts["finished"] and verdict.state == "finished"):
        return 1
    if verdict.state == "stopped":
        return 4
    return 3 if counts["failed"] else 0

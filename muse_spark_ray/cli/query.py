"""Verbs that read a store: list, status, pareto, best, show, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muse_spark_ray.cli.output import Format, note, show, write_csv, write_json, write_yaml
from muse_spark_ray.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from muse_spark_ray.pareto import Bound
    from muse_spark_ray.sweep import Sweep

Name = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of the sweep.")]
Store = Annotated[
    str | None, typer.Option("--store", envvar="MUSE_SPARK_STORE", help="Folder or URI (s3://, gs://) of results.")
]
Output = Annotated[Format, typer.Option("--format", "-f", help="How to print.")]
MinAccuracy = Annotated[float | None, typer.Option(help="Least accuracy, in [0, 1].")]
MaxCost = Annotated[float | None, typer.Option("--max-cost-usd", help="Most money for one training, in USD.")]
MaxHours = Annotated[float | None, typer.Option(help="Longest training, in hours.")]


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    app.command("list", epilog="Example: `muse-spark list`")(list_sweeps)
    app.command(epilog="Example: `muse-spark status digits --format json`")(status)
    app.command(epilog="Example: `muse-spark pareto digits --min-accuracy 0.95 --plot front.html`")(pareto)
    app.command(epilog="Example: `muse-spark best digits --min-accuracy 0.95 --format yaml > train.yaml`")(best)
    app.command("show", epilog="Example: `muse-spark show digits t0007`")(show_trial)
    app.command(epilog="Example: `muse-spark report digits -o digits.html`")(report)


def list_sweeps(store: Store = None, output: Output = Format.table) -> None:
    """List the sweeps of a store."""
    from muse_spark_ray.report.tables import sweeps_table
    from muse_spark_ray.sweep import Sweep

    rows = [{"name": line.name, **Sweep.open(store, line.name).status()} for line in Sweep.list(store)]
    if output is Format.table:
        show(sweeps_table(rows))
    else:
        _write(rows, output)


def status(sweep: Name, store: Store = None, output: Output = Format.table) -> None:
    """Show where a sweep stands: state, trials, spend against its budget."""
    from muse_spark_ray.report.tables import status_panel

    found = _open(store, sweep)
    document = found.status()
    if output is Format.table:
        show(status_panel(sweep, document))
        if found.state().get("reason"):
            note(found.state()["reason"])
    else:
        _write(document, output)


def pareto(
    sweep: Name,
    store: Store = None,
    output: Output = Format.table,
    min_accuracy: MinAccuracy = None,
    max_cost_usd: MaxCost = None,
    max_hours: MaxHours = None,
    plot: Annotated[Path | None, typer.Option(help="Also write the front as .html, .png or .svg.")] = None,
) -> None:
    """Show the configs, and the epochs to stop at, that no other one beats in cost and accuracy."""
    found = _open(store, sweep)
    bounds = _bounds(min_accuracy, max_cost_usd, max_hours)
    front = found.front(bounds=bounds)
    if plot is not None:
        _write_plot(found, front, plot)
    if output is Format.table:
        show_front(found, front, bounds)
    else:
        document = found.front_document(bounds=bounds)
        _write(document if output is not Format.csv else [_flat_point(p) for p in document["points"]], output)
    if front.empty and front.attrs.get("message"):
        note(front.attrs["message"])


def best(
    sweep: Name,
    store: Store = None,
    output: Output = Format.table,
    min_accuracy: MinAccuracy = None,
    max_cost_usd: MaxCost = None,
    max_hours: MaxHours = None,
) -> None:
    """Pick one config: the cheapest that reaches --min-accuracy, else the most accurate within --max-cost-usd or --max-hours.

    `--format yaml` prints a training config that `muse-spark train` runs as it is.
    """
    from muse_spark_ray.pareto import best_within

    found = _open(store, sweep)
    bounds = _bounds(min_accuracy, max_cost_usd, max_hours)
    chosen = best_within(found.points(), _preferences(found, by_cost=min_accuracy is not None), bounds=bounds)
    if chosen.empty:
        note(chosen.attrs.get("message") or f"sweep {sweep} has no point yet that fits.")
        raise typer.Exit(1)
    point = _point(found, chosen.iloc[0])
    if output is Format.yaml:
        write_yaml(_train_config(point), header=_headline(sweep, point, found.objectives))
    elif output is Format.table:
        show_front(found, chosen.assign(tie=False), ())
    else:
        _write(point if output is Format.json else [_flat_point(point)], output)


def show_trial(
    sweep: Name,
    trial: Annotated[str, typer.Argument(metavar="TRIAL", help="Id of the trial, such as t0007.")],
    store: Store = None,
    output: Output = Format.table,
) -> None:
    """Show one trial: its config, its curve, its cost by phase, its checkpoint."""
    from muse_spark_ray.cost import goodput
    from muse_spark_ray.report.tables import trial_view

    found = _open(store, sweep)
    view = found.trial(trial)
    phases = view.cost_by_phase.set_index("phase")
    seconds = {str(phase): float(spent) for phase, spent in phases["seconds"].items()}
    if output is Format.table:
        show(
            trial_view(
                trial,
                view.config,
                view.curve,
                objectives=found.objectives,
                seconds_by_phase=seconds,
                usd_by_phase={str(phase): usd for phase, usd in phases["usd"].items()},
                checkpoint=view.checkpoint,
                error=view.error or (view.reason if view.state == "failed" else None),
            )
        )
        return
    curve = [_plain_row(row) for row in view.curve.astype(object).to_dict("records")]
    document = {
        "trial": trial,
        "state": view.state,
        "config": view.config,
        "curve": curve,
        "cost_by_phase": phases.to_dict("index"),
        "goodput": goodput(seconds),
        "usd": view.usd,
        "checkpoint": view.checkpoint,
        "error": view.error,
        "reason": view.reason,
        "attempts": view.attempts,
    }
    _write(document if output is not Format.csv else curve, output)


def report(
    sweep: Name,
    store: Store = None,
    path: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
) -> None:
    """Write the report of a sweep as one HTML file that works offline."""
    from muse_spark_ray.report.html import write_report

    note(f"report: {write_report(_open(store, sweep), path)}")


def show_front(sweep: Sweep, front: pd.DataFrame, bounds: tuple[Bound, ...]) -> None:
    """Print a front as a table with the settings that differ between its trials."""
    from muse_spark_ray.report.settings import differing_settings
    from muse_spark_ray.report.tables import front_table

    configs = sweep.settings()
    volume = sweep.hypervolume() if not bounds and len(front) else None
    show(
        front_table(
            front, sweep.objectives, differing=differing_settings(configs.values()), configs=configs, hypervolume=volume
        )
    )


def _open(store: str | None, name: str) -> Sweep:
    from muse_spark_ray.sweep import Sweep

    return Sweep.open(store, name)


def _bounds(min_accuracy: float | None, max_cost_usd: float | None, max_hours: float | None) -> tuple[Bound, ...]:
    from muse_spark_ray.pareto import Bound

    limits: list[Bound] = []
    if min_accuracy is not None:
        limits.append(Bound("accuracy", ">=", min_accuracy))
    if max_cost_usd is not None:
        limits.append(Bound("cost_usd", "<=", max_cost_usd))
    if max_hours is not None:
        limits.append(Bound("hours", "<=", max_hours))
    return tuple(limits)


def _preferences(sweep: Sweep, *, by_cost: bool) -> dict[str, Any]:
    """Order the objectives: what costs first, or what is gained first."""
    deciding = "min" if by_cost else "max"
    return dict(sorted(sweep.objectives.items(), key=lambda item: item[1] != deciding))


def _point(sweep: Sweep, row: Any) -> dict[str, Any]:
    plain = _plain_row(row.to_dict())
    values = {name: plain[name] for name in sweep.objectives}
    return {"trial": plain["trial"], "epoch": plain["epoch"], **values, "config": sweep.config_of(plain["trial"])}


def _train_config(point: dict[str, Any]) -> dict[str, Any]:
    """Return the config that trains this very point: schedules as in the trial, stopped at the point's epoch."""
    config = dict(point["config"])
    if point["epoch"] < config["epochs"]:
        config["stop_epoch"] = point["epoch"]
    return {name: value for name, value in config.items() if value is not None}


def _headline(sweep: str, point: dict[str, Any], objectives: dict[str, Any]) -> str:
    from muse_spark_ray.report.formats import quantity

    values = ", ".join(f"{name} {quantity(name, point[name])}" for name in objectives)
    return f"sweep {sweep}, trial {point['trial']}, epoch {point['epoch']}: {values}\nrun it with: muse-spark train --config THIS_FILE"


def _write_plot(sweep: Sweep, front: pd.DataFrame, path: Path) -> None:
    from muse_spark_ray.report.html import write_plot
    from muse_spark_ray.report.plots import front_plot
    from muse_spark_ray.report.settings import differing_settings

    configs = sweep.settings()
    figure = front_plot(
        sweep.points(), front, sweep.objectives, differing=differing_settings(configs.values()), configs=configs
    )
    write_plot(figure, path)
    note(f"plot: {path}")


def _flat_point(point: dict[str, Any]) -> dict[str, Any]:
    from muse_spark_ray.report.settings import flatten

    rest = {name: value for name, value in point.items() if name != "config"}
    return {**rest, **{f"config.{name}": value for name, value in flatten(point["config"]).items()}}


def _plain_row(row: dict[Any, Any]) -> dict[str, Any]:
    """Return a table's row as values that strict JSON can hold."""
    import math

    import pandas as pd

    plain: dict[str, Any] = {}
    for name, value in row.items():
        value = value.item() if hasattr(value, "item") else value
        is_missing = value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value))
        plain[str(name)] = None if is_missing else value
    return plain


def _write(document: Any, output: Format) -> None:
    if output is Format.json:
        write_json(document)
    elif output is Format.yaml:
        write_yaml(document)
    elif isinstance(document, list):
        write_csv(document)
    else:
        raise ConfigError("this verb has no CSV form.", hint="use --format json or yaml")

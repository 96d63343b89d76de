"""Verbs that look before money is spent: `data check` and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muse_spark_ray.cli.output import Format, console, note, show, write_csv, write_json, write_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from muse_spark_ray.data.findings import Finding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "failure": "bold red"}
TaskFile = Annotated[Path, typer.Argument(help="Sweep spec, training config, or task (data, model) as YAML.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Override: a.b=value; repeatable.")]
Output = Annotated[Format, typer.Option("--format", "-f", help="How to print.")]


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    data = typer.Typer(help="Look at data.", no_args_is_help=True)
    data.command("check", epilog="Example: `muse-spark data check experiments/digits.yaml`")(check_data)
    app.add_typer(data, name="data")
    app.command(epilog="Example: `muse-spark doctor experiments/digits.yaml`")(doctor)


def check_data(file: TaskFile, sets: Sets = None, output: Output = Format.table) -> None:
    """Check a task's data: missing values, duplicates, leaks between the parts, classes, drift.

    Exits with 1 if something is broken, 0 otherwise.
    """
    from muse_spark_ray.data.inspect import inspect_data
    from muse_spark_ray.spec.load import load_task_config

    _tell(inspect_data(load_task_config(file, overrides=sets or ()).task.data), output)


def doctor(file: TaskFile, sets: Sets = None, output: Output = Format.table) -> None:
    """Examine a task before it is trained: environment, data, learning, speed, exactness.

    Takes seconds to a minute. Exits with 1 if something is broken, 0 otherwise.
    """
    from muse_spark_ray.spec.load import load_task_config
    from muse_spark_ray.training.doctor import examine

    _tell(examine(load_task_config(file, overrides=sets or ())), output)


def _tell(findings: Iterable[Finding], output: Format) -> None:
    """Print findings; as a table each one as soon as it is there."""
    from muse_spark_ray.data.findings import worst

    seen: list[Finding] = []
    for finding in findings:
        seen.append(finding)
        if output is Format.table and console(stderr=True).is_terminal:
            note(f"  {finding.level:8} {finding.check}")
    if output is Format.table:
        show(_table(seen))
        counts = [f"{sum(f.level == level for f in seen)} {level}" for level in _STYLES]
        note(", ".join(counts))
    elif output is Format.csv:
        write_csv(finding.as_row() for finding in seen)
    else:
        (write_json if output is Format.json else write_yaml)([finding.as_row() for finding in seen])
    if worst(seen) == "failure":
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("check", "result", "seen", "what to do"):
        table.add_column(title, overflow="fold", no_wrap=title in ("check", "result"))
    for finding in findings:
        result = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(Text(finding.check), result, Text(finding.evidence), Text(finding.advice))
    return table

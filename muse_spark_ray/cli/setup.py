"""Verbs that help to write a spec: schema, strategies."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from muse_spark_ray.cli.output import Format, show, write_csv, write_json, write_yaml


class Document(StrEnum):
    """Kinds of files that have a schema."""

    sweep = "sweep"
    train = "train"


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the program."""
    app.command(epilog="Example: `muse-spark schema > sweep.schema.json`")(schema)
    app.command(epilog="Example: `muse-spark strategies`")(strategies)


def schema(
    kind: Annotated[Document, typer.Argument(help="Which kind of file.")] = Document.sweep,
) -> None:
    """Print the JSON schema of a sweep or training config, for completion and checks in editors."""
    from muse_spark_ray.spec.schema import sweep_schema, train_schema

    write_json(sweep_schema() if kind is Document.sweep else train_schema())


def strategies(output: Annotated[Format, typer.Option("--format", "-f", help="How to print.")] = Format.table) -> None:
    """List the cost-saving strategies: what each saves, costs, and when it pays."""
    from muse_spark_ray.cli.cards import card_rows

    rows = card_rows()
    if output is Format.table:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
        for title in rows[0]:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*row.values())
        show(table)
    elif output is Format.csv:
        write_csv(rows)
    else:
        (write_json if output is Format.json else write_yaml)(rows)

"""How verbs print: data on stdout in the format asked for, everything else on stderr."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from rich.console import Console, RenderableType


class Format(StrEnum):
    """Formats of verbs that print data."""

    table = "table"
    json = "json"
    csv = "csv"
    yaml = "yaml"


def console(*, stderr: bool = False) -> Console:
    """Return a console that writes plain text where it is not a terminal."""
    target = sys.stderr if stderr else sys.stdout
    if target.isatty():
        return Console(stderr=stderr, highlight=False)
    return Console(stderr=stderr, highlight=False, width=160, no_color=True)


def show(renderable: RenderableType) -> None:
    """Print a table or panel on stdout."""
    console().print(renderable)


def note(text: str) -> None:
    """Print one line on stderr."""
    print(text, file=sys.stderr)


def write_json(document: Any) -> None:
    """Print strict JSON on stdout."""
    print(json.dumps(document, indent=2, allow_nan=False))


def write_yaml(document: Any, *, header: str = "") -> None:
    """Print YAML on stdout, after comment lines if there are any."""
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    print("".join(f"# {line}\n" for line in header.splitlines()) + text, end="")


def write_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as CSV on stdout; the columns are those of all rows, in order of first appearance."""
    listed = list(rows)
    columns = list(dict.fromkeys(name for row in listed for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(row.get(name)) for name in columns] for row in listed)
    print(out.getvalue(), end="")


def _cell(value: Any) -> Any:
    """Quote text that a spreadsheet would run as a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return json.dumps(value) if isinstance(value, dict | list) else value

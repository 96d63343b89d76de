"""One result of a check: what was looked at, how it stands, the evidence, what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check.

    Args:
        check: What was looked at.
        level: `ok`; `note`, worth knowing; `warning`, likely costs accuracy or money; `failure`, cannot work.
        evidence: Numbers that were seen.
        advice: Settings to try, empty if nothing is to be done.
    """

    check: str
    level: Level
    evidence: str
    advice: str = ""

    def as_row(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def worst(findings: list[Finding]) -> Level:
    """Return the most serious level."""
    order: list[Level] = ["ok", "note", "warning", "failure"]
    return max((finding.level for finding in findings), key=order.index, default="ok")

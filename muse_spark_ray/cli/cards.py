"""The strategies as rows of a table, from their declarations alone."""

from __future__ import annotations

from muse_spark_ray.strategy import strategies


def card_rows() -> list[dict[str, str]]:
    """Return one row a strategy: name, settings with defaults, and its card."""
    rows = []
    for name, member in strategies().items():
        fields = member.Config.model_fields.items()
        settings = ", ".join(field if info.is_required() else f"{field}={info.default}" for field, info in fields)
        card = member.card
        rows.append(
            {
                "strategy": name,
                "settings (defaults)": settings,
                "saves": card.saves,
                "costs": card.costs,
                "pays": card.pays,
                "hurts": card.hurts,
                "source": card.source,
            }
        )
    return rows


def markdown_table(
    rows: list[dict[str, str]], columns: tuple[str, ...] = ("strategy", "saves", "pays", "hurts")
) -> str:
    """Return the rows as a table for the README."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row[column] for column in columns) + " |" for row in rows]
    return "\n".join(lines)

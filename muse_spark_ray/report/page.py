"""One self-contained HTML page: no network, no script but its own, everything from outside escaped.

The Content-Security-Policy names the page's two scripts by hash and forbids every connection, so that text which
slipped through the escaping would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from html import escape, unescape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.report.formats import clean

if TYPE_CHECKING:
    import plotly.graph_objects as go


def text(value: object) -> str:
    """Return anything as text that is safe between tags and inside quoted attributes; line breaks are kept."""
    return escape("\n".join(clean(line) for line in str(value).splitlines()), quote=True)


def page(title: str, body: str, figures: Mapping[str, go.Figure]) -> str:
    """Return a whole page.

    Args:
        title: Title of the window, not yet escaped.
        body: HTML that is already escaped; it holds one `<div id="plot-NAME">` for each figure.
        figures: Plotly figures by name.
    """
    from plotly.offline import get_plotlyjs

    plotly, script = get_plotlyjs(), _asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash_source(plotly)} {_hash_source(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=text(title),
        style=_asset("page.css"),
        body=body,
        figures=_figures_json(figures),
        plotly=plotly,
        script=script,
    )


def plot_section(name: str, figure: go.Figure, *, classes: str = "") -> str:
    """Return the place of a figure, its title and caption above it as text that wraps in a narrow window.

    Args:
        name: Name of the figure in `page`.
        figure: The figure, its texts escaped as plotly wants them; `layout.meta["hint"]` says what a mouse can do.
        classes: CSS classes of the section.
    """
    title, hint = figure.layout.title, (figure.layout.meta or {}).get("hint")
    caption = words(title.subtitle.text) + (f" ({hint})" if hint else "")
    return (
        f'<section class="{classes}"><h2>{text(words(title.text))}</h2><p class="summary">'
        f'{text(caption)}</p><div class="scroll"><div class="plot" id="plot-{name}"></div></div></section>'
    )


def words(marked: str | None) -> str:
    """Return a text of plotly without its tags and entities."""
    return unescape(re.sub(r"</?[a-z]+>", "", marked or ""))


def _asset(name: str) -> str:
    return resources.files("muse_spark_ray.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash_source(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _figures_json(figures: Mapping[str, go.Figure]) -> str:
    """Return the figures as JSON in which no sequence can end or open an element."""
    parts = ",".join(f'"{name}":{_untitled(figure).to_json()}' for name, figure in figures.items())
    for char in "<>&\u2028\u2029":
        parts = parts.replace(char, f"\\u{ord(char):04x}")
    return f"{{{parts}}}"


def _untitled(figure: go.Figure) -> go.Figure:
    """Return a copy without the title and the room for it: the page shows it as text."""
    import plotly.graph_objects as go

    copy = go.Figure(figure)
    return copy.update_layout(title=None, margin={"t": 34}, height=(figure.layout.height or 440) - 40)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    Args:
        path: Where; its folder is made if it is missing.
        content: All of it.

    Raises:
        ConfigError: The file cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                temporary.chmod(0o644)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}", hint="choose a folder that you may write to"
        ) from error

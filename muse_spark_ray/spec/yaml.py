"""Safe YAML that remembers lines and reads numbers as people write them.

PyYAML follows YAML 1.1, which reads `1e-4` as text, `010` as 8 and `on` as true. Here scalars follow YAML 1.2's core
schema: `1e-4` is a number, `010` stays text (and is refused where a number is needed), only true and false are booleans.
Nesting and aliases are limited, so that a hostile file cannot fill the memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from muse_spark_ray.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_DEPTH = 50

Path = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own form)


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first))


_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("null", "~|null|Null|NULL|", "~nN\0")
_resolve("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789")
_resolve(
    "float",
    r"[-+]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+.0123456789",
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^$"), [""])


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data with the place of each key.

    Args:
        data: Mappings, lists and scalars.
        where: File name, or what else the data came from.
        lines: {path: line, from 1}.
        flags: Paths that a flag set, over the file.
    """

    data: Any
    where: str
    lines: dict[Path, int] = field(default_factory=dict)
    flags: frozenset[Path] = frozenset()

    def place(self, path: Path) -> str:
        """Return `file:line` of `path` or of the nearest parent that is written there, or the flag that set it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.flags:
                return "--set " + ".".join(map(str, path[:length]))
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return f"{self.where}:{self.lines[path[:length]]}"
        return self.where

    def under(self, key: str) -> Document:
        """Return the part below one top-level key."""
        lines = {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)}
        flags = frozenset(path[1:] for path in self.flags if path[:1] == (key,))
        return Document(self.data.get(key) or {}, self.where, lines, flags)


def parse_yaml(text: str, *, where: str) -> Document:
    """Read a YAML document.

    Args:
        text: The document.
        where: File name or flag for messages.

    Returns:
        The data and where its keys stand.

    Raises:
        ConfigError: If the text is not safe YAML, has a key twice, or is too large or deep.
    """
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"{where} has {len(text.encode())} bytes; at most {MAX_BYTES} are read.")
    try:
        node = yaml.compose(text, Loader=_Loader)
        lines: dict[Path, int] = {}
        if node is not None:
            _walk(node, (), lines, where, depth=0)
        return Document(yaml.load(text, Loader=_Loader), where, lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{where}{line} is not valid YAML: {problem}.") from error


def parse_value(text: str, *, where: str) -> Any:
    """Read one value as it would stand in a file, such as `0.1`, `true` or `[1, 2]`."""
    return parse_yaml(text, where=where).data


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], where: str, *, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}:{node.start_mark.line + 1} is nested more than {MAX_DEPTH} deep.")
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise ConfigError(f"{where}:{key.start_mark.line + 1} the key {key.value!r} stands twice; keep one.")
            seen.add(key.value)
            lines[(*path, key.value)] = key.start_mark.line + 1
            _walk(value, (*path, key.value), lines, where, depth=depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, where, depth=depth + 1)

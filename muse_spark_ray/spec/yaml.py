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
MAX_VALUES = 100_000
MAX_DIGITS = 300

Path = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's scalars, which does not follow a nesting without end."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own form)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(problem=_too_deep(), problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


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
        above: Where this part sits in the whole document.
    """

    data: Any
    where: str
    lines: dict[Path, int] = field(default_factory=dict)
    flags: frozenset[Path] = frozenset()
    above: Path = ()

    def place(self, path: Path) -> str:
        """Return `file:line` of `path` or of the nearest parent that is written there, or the flag that set it."""
        for flag in sorted(self.flags):
            if path and (path[: len(flag)] == flag or flag[: len(path)] == path):
                return "--set " + ".".join(map(str, (*self.above, *flag)))
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return f"{self.where}:{self.lines[path[:length]]}"
        return self.where

    def under(self, key: str) -> Document:
        """Return the part below one top-level key."""
        lines = {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)}
        flags = frozenset(path[1:] for path in self.flags if path[:1] == (key,))
        return Document(self.data.get(key) or {}, self.where, lines, flags, (*self.above, key))


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
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(None, where)
        lines: dict[Path, int] = {}
        _walk(node, (), lines, where)
        return Document(loader.construct_document(node), where, lines)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{where}:{line} is not valid YAML: {error.reason}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{place} is not valid YAML: {problem}.") from error


def parse_value(text: str, *, where: str) -> Any:
    """Read one value as it would stand in a file, such as `0.1`, `true` or `[1, 2]`."""
    return parse_yaml(text, where=where).data


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], where: str) -> None:
    """Note where each key stands; refuse what is too much once aliases are followed, and keys that are no text."""
    place = f"{where}:{node.start_mark.line + 1}"
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"{place} is {_too_deep()}.")
    if len(lines) > MAX_VALUES:
        raise ConfigError(f"{place} stands, with its aliases written out, for more than {MAX_VALUES} values.")
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, _key(key, where))
            if inner in lines:
                raise ConfigError(f"{where}:{key.start_mark.line + 1} the key {key.value!r} stands twice; keep one.")
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines, where)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, where)
    elif node.tag == "tag:yaml.org,2002:int" and len(node.value) > MAX_DIGITS:
        raise ConfigError(f"{place} has a number of {len(node.value)} digits; at most {MAX_DIGITS} are read.")


def _key(node: yaml.Node, where: str) -> str:
    if node.tag != "tag:yaml.org,2002:str":
        seen = node.value if isinstance(node, yaml.ScalarNode) else "list or mapping"
        raise ConfigError(f"{where}:{node.start_mark.line + 1} the key {seen} is no text; put it in quotes.")
    return str(node.value)


def _too_deep() -> str:
    return f"nested more than {MAX_DEPTH} deep"

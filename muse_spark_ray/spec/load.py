"""From a file, the environment and `--set` to a validated spec, with errors that say where and what is allowed."""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.mission import MISSION_KEYS
from muse_spark_ray.spec.paths import with_value
from muse_spark_ray.spec.recipes import merged, recipe
from muse_spark_ray.spec.search import Parameter
from muse_spark_ray.spec.sweep import SweepSpec
from muse_spark_ray.spec.task import TaskConfig
from muse_spark_ray.spec.train import train_config_class
from muse_spark_ray.spec.yaml import Document, parse_value, parse_yaml

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import TrainConfig

M = TypeVar("M", bound=BaseModel)
STORE_VARIABLE = "MUSE_SPARK_STORE"


def load_spec(path: str | Path, *, overrides: Sequence[str] = ()) -> SweepSpec:
    """Read a sweep spec.

    Args:
        path: YAML file.
        overrides: `a.b=c` texts that win over the file.

    Returns:
        The spec, its training part and every searched path checked as well.

    Raises:
        ConfigError: Naming file, line, the value seen, what is allowed and the nearest right key.
    """
    return _checked(_overridden(_parse(path), overrides))


def load_spec_text(text: str, *, where: str) -> SweepSpec:
    """Read a sweep spec from YAML text; errors as `load_spec`."""
    return _checked(parse_yaml(text, where=where))


def _checked(document: Document) -> SweepSpec:
    spec = validate(SweepSpec, document)
    if spec.store is None and os.environ.get(STORE_VARIABLE):
        spec = spec.model_copy(update={"store": os.environ[STORE_VARIABLE]})
    _check_train(spec, document)
    _check_search(spec, document)
    return spec


def load_train(path: str | Path | None, *, overrides: Sequence[str] = (), start: str | None = None) -> TrainConfig:
    """Read a training config.

    Args:
        path: YAML file; None for the defaults.
        overrides: `a.b=c` texts that win over the file.
        start: Name of a recipe that the file is put over.

    Raises:
        ConfigError: As `load_spec`.
    """
    document = Document({}, "config") if path is None else _parse(path)
    base = {} if start is None else recipe(start)
    return validate(train_config_class(), _overridden(replace(document, data=merged(base, document.data)), overrides))


def load_task_config(path: str | Path, *, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read what is to be trained from a file of any kind: a sweep, a training config, or a task alone.

    Raises:
        ConfigError: As `load_spec`.
    """
    document = _parse(path)
    if "search" in document.data or "objectives" in document.data:
        spec = load_spec(path)
        document = replace(document, data={**spec.train, "task": spec.task.model_dump(exclude_unset=True)})
    elif document.data and set(document.data) <= set(TaskConfig.model_fields):
        document = replace(document, data={"task": document.data})
    return validate(train_config_class(), _overridden(document, overrides))


def validate(model: type[M], document: Document) -> M:
    """Validate plain data, turning its problems into one ConfigError with their lines."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(explain(error, model, document)) from error


def train_config(values: dict[str, Any] | TrainConfig | None) -> TrainConfig:
    """Make a training config from a dictionary, as `MuseSparkTrainer(config=...)` takes it.

    Raises:
        ConfigError: If a key or value is not allowed.
    """
    if isinstance(values, train_config_class()):
        return values
    return validate(train_config_class(), Document(dict(values or {}), "config"))


def explain(error: ValidationError, model: type[BaseModel], document: Document, *, prefix: str = "") -> str:
    """Write all problems, one a line, each with file, line, key, value and what is allowed.

    Args:
        error: What pydantic found.
        model: The model that was validated.
        document: The data and where its keys stand.
        prefix: Where the model sits in the file, such as `train.`.

    Returns:
        The lines.
    """
    messages = []
    for problem in error.errors():
        path = tuple(part for part in problem["loc"] if not _is_union_branch(part))
        messages.append(f"{document.place(path)} {_sentence(problem, path, model, prefix)}")
    return "\n".join(dict.fromkeys(messages))


def _sentence(problem: Any, path: tuple[str | int, ...], model: type[BaseModel], prefix: str = "") -> str:
    key = prefix + ".".join(map(str, path))
    if problem["type"] == "extra_forbidden":
        allowed = _fields_at(model, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), allowed, 1)
        guess = f" Did you mean {near[0]}?" if near else ""
        return f"unknown key {key}.{guess} Allowed here: {', '.join(allowed)}."
    if problem["type"] == "missing":
        return f"{key} is missing; it is required."
    reason = problem["msg"].removeprefix("Value error, ")
    value = problem["input"]
    seen = f" is {value!r}" if not isinstance(value, dict) else ""
    return f"{key or 'the document'}{seen}: {reason[0].lower() + reason[1:] if reason[:5] == 'Input' else reason}."


def _is_union_branch(part: str | int) -> bool:
    """Pydantic puts the names of a union's members into the location; they are no keys of the file."""
    return isinstance(part, str) and (
        part in {"int", "float", "str", "bool"} or part.startswith(("literal[", "constrained-", "function-"))
    )


def _fields_at(model: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    """Return the keys allowed at `path` below `model`."""
    for part in path:
        info = model.model_fields.get(str(part))
        inner = _model_in(info.annotation) if info else None
        if inner is None:
            return []
        model = inner
    names = [info.alias or name for name, info in model.model_fields.items()]
    return names + (sorted(MISSION_KEYS) if issubclass(model, train_config_class()) else [])


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((model for part in typing.get_args(annotation) if (model := _model_in(part))), None)
    if typing.get_origin(annotation) is dict:
        return _model_in(typing.get_args(annotation)[1])
    return None


def _parse(path: str | Path) -> Document:
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file {file} does not exist.", hint="give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {file} cannot be read: {error}.") from error
    document = parse_yaml(text, where=str(file))
    if not isinstance(document.data, dict):
        raise ConfigError(
            f"{file} holds {type(document.data).__name__}, not keys and values; see muse-spark sweep --help."
        )
    return document


def _overridden(document: Document, overrides: Sequence[str]) -> Document:
    paths = frozenset(_override_path(text, document.data) for text in overrides)
    return Document(apply_overrides(document.data, overrides), document.where, document.lines, paths)


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `data` with `a.b=c` texts applied in order; values are read as YAML.

    Raises:
        ConfigError: If a text has no `=` or no path.
    """
    for text in overrides:
        keys = _override_path(text, data)
        value = parse_value(text.partition("=")[2], where=f"--set {text}")
        if keys[0] == "search" and len(keys) > 1 and isinstance(data.get("search"), dict):
            data = {**data, "search": _with_keys(data["search"], keys[1:], value)}
        else:
            data = with_value(data, ".".join(keys), value)
    return data


def _override_path(text: str, data: dict[str, Any]) -> tuple[str, ...]:
    """Split `a.b=c` into keys; below `search` a key is itself a dotted path, found among those of the file."""
    path, equals, _ = text.partition("=")
    keys = tuple(path.strip().split("."))
    if not equals or not all(keys):
        raise ConfigError(f"--set {text!r} is not of the form a.b=c.", hint="for example --set optimizer.lr=0.01")
    if keys[0] != "search" or len(keys) == 1:
        return keys
    rest = path.strip().removeprefix("search.")
    written = data.get("search")
    owners = [key for key in written if rest.startswith(key + ".")] if isinstance(written, dict) else []
    if rest in (written or {}) or not owners:
        return ("search", rest)
    owner = max(owners, key=len)
    return ("search", owner, rest.removeprefix(owner + "."))


def _with_keys(data: dict[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = keys
    if not rest:
        return {**data, head: value}
    inner = data.get(head)
    return {**data, head: _with_keys(inner if isinstance(inner, dict) else {}, tuple(rest), value)}


def _check_train(spec: SweepSpec, document: Document) -> None:
    if "task" in spec.train:
        place = document.place(("train", "task"))
        raise ConfigError(f"{place} train.task: a sweep's task stands at the top level, as task. Move it there.")
    try:
        spec.trial_config({})
    except ValidationError as error:
        raise ConfigError(explain(error, train_config_class(), document.under("train"), prefix="train.")) from error


def _check_search(spec: SweepSpec, document: Document) -> None:
    """Try both ends or every choice of each parameter, so that no trial is drawn that cannot exist."""
    for path, parameter in spec.search.items():
        place = document.place(("search", path))
        for other in parameter.only_if:
            if other not in spec.search:
                near = difflib.get_close_matches(other, spec.search, 1)
                guess = f" Did you mean {near[0]}?" if near else ""
                raise ConfigError(
                    f"{place} search.{path}.if names {other}, which is not searched.{guess} "
                    f"Searched: {', '.join(spec.search)}."
                )
        _check_ends(spec, path, parameter, place)


def _check_ends(spec: SweepSpec, path: str, parameter: Parameter, place: str) -> None:
    for value in parameter.values_at_ends():
        try:
            spec.trial_config({path: value})
        except ValidationError as error:
            problems = [p for p in error.errors() if _touches(p["loc"], path)]
            if problems:
                found = tuple(part for part in problems[0]["loc"] if not _is_union_branch(part))
                raise ConfigError(f"{place} search: {_sentence(problems[0], found, train_config_class())}") from error


def _touches(location: tuple[str | int, ...], path: str) -> bool:
    """Say if a problem lies at a searched path; problems elsewhere may vanish with the other parameters."""
    place = ".".join(str(part) for part in location if not _is_union_branch(part))
    return place == path or place.startswith(path + ".")

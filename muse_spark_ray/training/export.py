"""A trained model from a checkpoint alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from muse_spark_ray.errors import ConfigError, DataError
from muse_spark_ray.spec.load import train_config
from muse_spark_ray.strategy import Context, Tools, strategies
from muse_spark_ray.training.checkpoint import about_checkpoint, load_state
from muse_spark_ray.training.models import build_model


def load_model(folder: str | os.PathLike[str], *, model: nn.Module | None = None, example: Any = None) -> nn.Module:
    """Build the model of a checkpoint, with the weights of its best epoch, in eval mode.

    A network that the config names is built from it. Strategies that change a model's architecture, such as structured
    pruning and LoRA, change it again.

    Args:
        folder: Of the checkpoint (`checkpoints/best`), or one that holds checkpoints, of which the best is taken.
        model: The network as the training was given it, where that was made by a script of yours.
        example: Inputs of one sample [1, ...]; needed only for a pruned network of yours.

    Raises:
        DataError: If the checkpoint is damaged.
        ConfigError: If the network is not known or does not fit.
    """
    path = _checkpoint(Path(folder).expanduser())
    state, about = load_state(path), about_checkpoint(path)
    config = train_config({k: v for k, v in about.get("config", {}).items() if k != "checkpoint"})
    shape, outputs = about.get("input_shape"), about.get("outputs")
    if model is None:
        if shape is None or outputs is None:
            raise ConfigError(
                f"checkpoint {path} does not say which network it is of: the training was given one by a script.",
                hint="pass it: load_model(folder, model=MyNetwork())",
            )
        model = build_model(config.task.model, shape=tuple(shape), outputs=int(outputs))
    if example is None and shape is not None:
        example = torch.zeros(1, *shape)
    context = Context(0, outputs, tools=Tools(example=example))
    for name, own in config.strategies.switched_on().items():
        if strategies()[name].changes_architecture:
            member = strategies()[name](own, context)
            model = member.prepare_model(model)
            member.rebuild_model(state["strategies"].get(name, {}))
    try:
        model.load_state_dict(state["best"]["weights"] or state["model"])
    except RuntimeError as error:
        raise ConfigError(f"checkpoint {path} does not fit the model: {str(error).splitlines()[-1].strip()}") from error
    return model.eval()


def _checkpoint(path: Path) -> Path:
    for candidate in (path, path / "best", path / "last"):
        if (candidate / "manifest.json").is_file():
            return candidate
    raise DataError(f"{path} is no checkpoint and holds none; give the folder that was checkpoint.save_dir.")

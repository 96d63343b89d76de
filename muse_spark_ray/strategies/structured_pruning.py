"""Structured pruning: remove whole channels, so that the model really is smaller and faster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any, Literal

import torch
from torch import nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import (
    Card,
    Context,
    Decision,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Trait,
    knob,
    named_blocks,
)

Importance = Literal["l1", "l2", "bn_scale", "taylor"]
Plan = Literal["one_shot", "iterative", "gradual"]
_TIMED_PASSES = 20


def ratio_after(steps: int, *, of: int, final: float, plan: str) -> float:
    """Return the share of channels that are gone after so many of all pruning steps.

    Args:
        steps: Steps done.
        of: Steps in all.
        final: Share in the end.
        plan: `iterative` removes the same share of the original each time, `gradual` more at first by the cubic rule
            of Zhu and Gupta 2018.
    """
    progress = min(1.0, steps / of)
    return final * (progress if plan == "iterative" else 1.0 - (1.0 - progress) ** 3)


def replace_parameters(optimizer: torch.optim.Optimizer, new: Mapping[int, nn.Parameter]) -> None:
    """Let an optimizer train new parameters in place of old ones, by the old ones' id; what it knew of those is lost."""
    for group in optimizer.param_groups:
        for old in group["params"]:
            if id(old) in new:
                optimizer.state.pop(old, None)
        group["params"] = [new.get(id(p), p) for p in group["params"]]


@torch.no_grad()
def latency_ms(model: nn.Module, example: Any) -> float:
    """Return the median milliseconds of a forward pass of one sample in eval mode."""
    was_training, times = model.training, []
    model.eval()
    for _ in range(_TIMED_PASSES):
        started = time.perf_counter()
        model(example)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    model.train(was_training)
    return 1e3 * median(times)


class StructuredPruning(Strategy):
    """Remove the least important channels of all layers, in one or several steps between epochs.

    Layers that depend on each other are cut together. What remains is trained on; parameters that were cut lose
    their momentum, and the best epoch is looked for anew. The layer that gives the outputs stays whole.
    """

    stage = Stage.UPDATE
    makes = frozenset({Trait.CHANGING_SHAPES})
    changes_architecture = True
    card = Card(
        saves="parameters, FLOPs and latency of the model that is used, and of the epochs after each step",
        costs="accuracy, part of which the epochs after it win back",
        pays="networks larger than their task, latency or size as an objective",
        hurts="small networks; steps so late that no epochs are left to recover",
        source="Fang et al. 2023, DepGraph; Li et al. 2017 (L1); Liu et al. 2017 (BN scale); Molchanov et al. 2019 (Taylor)",
    )

    class Config(StrategyConfig):
        """Settings of structured pruning."""

        ratio: float = knob(0.5, gt=0, lt=1, search=(0.2, 0.8), doc="share of the channels that are gone in the end")
        importance: Importance = knob("l2", search=["l1", "l2", "bn_scale", "taylor"], doc="how channels are ranked")
        plan: Plan = knob(
            "one_shot", search=["one_shot", "iterative", "gradual"], doc="all at once, or in equal or shrinking steps"
        )
        begin: int = knob(3, ge=1, search=(1, 10), doc="epoch after which the first channels go")
        steps: int = knob(4, ge=1, le=100, doc="steps of iterative and gradual plans")
        every: int = knob(1, ge=1, doc="epochs of fine-tuning between two steps")
        ignore: str | None = knob(None, doc="names of layers that stay whole, besides the one that gives the outputs")
        round_to: int | None = knob(None, ge=1, doc="channel numbers are multiples of this, such as 8 for tensor cores")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._model: nn.Module = nn.Module()
        self._optimizer: torch.optim.Optimizer | None = None
        self._steps = 0
        self._history: list[Any] = []
        self._sizes: list[dict[str, float]] = []

    @property
    def _all_steps(self) -> int:
        return 1 if self.config.plan == "one_shot" else int(self.config.steps)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        import_torch_pruning()
        self._model = model
        self._sizes = [self._size()]
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._optimizer = optimizer
        return optimizer

    def after_epoch(self, metrics: Mapping[str, Any], step: Step) -> Decision | None:
        c = self.config
        since = step.epoch - c.begin
        is_due = since >= 0 and since % c.every == 0 and self._steps < self._all_steps
        if not is_due or step.epochs_left == 0:
            return None
        self._steps += 1
        gone = ratio_after(self._steps, of=self._all_steps, final=c.ratio, plan=c.plan)
        before = ratio_after(self._steps - 1, of=self._all_steps, final=c.ratio, plan=c.plan)
        self._prune((gone - before) / (1.0 - before))
        self._sizes.append(self._size())
        first, now = self._sizes[0], self._sizes[-1]
        return Decision(
            reason=f"{gone:.0%} of the channels are gone: {now['parameters']:,.0f} of {first['parameters']:,.0f} parameters",
            reshaped=True,
            metrics={"parameters": now["parameters"], "macs": now["macs"]},
        )

    def _prune(self, ratio: float) -> None:
        """Remove a share of the channels that are there."""
        with _New(self._model, self._optimizer):
            pruner = self._pruner(ratio)
            pruner.step()
        self._history += [
            [name, bool(is_out), [int(i) for i in rows]] for name, is_out, rows in pruner.pruning_history()
        ]

    def _pruner(self, ratio: float) -> Any:
        tp, c = import_torch_pruning(), self.config
        kinds = {
            "l1": lambda: tp.importance.GroupMagnitudeImportance(p=1),
            "l2": lambda: tp.importance.GroupMagnitudeImportance(p=2),
            "bn_scale": lambda: tp.importance.BNScaleImportance(),
            "taylor": lambda: tp.importance.GroupTaylorImportance(),
        }
        return tp.pruner.BasePruner(
            self._model,
            self._example,
            importance=kinds[c.importance](),
            pruning_ratio=ratio,
            ignored_layers=self._ignored(),
            round_to=c.round_to,
        )

    def _ignored(self) -> list[nn.Module]:
        layers = [m for m in self._model.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
        if len(layers) < 2:
            raise ConfigError(
                "strategies.structured_pruning: the model has no layer besides the one that gives the outputs."
            )
        named = self.config.ignore
        more = named_blocks(self._model, named, what="strategies.structured_pruning.ignore") if named else []
        return [layers[-1], *(module for _, module in more)]

    @property
    def _example(self) -> Any:
        return self.context.tools.example

    def _size(self) -> dict[str, float]:
        macs, parameters = import_torch_pruning().utils.count_ops_and_params(self._model, self._example)
        return {
            "parameters": float(parameters),
            "macs": float(macs),
            "latency_ms": latency_ms(self._model, self._example),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "history": [[n, o, list(rows)] for n, o, rows in self._history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        self._history = [list(cut) for cut in state["history"]]

    def rebuild_model(self, state: Mapping[str, Any]) -> None:
        if state.get("history"):
            with _New(self._model, self._optimizer):
                self._pruner(0.0).load_pruning_history([tuple(cut) for cut in state["history"]])
            self._sizes.append(self._size())

    def report(self) -> dict[str, Any]:
        first, now = self._sizes[0], self._sizes[-1]
        return {"steps": self._steps} | {key: {"before": first[key], "after": now[key]} for key in first}


class _New:
    """Hands the optimizer the parameters that a `with` block puts in place of others."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model = model
        self._optimizer = optimizer

    def __enter__(self) -> None:
        self._before = dict(self._model.named_parameters())

    def __exit__(self, *_: object) -> None:
        now = dict(self._model.named_parameters())
        changed = {id(old): now[name] for name, old in self._before.items() if now[name] is not old}
        if self._optimizer is not None:
            replace_parameters(self._optimizer, changed)


def import_torch_pruning() -> Any:
    """Return the module torch_pruning.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        import torch_pruning
    except ImportError as error:
        raise ConfigError(
            "strategies.structured_pruning needs the package torch-pruning, which is not installed.",
            hint="pip install 'muse-spark-ray[prune]'",
        ) from error
    return torch_pruning

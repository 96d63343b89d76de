"""Many strategies as one: the only strategy that the loop knows."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy.contract import HOOKS, Batch, CommHook, Context, Decision, Stage, Step, Strategy, Trait


class StrategyStack(Strategy):
    """Calls, for each hook, the members that override it, in the order of their stages.

    A hook that no member uses loops over an empty tuple, so what is switched off costs nothing and changes no bit.
    """

    name = "stack"
    stage = Stage.SAMPLES

    def __init__(self, members: Iterable[Strategy], context: Context) -> None:
        super().__init__(None, context)
        self.members = tuple(sorted(members, key=lambda member: (member.stage, member.name)))
        self._users = {hook: tuple(m for m in self.members if _overrides(m, hook)) for hook in HOOKS}
        self._transforms = tuple(m.transform_batch for m in self._users["transform_batch"])
        self._losses = tuple(m.loss for m in self._users["loss"])
        self._before = tuple(m.before_update for m in self._users["before_update"])
        self._after = tuple(m.after_update for m in self._users["after_update"])
        frequencies = [m.reorder_every for m in self.members if m.reorder_every]
        self.reorder_every = min(frequencies) if frequencies else None
        self.epoch_samples = next((m.epoch_samples for m in self.members if m.epoch_samples), None)

    def uses(self, hook: str) -> bool:
        """Say if any member overrides `hook`."""
        return bool(self._users[hook])

    def wants(self, trait: Trait) -> bool:
        """Say if any member needs `trait`."""
        return any(trait in member.needs for member in self.members)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        for member in self._users["prepare_model"]:
            model = member.prepare_model(model)
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for member in self._users["wrap_optimizer"]:
            optimizer = member.wrap_optimizer(optimizer)
        return optimizer

    def comm_hook(self) -> CommHook | None:
        hooks = [(member.name, hook) for member in self._users["comm_hook"] if (hook := member.comm_hook()) is not None]
        if len(hooks) > 1:
            names = " and ".join(name for name, _ in hooks)
            raise ConfigError(f"strategies {names} both replace the gradient exchange; DDP takes one. Switch one off.")
        return hooks[0][1] if hooks else None

    def order_samples(self, order: Tensor, step: Step) -> Tensor:
        for member in self._users["order_samples"]:
            order = member.order_samples(order, step)
        return order

    def transform_batch(self, batch: Batch, step: Step) -> Batch:
        for transform in self._transforms:
            batch = transform(batch, step)
        return batch

    def loss(self, losses: Tensor, outputs: Any, batch: Batch, step: Step) -> Tensor:
        for change in self._losses:
            losses = change(losses, outputs, batch, step)
        return losses

    def before_update(self, model: nn.Module, step: Step) -> None:
        for act in self._before:
            act(model, step)

    def after_update(self, model: nn.Module, step: Step) -> None:
        for act in self._after:
            act(model, step)

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        for member in self._users["evaluation_model"]:
            model = member.evaluation_model(model)
        return model

    def after_epoch(self, metrics: Mapping[str, Any], step: Step) -> Decision | None:
        decisions = [d for m in self._users["after_epoch"] if (d := m.after_epoch(metrics, step)) is not None]
        return functools.reduce(operator.add, decisions) if decisions else None

    def ended(self) -> str:
        return "; ".join(filter(None, (member.ended() for member in self.members)))

    def report(self) -> dict[str, Any]:
        return {member.name: told for member in self.members if (told := member.report())}

    def rebuild_model(self, state: Mapping[str, Any]) -> None:
        for member in self.members:
            member.rebuild_model(state.get(member.name, {}))

    def state_dict(self) -> dict[str, Any]:
        return {member.name: member.state_dict() for member in self.members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = sorted({member.name for member in self.members} ^ set(state))
        if missing:
            raise ConfigError(
                f"the checkpoint has state of the strategies {sorted(state)}, the config switches on "
                f"{[member.name for member in self.members]}: they differ in {missing}. Resume with the config that was saved.",
                hint="set checkpoint.resume to never to start anew, or choose another checkpoint.save_dir",
            )
        for member in self.members:
            member.load_state_dict(state[member.name])


def check_traits(chosen: Iterable[tuple[type[Strategy], Any]], available: Iterable[Trait]) -> None:
    """Refuse combinations that cannot work, before anything is paid for.

    Args:
        chosen: The strategies that are switched on, each with its config.
        available: What the task, the criterion and the precision offer.

    Raises:
        ConfigError: Naming the strategy and what it lacks or cannot stand.
    """
    have = set(available)
    pairs = sorted(chosen, key=lambda pair: (pair[0].stage, pair[0].name))
    for member, config in pairs:
        lacking = member.needs - have
        if lacking:
            raise ConfigError(
                f"strategies.{member.name} needs {_names(lacking)}, which this run does not have. Remove the block to switch it off."
            )
        clash = member.refused_by(config) & have.union(
            *(other.makes for other, _ in pairs if other.stage == member.stage and other is not member)
        )
        if clash:
            raise ConfigError(
                f"strategies.{member.name} does not work with {_names(clash)}. Switch one of the two off."
            )
        have |= member.makes


def _names(traits: Iterable[Trait]) -> str:
    return " and ".join(sorted(trait.value for trait in traits))


def _overrides(member: Strategy, hook: str) -> bool:
    return getattr(type(member), hook) is not getattr(Strategy, hook)

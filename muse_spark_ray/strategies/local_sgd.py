"""Local SGD: ranks train apart for some updates, then average their weights instead of each gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from muse_spark_ray.strategy import (
    Card,
    CommHook,
    Context,
    Stage,
    Step,
    Strategy,
    StrategyConfig,
    Trait,
    knob,
)
from muse_spark_ray.strategy.wire import all_reduce_bytes, done, on_first_rank


@torch.no_grad()
def average(tensors: list[Tensor]) -> float:
    """Put the mean over all ranks in place of each tensor, in one exchange; return the bytes that this rank sent."""
    world = dist.get_world_size()
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= world
    for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))
    return all_reduce_bytes(flat.nbytes, world)


class LocalSGD(Strategy):
    """Average the weights of all ranks every so many updates, and at the end of each epoch, not each gradient.

    Before `begin` updates gradients are exchanged as ever (post-local SGD). From then on a rank's update only asks the
    others whether all their gradients are finite, so that all skip the same updates. Optimizers keep a state of their
    own on each rank; checkpoints hold all of them. On one rank nothing changes.
    """

    stage = Stage.UPDATE
    makes = frozenset({Trait.WEIGHTS_APART})
    refuses = frozenset({Trait.CHANGING_SHAPES})
    card = Card(
        saves="all but one in `every` exchanges between workers",
        costs="checkpoints hold the weights and the optimizer of each worker",
        pays="slow links, where even compressed gradients take longer than an update",
        hurts="large `every` with a high learning rate: ranks drift apart",
        source="Stich 2019, Local SGD Converges Fast and Communicates Little; Lin et al. 2020 (post-local SGD)",
    )

    class Config(StrategyConfig):
        """Settings of local SGD."""

        every: int = knob(8, ge=1, search=(2, 32, "log"), doc="updates between two averages of the weights")
        begin: int = knob(100, ge=0, doc="updates before which gradients are exchanged in each")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._model: nn.Module = nn.Module()
        self._optimizer: torch.optim.Optimizer | None = None
        self._updates = 0
        self._is_apart = False
        self._sent = self._uncompressed = 0.0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._model = model
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._optimizer = optimizer
        return optimizer

    def comm_hook(self) -> CommHook:
        return CommHook(None, self._exchange_bucket)

    def after_update(self, model: nn.Module, step: Step) -> None:
        if self.context.world_size == 1:
            return
        self._is_apart = self._updates >= self.config.begin
        self._updates += 1
        if self._updates % self.config.every == 0:
            self._meet()

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        # Called on all ranks at the end of an epoch, where what is evaluated must be one model, and training goes on
        # from it. Then until the next update nothing is left to do, on whichever rank this is called.
        self._meet()
        return model

    def report(self) -> dict[str, Any]:
        """Return the bytes that this rank sent, and would have sent with an exchange in each update."""
        return {"bytes_sent": round(self._sent), "bytes_uncompressed": round(self._uncompressed)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": self._updates,
            "sent": self._sent,
            "uncompressed": self._uncompressed,
            "apart": self._is_apart,
            "ranks": self._states_of_ranks() if self.context.world_size > 1 else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates, self._is_apart = int(state["updates"]), bool(state["apart"])
        self._sent, self._uncompressed = float(state["sent"]), float(state["uncompressed"])
        ranks, c = state["ranks"], self.context
        parameters = list(self._model.parameters())
        is_same = len(ranks) == c.world_size
        if is_same and c.world_size > 1:
            own = ranks[c.rank]
            if self._optimizer is not None:
                self._optimizer.load_state_dict(own["optimizer"])
            weights = own["weights"]
        elif ranks:
            weights = [
                torch.stack(all_of_one).mean(0) for all_of_one in zip(*(r["weights"] for r in ranks), strict=True)
            ]
        else:
            return
        self._is_apart = self._is_apart and is_same
        with torch.no_grad():
            for parameter, saved in zip(parameters, weights, strict=True):
                parameter.copy_(saved)

    def _states_of_ranks(self) -> list[dict[str, Any]]:
        c = self.context
        own = {
            "weights": [parameter.detach().cpu().clone() for parameter in self._model.parameters()],
            "optimizer": self._optimizer.state_dict() if self._optimizer is not None else {},
        }
        return on_first_rank(own, rank=c.rank, world=c.world_size)

    def _meet(self) -> None:
        if self._is_apart:
            self._sent += average(list(self._model.parameters()))
            self._is_apart = False

    def _exchange_bucket(self, state: object, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket before `begin`; afterwards leave it, unless some rank has a number that is not finite."""
        flat = bucket.buffer()
        plain = all_reduce_bytes(flat.nbytes, self.context.world_size)
        self._uncompressed += plain
        if self._updates < self.config.begin:
            dist.all_reduce(flat.div_(self.context.world_size))
            self._sent += plain
        else:
            is_bad = (~torch.isfinite(flat).all()).to(flat.dtype).view(1)
            dist.all_reduce(is_bad, dist.ReduceOp.MAX)
            flat.add_(torch.where(is_bad > 0, torch.nan, 0.0))
        return done(flat)

"""One process or many: what the training needs to know of torch.distributed, and how a model is spread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategy import StrategyStack

_NOTHING = nullcontext()
_NO_CAP_MB = 1 << 20
_MADE_FOR = "parameters_it_was_made_for"


@dataclass(frozen=True, slots=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Say if this process writes what is written once."""
        return self.rank == 0


def join_world(device: str) -> World:
    """Join the process group, starting it where torchrun has set the stage.

    Args:
        device: `auto`, or a torch device such as `cpu` or `cuda:1`.

    Returns:
        Rank, size, and the device of this process.
    """
    if dist.is_available() and not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("nccl" if _on_gpu(device) else "gloo")
    is_many = dist.is_available() and dist.is_initialized()
    rank, size = (dist.get_rank(), dist.get_world_size()) if is_many else (0, 1)
    return World(rank, size, _pick_device(device))


def _on_gpu(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _pick_device(device: str) -> torch.device:
    if device != "auto":
        chosen = torch.device(device)
    elif not torch.cuda.is_available():
        chosen = torch.device("cpu")
    else:
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # what NCCL's exchange of objects goes through
    return chosen


def spread(model: nn.Module, world: World, stack: StrategyStack) -> nn.Module:
    """Wrap the model so that gradients are averaged over all ranks; a single process trains it as it is."""
    if world.size == 1 or isinstance(model, DistributedDataParallel):
        return model
    hook = stack.comm_hook()
    wrapped = DistributedDataParallel(
        model,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        bucket_cap_mb=_NO_CAP_MB if hook is not None and hook.in_one_bucket else None,
    )
    # The first rank's buffers are the ones that count, and `share_buffers` hands them out before each evaluation.
    # Without a broadcast in the forward pass, a rank may cut its micro-batches on its own.
    wrapped.broadcast_buffers = False
    setattr(wrapped, _MADE_FOR, _trained_parameters(model))
    if hook is not None:
        # DDP looks at annotations, and refuses those that are kept as text.
        wrapped.register_comm_hook(hook.state, lambda state, bucket: hook.exchange(state, bucket))
    return wrapped


def spread_again(model: nn.Module, module: nn.Module, world: World, stack: StrategyStack) -> nn.Module:
    """Wrap a model anew, after the set or the shapes of its trained parameters changed.

    Args:
        model: As it was wrapped; the caller must not use it any more.
        module: The plain model in it.
        world: This rank among its peers.
        stack: The strategies.
    """
    if world.size == 1 or not isinstance(model, DistributedDataParallel):
        return model
    made_for = getattr(model, _MADE_FOR, None)
    if made_for == _trained_parameters(module):
        return model
    if made_for is None:
        raise ConfigError(
            "a strategy changed which parameters are trained, but the model came wrapped in DistributedDataParallel.",
            hint="give MuseSparkTrainer the plain model; it wraps it itself",
        )
    del model.reducer  # its hooks on the parameters go with it
    return spread(module, world, stack)


def _trained_parameters(module: nn.Module) -> list[int]:
    return [id(parameter) for parameter in module.parameters() if parameter.requires_grad]


def gradient_sync(model: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:
    """Return the context of a micro-batch: only a window's last one exchanges gradients."""
    if is_last or not isinstance(model, DistributedDataParallel):
        return _NOTHING
    return model.no_sync()


def share_buffers(model: nn.Module, world: World) -> None:
    """Give all ranks the first one's buffers, such as BatchNorm statistics, of which each rank keeps its own.

    Without it ranks would evaluate, and keep, different models.
    """
    if world.size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def sum_over_ranks(values: Sequence[float], world: World) -> list[float]:
    """Add numbers over all ranks, in float64."""
    if world.size == 1:
        return list(values)
    total: Tensor = torch.tensor(values, dtype=torch.float64, device=world.device)
    dist.all_reduce(total)
    return [float(value) for value in total]


def any_rank(flag: bool, world: World) -> bool:
    """Say if the flag is set on any rank; all ranks get the same answer."""
    return sum_over_ranks([float(flag)], world)[0] > 0

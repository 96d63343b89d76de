"""Gradient compression: ranks exchange fewer bytes, and what is left out of one exchange is added to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from muse_spark_ray.strategy import Card, CommHook, Context, Stage, Step, Strategy, StrategyConfig, knob, seeded
from muse_spark_ray.strategy.wire import all_gather, all_reduce_bytes, done, on_first_rank

Method = Literal["fp16", "bf16", "int8", "topk", "powersgd"]
_BLOCK = 1024
_ROUNDED = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What became of one exchange.

    Args:
        mean: [N] float32, the same on all ranks: about the mean of their gradients.
        counted: [N] float32, as what this rank's gradients entered it; the mean of these over all ranks is `mean`.
        sent: Bytes that this rank sent, by ring algorithms.
    """

    mean: Tensor
    counted: Tensor
    sent: float


def exchange_rounded(flat: Tensor, dtype: torch.dtype) -> Exchanged:
    """Average [N] gradients in a shorter floating-point type."""
    world = dist.get_world_size()
    rounded = flat.to(dtype)
    counted = rounded.to(flat.dtype)
    rounded /= world
    dist.all_reduce(rounded)
    return Exchanged(rounded.to(flat.dtype), counted, all_reduce_bytes(rounded.nbytes, world))


def quantised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round [..., B] blocks to 8 bits; return ([..., B] int8, [..., 1] float32 scales)."""
    scale = values.abs().amax(-1, keepdim=True) / 127.0
    return (values / scale.clamp_min(1e-30)).round().to(torch.int8), scale


def exchange_int8(flat: Tensor) -> Exchanged:
    """Average [N] gradients as 8-bit numbers with a scale for each block of 1,024.

    Each rank adds up its part of all the others', and sends the sum, rounded again, to all. What the second rounding
    changes counts as this rank's own.
    """
    world, rank, length = dist.get_world_size(), dist.get_rank(), len(flat)
    blocks = -(-length // (_BLOCK * world))
    padded = torch.nn.functional.pad(flat, (0, blocks * _BLOCK * world - length)).view(world, blocks, _BLOCK)
    numbers, scales = quantised(padded)
    counted = numbers * scales
    theirs, their_scales = torch.empty_like(numbers), torch.empty_like(scales)
    dist.all_to_all_single(theirs, numbers)
    dist.all_to_all_single(their_scales, scales)
    part = (theirs * their_scales).sum(0) / world
    own, own_scale = quantised(part)
    all_numbers, all_scales = torch.empty_like(numbers), torch.empty_like(scales)
    all_gather(all_numbers.view(-1), own.view(-1))
    all_gather(all_scales.view(-1), own_scale.view(-1))
    mean = all_numbers * all_scales
    counted[rank] += world * (mean[rank] - part)
    sent = all_reduce_bytes(numbers.nbytes + scales.nbytes, world)
    return Exchanged(mean.view(-1)[:length], counted.view(-1)[:length], sent)


def exchange_largest(flat: Tensor, density: float) -> Exchanged:
    """Average [N] gradients of which each rank sends only the largest of each block of about 1 / `density`.

    Source: Stich et al. 2018, Sparsified SGD with Memory; a block-wise choice needs no sort.
    """
    world, length = dist.get_world_size(), len(flat)
    block = min(max(1, round(1.0 / density)), 32_767, length)
    padded = torch.nn.functional.pad(flat, (0, -length % block)).view(-1, block)
    place = padded.abs().argmax(1, keepdim=True)
    value = padded.gather(1, place).to(torch.bfloat16)
    message = torch.cat([value.view(torch.uint8).flatten(), place.to(torch.int16).view(torch.uint8).flatten()])
    messages = torch.empty(world * len(message), dtype=torch.uint8, device=flat.device)
    all_gather(messages, message)
    values, places = messages.view(world, 2, -1).unbind(1)
    total = torch.zeros_like(padded)
    for theirs, where in zip(values, places, strict=True):
        total.scatter_add_(
            1,
            where.contiguous().view(torch.int16).to(torch.int64)[:, None],
            theirs.contiguous().view(torch.bfloat16).to(flat.dtype)[:, None],
        )
    counted = torch.zeros_like(padded).scatter_(1, place, value.to(flat.dtype))
    mean = total.view(-1)[:length] / world
    return Exchanged(mean, counted.view(-1)[:length], (world - 1.0) * len(message))


def is_worth_factors(shape: Sequence[int], rank: int) -> bool:
    """Say if two factors of a matrix are at most half as large as it is."""
    rows, columns = shape[0], int(torch.Size(shape[1:]).numel()) if len(shape) > 1 else 1
    return len(shape) > 1 and 2 * rank * (rows + columns) <= rows * columns


def exchange_factors(parts: Sequence[Tensor], factors: Sequence[Tensor | None]) -> tuple[list[Tensor], float]:
    """Average gradients as products of two thin matrices.

    Args:
        parts: Gradients, each of its parameter's shape.
        factors: [columns, rank] float32 for each gradient that is a matrix to approximate, changed in place, which
            makes the next approximation better; None for one that is exchanged as it is.

    Returns:
        (the averages, each of its parameter's shape; bytes that this rank sent).

    Source: Vogels et al. 2019, PowerSGD, algorithm 1.
    """
    world = dist.get_world_size()
    matrices = [part.reshape(len(part), -1) if q is not None else part for part, q in zip(parts, factors, strict=True)]
    left = [m @ q if q is not None else m / world for m, q in zip(matrices, factors, strict=True)]
    sent = _all_reduce_together(left)
    left = [torch.linalg.qr(p)[0] if q is not None else p for p, q in zip(left, factors, strict=True)]
    right = [m.T @ p / world for m, p, q in zip(matrices, left, factors, strict=True) if q is not None]
    sent += _all_reduce_together(right)
    given = iter(right)
    means = []
    for part, p, q in zip(parts, left, factors, strict=True):
        means.append(p if q is None else (p @ q.copy_(next(given)).T).view_as(part))
    return means, sent


def _all_reduce_together(tensors: list[Tensor]) -> float:
    """Sum tensors over all ranks in place, in one exchange; return the bytes that this rank sent."""
    if not tensors:
        return 0.0
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, summed in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(summed.view_as(tensor))
    return all_reduce_bytes(flat.nbytes, dist.get_world_size())


class GradientCompression(Strategy):
    """Exchange gradients between ranks in fewer bytes.

    What int8, topk and powersgd leave out of an exchange stays on its rank and is added to the next gradient (error
    feedback). On one rank nothing is exchanged, and nothing changes.
    """

    stage = Stage.UPDATE
    card = Card(
        saves="bytes between workers: 2 x (fp16, bf16), 4 x (int8), 50 x and more (topk, powersgd)",
        costs="a pass over the gradients; but for fp16 and bf16 a copy of them, kept in checkpoints for each worker",
        pays="slow links: Ethernet, several zones, spot nodes spread out",
        hurts="NVLink, small networks; topk and powersgd in the first updates (hence `warmup_updates`)",
        source="Vogels et al. 2019, PowerSGD; Stich et al. 2018; Karimireddy et al. 2019 (error feedback)",
    )

    class Config(StrategyConfig):
        """Settings of the compression."""

        method: Method = knob(
            "powersgd",
            search=["fp16", "bf16", "int8", "topk", "powersgd"],
            doc="shorter floats; 8-bit numbers; the largest gradients only; products of two thin matrices",
        )
        rank: int = knob(4, ge=1, le=256, doc="powersgd: columns of the thin matrices")
        density: float = knob(0.01, gt=0, le=1, doc="topk: share of the gradients that is sent")
        warmup_updates: int = knob(100, ge=0, doc="int8, topk, powersgd: updates before which all is exchanged")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._model: nn.Module = nn.Module()
        self._names: dict[int, str] = {}
        self._residuals: dict[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}
        self._updates = 0
        self._sent = self._uncompressed = 0.0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._model = model
        return model

    def comm_hook(self) -> CommHook:
        # The blocks of int8 and topk are cut from all gradients in the order of their names: a resumed training cuts alike.
        return CommHook(None, self._exchange_bucket, in_one_bucket=self.config.method not in _ROUNDED)

    def after_update(self, model: nn.Module, step: Step) -> None:
        self._updates += 1

    def report(self) -> dict[str, Any]:
        """Return the bytes that this rank sent, and would have sent without compression, by ring algorithms."""
        return {"bytes_sent": round(self._sent), "bytes_uncompressed": round(self._uncompressed)}

    def state_dict(self) -> dict[str, Any]:
        own = {name: residual.clone() for name, residual in self._residuals.items()}
        return {
            "updates": self._updates,
            "sent": self._sent,
            "uncompressed": self._uncompressed,
            "factors": {name: factor.clone() for name, factor in self._factors.items()},
            "residuals": self._of_all_ranks(own),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates = int(state["updates"])
        self._sent, self._uncompressed = float(state["sent"]), float(state["uncompressed"])
        device = self.context.device
        self._factors = {name: factor.to(device, copy=True) for name, factor in state["factors"].items()}
        ranks = state["residuals"]
        if len(ranks) == self.context.world_size:
            own = ranks[self.context.rank]
        else:  # an exchange averages: with the mean on each of other ranks, nothing is lost
            own = {name: torch.stack([rank[name] for rank in ranks]).mean(0) for name in ranks[0]}
        self._residuals = {name: residual.to(device, copy=True) for name, residual in own.items()}

    def _of_all_ranks(self, own: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return what all ranks hold, on the first one, which writes checkpoints; the others need not."""
        c = self.context
        held = {name: residual.cpu() for name, residual in own.items()}
        return on_first_rank(held, rank=c.rank, world=c.world_size)

    def _exchange_bucket(self, state: object, bucket: Any) -> torch.futures.Future[Tensor]:
        """Replace a bucket of gradients by their average over all ranks, as DDP asks of its hooks."""
        flat, c = bucket.buffer(), self.config
        plain = all_reduce_bytes(flat.nbytes, self.context.world_size)
        self._uncompressed += plain
        if c.method in _ROUNDED:
            got = exchange_rounded(flat, _ROUNDED[c.method])
            mean, sent = got.mean, got.sent
        elif self._updates < c.warmup_updates:
            dist.all_reduce(flat.div_(self.context.world_size))
            mean, sent = flat, plain
        else:
            mean, sent = self._exchange_with_feedback(bucket)
        self._sent += sent
        return done(mean)

    def _exchange_with_feedback(self, bucket: Any) -> tuple[Tensor, float]:
        named = zip(map(self._name, bucket.parameters()), bucket.gradients(), strict=True)
        names, parts = zip(*sorted(named, key=itemgetter(0)), strict=True)
        before = [self._residual(name, part) for name, part in zip(names, parts, strict=True)]
        torch._foreach_add_(list(parts), before)
        flat = torch.cat([part.flatten() for part in parts])
        if self.config.method == "powersgd":
            got = self._exchange_factors(names, parts)
        elif self.config.method == "int8":
            got = exchange_int8(flat)
        else:
            got = exchange_largest(flat, self.config.density)
        # A gradient that is not finite would stay for ever in what is added to the next.
        is_good = torch.isfinite(got.mean).all()
        sizes = [part.numel() for part in parts]
        left, means = torch.split(flat - got.counted, sizes), torch.split(got.mean, sizes)
        for name, part, mean, new, old in zip(names, parts, means, left, before, strict=True):
            part.copy_(mean.view_as(part))
            self._residuals[name] = torch.where(is_good, new.view_as(old), old)
        return bucket.buffer(), got.sent

    def _exchange_factors(self, names: Sequence[str], parts: Sequence[Tensor]) -> Exchanged:
        factors = [self._factor(name, part) for name, part in zip(names, parts, strict=True)]
        before = {name: factor.clone() for name, factor in zip(names, factors, strict=True) if factor is not None}
        means, sent = exchange_factors(parts, factors)
        mean = torch.cat([part.flatten() for part in means])
        is_good = torch.isfinite(mean).all()
        for name, old in before.items():
            self._factors[name] = torch.where(is_good, self._factors[name], old)
        return Exchanged(mean, mean, sent)

    def _residual(self, name: str, gradient: Tensor) -> Tensor:
        """Return what a gradient's earlier exchanges left out, nothing if its shape has changed since."""
        held = self._residuals.get(name)
        return held if held is not None and held.shape == gradient.shape else torch.zeros_like(gradient)

    def _factor(self, name: str, gradient: Tensor) -> Tensor | None:
        """Return the thin matrix that a gradient's next approximation starts from, None if it is sent as it is."""
        rank, columns = self.config.rank, gradient.shape[1:].numel()
        if not is_worth_factors(gradient.shape, rank):
            return None
        held = self._factors.get(name)
        if held is None or held.shape != (columns, rank):
            number = sum(map(ord, name)) * 7919 + len(name)
            first = torch.randn(columns, rank, generator=seeded(self.context.seed, number))
            held = self._factors[name] = first.to(gradient)
        return held

    def _name(self, parameter: Tensor) -> str:
        if id(parameter) not in self._names:
            self._names = {id(p): name for name, p in self._model.named_parameters()}
        return self._names[id(parameter)]

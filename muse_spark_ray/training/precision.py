"""Mixed precision: autocast for the forward pass, loss scaling where fp16 needs it, and the way back to fp32."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.spec.train import PrecisionConfig

logger = logging.getLogger(__name__)
Kind = Literal["off", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NOTHING = nullcontext()
_FP8_CAPABILITY = (8, 9)


def choose_kind(amp: str, device: torch.device) -> Kind:
    """Resolve the setting for a device: bf16 where the hardware has it, else fp16; `auto` leaves a CPU in fp32."""
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    if amp == "bf16" and not has_bf16:
        logger.warning("precision.amp is bf16, which %s does not have: fp16 with loss scaling is used.", device)
        return "fp16"
    if amp in ("off", "bf16", "fp16"):
        return amp  # type: ignore[return-value]
    if device.type == "cuda":
        return "bf16" if has_bf16 else "fp16"
    return "bf16" if amp == "on" else "off"


class Precision:
    """The three places where precision matters: forward, backward, update.

    With fp16 the loss is scaled by torch's GradScaler, which leaves out an update whose gradients overflowed. What is
    reduced, normalised or exponentiated stays in fp32: torch's autocast sees to it in the forward pass, and losses,
    metrics and sums over ranks are taken in fp32 or fp64.
    """

    def __init__(self, config: PrecisionConfig, device: torch.device) -> None:
        self.kind = choose_kind(config.amp, device)
        self._device = device.type
        self._falls_back = config.fallback
        self.scaler: torch.amp.GradScaler | None = None
        self.overflows = 0
        self.smallest_scale: float | None = None
        self.fell_back_from: str | None = None
        if config.tf32 is not None:
            torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        if self.kind == "fp16":
            self.scaler = torch.amp.GradScaler(
                self._device, init_scale=config.init_scale, growth_interval=config.growth_interval
            )
            self.smallest_scale = config.init_scale

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass."""
        if self.kind == "off":
            return _NOTHING
        return torch.autocast(self._device, dtype=_DTYPES[self.kind])

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients, scaled where needed."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients back to their true size; must come before clipping."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, again: Callable[[], None] | None = None) -> bool:
        """Update the weights.

        Args:
            optimizer: Whose gradients are unscaled.
            again: Passed to `step` as its closure, for an optimizer that needs the gradients at other weights.

        Returns:
            False if the scaler left the update out because a gradient overflowed.
        """
        if self.scaler is None:
            if again is None:
                optimizer.step()
            else:
                optimizer.step(again)  # type: ignore[arg-type]
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        # The scale falls exactly when an update was left out; torch offers no other public sign of it.
        now = self.scaler.get_scale()
        if now < before:
            self.overflows += 1
            self.smallest_scale = min(now, self.smallest_scale or now)
        return now >= before

    def fall_back(self) -> bool:
        """Go on in the next safer precision: from fp16 or bf16 to fp32.

        Returns:
            False if there is none, or the config does not want it.
        """
        if self.kind == "off" or not self._falls_back:
            return False
        logger.warning(
            "precision %s gives losses or gradients that are not finite: going on in fp32. Set precision.amp: off to start "
            "there, or precision.fallback: false to stop instead.",
            self.kind,
        )
        self.fell_back_from, self.kind, self.scaler = self.kind, "off", None
        return True

    def report(self) -> dict[str, Any]:
        """Return how often and how far fp16 overflowed, and whether the training went on in another precision."""
        scale = None if self.scaler is None else self.scaler.get_scale()
        return {
            "kind": self.kind,
            "overflows": self.overflows,
            "scale": scale,
            "smallest_scale": self.smallest_scale,
            "fell_back_from": self.fell_back_from,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's state and the statistics."""
        return {
            "scaler": {} if self.scaler is None else self.scaler.state_dict(),
            "overflows": self.overflows,
            "smallest_scale": self.smallest_scale,
            "fell_back_from": self.fell_back_from,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scaler's state and the statistics; a training that fell back stays there."""
        self.overflows, self.smallest_scale = int(state["overflows"]), state["smallest_scale"]
        self.fell_back_from = state["fell_back_from"]
        if self.fell_back_from is not None:
            self.kind, self.scaler = "off", None
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])


def to_fp8(model: nn.Module, device: torch.device) -> None:
    """Let the model's large linear layers compute in fp8, in place.

    Raises:
        ConfigError: If the GPU has no fp8, or torchao is not installed.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        seen = device.type if device.type != "cuda" else f"{torch.cuda.get_device_name(device)}"
        raise ConfigError(
            f"precision.fp8 needs a GPU of compute capability 8.9 or more (L4, L40S, H100 and later); here is {seen}.",
            hint="set precision.fp8: false and precision.amp: on",
        )
    try:
        from torchao.float8 import convert_to_float8_training
    except ImportError as error:
        raise ConfigError(
            "precision.fp8 needs the package torchao, which is not installed.",
            hint="pip install 'muse-spark-ray[fp8]'",
        ) from error
    multiple = 16  # of both sizes of a matrix, which the kernels need

    def is_large(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and module.in_features % multiple == module.out_features % multiple == 0

    convert_to_float8_training(model, module_filter_fn=is_large)

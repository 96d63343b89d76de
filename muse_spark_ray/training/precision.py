"""Mixed precision: autocast for the forward pass, loss scaling where fp16 needs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from muse_spark_ray.spec.train import PrecisionConfig

Kind = Literal["off", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NOTHING = nullcontext()


def choose_kind(amp: str, device: torch.device) -> Kind:
    """Resolve the setting for a device: bf16 where the hardware has it, else fp16; `auto` leaves a CPU in fp32."""
    if amp in ("off", "bf16", "fp16"):
        return amp  # type: ignore[return-value]
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if amp == "on" else "off"


class Precision:
    """The three places where precision matters: forward, backward, update.

    With fp16 the loss is scaled by torch's GradScaler, which leaves out an update whose gradients overflowed.
    """

    def __init__(self, config: PrecisionConfig, device: torch.device) -> None:
        self.kind = choose_kind(config.amp, device)
        self._device = device.type
        self.scaler: torch.amp.GradScaler | None = None
        if self.kind == "fp16":
            self.scaler = torch.amp.GradScaler(
                self._device, init_scale=config.init_scale, growth_interval=config.growth_interval
            )

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
        scale = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        # The scale falls exactly when an update was left out; torch offers no other public sign of it.
        return self.scaler.get_scale() >= scale

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's state."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scaler's state."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)

"""Compile: let torch.compile turn the model into fused kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from muse_spark_ray.cost import Phase
from muse_spark_ray.strategy import Card, Context, Stage, Step, Strategy, StrategyConfig, change_forward, knob

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Backend = Literal["inductor", "aot_eager", "eager", "cudagraphs"]


class Compile(Strategy):
    """Compile the model's forward and backward pass; the time that takes is booked as `compile`.

    The model is compiled in place, so its weights keep their names and evaluation profits too.
    """

    stage = Stage.AVERAGE
    card = Card(
        saves="10 to 50 % of step time on GPUs by fused kernels",
        costs="half a minute to several minutes at the first step, again for each new shape of inputs",
        pays="long trainings of models with many small operations",
        hurts="short trials; inputs of changing shape; models that print or branch on values",
        source="Ansel et al. 2024, PyTorch 2; https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    )

    class Config(StrategyConfig):
        """Settings of torch.compile."""

        mode: Mode = knob(
            "default", search=["default", "max-autotune"], doc="how much time is spent on finding kernels"
        )
        backend: Backend = knob("inductor", doc="inductor generates kernels; the others are for finding faults")
        dynamic: bool | None = knob(None, doc="kernels for any input shape; none: after a second shape was seen")
        fullgraph: bool = knob(
            False, doc="fail where a part of the model cannot be compiled, instead of running it as it is"
        )

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._booked = 0.0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        c = self.config
        # What was compiled is kept by source line, of which torch takes a few variants only: trials that follow each
        # other in one process would soon run as they are.
        torch._dynamo.reset()
        self._watch = CompileWatch()  # only now: the reset clears torch's count too
        # Forward passes that torch itself defines, such as Sequential's, are never traced from outside; ours are.
        change_forward(model, lambda module, own: own)
        model.compile(
            backend=c.backend,
            dynamic=c.dynamic,
            fullgraph=c.fullgraph,
            **({"mode": c.mode} if c.backend == "inductor" and c.mode != "default" else {}),
        )
        return model

    def after_update(self, model: nn.Module, step: Step) -> None:
        """Book what was spent on compiling since the last update."""
        seconds = self._watch.seconds
        if seconds > self._booked:
            self.context.tools.clock.add(Phase.compile, seconds - self._booked)
            self._booked = seconds

    def report(self) -> dict[str, Any]:
        return {"compile_seconds": self._booked}


class CompileWatch:
    """Counts the seconds that torch spends on compiling since it was made, in this process."""

    def __init__(self) -> None:
        self._before = _seconds_so_far()

    @property
    def seconds(self) -> float:
        """Seconds since this watch was made."""
        return _seconds_so_far() - self._before


def _seconds_so_far() -> float:
    # The forward and backward graphs are both compiled inside the frame that torch counts here.
    times: Mapping[str, list[float]] = torch._dynamo.utils.compilation_time_metrics
    return float(sum(sum(times.get(frame, ())) for frame in ("_compile.compile_inner", "backward._backward_impl")))

"""Why a training went wrong, with the evidence and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muse_spark_ray.errors import TrialError

if TYPE_CHECKING:
    from muse_spark_ray.training.loop import Run


class DivergedError(TrialError):
    """The loss or the gradients stopped being finite numbers."""


def bad_steps_diagnosis(run: Run, loss: float, norm: float | None) -> str:
    """Describe a row of windows that could not be applied."""
    seen = f"loss {loss:g}" + ("" if norm is None else f", gradient norm {norm:g}")
    advice = ["lower optimizer.lr or add schedule.warmup_steps"]
    if run.clip_norm is None:
        advice.append("set clip_norm (usual 1.0)")
    if run.precision.kind == "fp16":
        advice.append("use precision.amp: bf16 or off, or a smaller precision.init_scale")
    if run.updates == 0:
        advice.append("check the inputs and targets for values that are not finite")
    return (
        f"training diverged in epoch {run.epoch + 1} after {run.updates} updates: {run.bad_in_a_row} windows in a row had no "
        f"finite loss or gradient ({seen}; learning rate {run.schedule.lr:g}, precision {run.precision.kind}). "
        f"Try: {'; '.join(advice)}."
    )


def explained(error: ValueError) -> ValueError | TrialError:
    """Return what torch says about a batch of one sample in words that help; any other error as it is."""
    if "more than 1 value per channel" not in str(error):
        return error
    return TrialError(
        "a micro-batch holds a single sample, from which BatchNorm cannot take statistics.",
        hint="choose a batch_size that does not leave a rest of 1, set drop_last on the loader, or freeze BatchNorm",
    )

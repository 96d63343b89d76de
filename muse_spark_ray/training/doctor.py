"""Short trials of a task before it is trained: does it learn, how fast, does it repeat itself, does it resume."""

from __future__ import annotations

import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from muse_spark_ray.data import Cut, Task, load_in_memory, open_source
from muse_spark_ray.data.findings import Finding
from muse_spark_ray.data.inspect import inspect_data
from muse_spark_ray.data.sets import TensorSet
from muse_spark_ray.errors import MuseSparkError
from muse_spark_ray.strategy import Batch
from muse_spark_ray.training.build import build_model_for, default_optimizer
from muse_spark_ray.training.devices import to_device
from muse_spark_ray.training.distributed import join_world
from muse_spark_ray.training.memory import fits_in_memory, largest_batch
from muse_spark_ray.training.objective import default_criterion
from muse_spark_ray.training.trainer import MuseSparkTrainer

if TYPE_CHECKING:
    from muse_spark_ray.spec.train import TrainConfig

_OVERFIT_STEPS, _OVERFIT_BATCH, _OVERFIT_SHARE = 300, 16, 0.05
_RANGE_STEPS, _RANGE_LOW, _RANGE_HIGH = 80, 1e-6, 10.0
_TIMED_BATCHES = 20
_LOW_DISK, _LOW_SHM = 2e9, 64e6
_SMALL = 200


def examine(config: TrainConfig) -> Iterator[Finding]:
    """Look at a task from all sides, cheapest first.

    Yields:
        A finding for each check; after broken data nothing is trained.
    """
    yield from environment_findings(config)
    data = inspect_data(config.task.data)
    yield from data
    if any(finding.level == "failure" for finding in data):
        return
    patient = Patient(config, load_in_memory(config.task.data))
    for check in (
        patient.output,
        patient.gradient_flow,
        patient.overfits,
        patient.rate_range,
        patient.speed,
        patient.room,
        patient.repeats,
        patient.resumes,
    ):
        try:
            yield check()
        except MuseSparkError as error:
            yield Finding(check.__name__.replace("_", " "), "failure", error.message, error.hint or "")
        except Exception as error:  # the user's model may fail in any way; the other checks still tell something
            yield Finding(check.__name__.replace("_", " "), "failure", f"{type(error).__name__}: {error}")


def environment_findings(config: TrainConfig) -> list[Finding]:
    """Look at versions, GPUs, disk, shared memory."""
    world = join_world(config.device)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} CPU cores"
    findings = [Finding("versions", "ok", versions), _gpu(world.device)]
    place = Path(config.checkpoint.save_dir or ".").expanduser()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    findings.append(
        Finding(
            "disk",
            "ok" if free > _LOW_DISK else "warning",
            f"{free / 1e9:.1f} GB free at {place.resolve()}",
            "" if free > _LOW_DISK else "checkpoints may not fit: free space or lower checkpoint.keep_last",
        )
    )
    shared = Path("/dev/shm")
    if shared.is_dir():
        room = shutil.disk_usage(shared).free
        is_low = room < _LOW_SHM
        advice = "give the container more (docker --shm-size): loader workers and Ray need it" if is_low else ""
        findings.append(Finding("shared memory", "warning" if is_low else "ok", f"{room / 1e9:.1f} GB free", advice))
    return findings


def _gpu(device: torch.device) -> Finding:
    if device.type != "cuda":
        return Finding("GPU", "note", "none is used; training runs on the CPU")
    memory = torch.cuda.get_device_properties(device).total_memory / 1e9
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"  # type: ignore[no-untyped-call]
    return Finding(
        "GPU",
        "ok",
        f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(device)}, {memory:.0f} GB, CUDA {torch.version.cuda}, NCCL {nccl}",
    )


class Patient:
    """A task's model and data for short trials; each begins with fresh weights.

    Args:
        config: Training config.
        task: Its data.
    """

    def __init__(self, config: TrainConfig, task: Task[TensorSet]) -> None:
        self._config = config
        self._task = task
        self._device = join_world(config.device).device
        self._criterion = default_criterion(task.classes)
        size = min(config.batch_size, len(task.train))
        self._source = open_source(task.train, Cut(size, 1, config.seed))
        self._size = size

    def output(self) -> Finding:
        """Look at what the untrained model returns."""
        model, batch = self._model(), self._batch()
        model.eval()
        with torch.no_grad():
            outputs = model(batch.inputs)
        loss = float(self._criterion(outputs, batch.targets))
        shape = tuple(outputs.shape)
        if not bool(torch.isfinite(outputs).all()):
            return Finding(
                "first output", "failure", f"outputs {shape} are not all finite", "check inputs and initial weights"
            )
        if self._task.classes and outputs.ndim == 2 and _is_probabilities(outputs):
            return Finding(
                "first output",
                "warning",
                f"outputs {shape} are probabilities already; cross entropy takes the softmax itself",
                "remove the softmax at the model's end",
            )
        evidence = f"outputs {shape}, loss {loss:.3f}"
        if self._task.classes:
            expected = math.log(self._task.classes)
            evidence += f" (a guess has {expected:.3f})"
            if loss > 3 * expected + 1:
                return Finding("first output", "warning", evidence, "initial weights of the last layer are too large")
        return Finding("first output", "ok", evidence)

    def gradient_flow(self) -> Finding:
        """Look at which parameters get a gradient, and how large."""
        model, batch = self._model(), self._batch()
        model.train()
        self._criterion(model(batch.inputs), batch.targets).backward()
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        norms = {
            n: 0.0 if p.grad is None else float(p.grad.norm()) for n, p in model.named_parameters() if p.requires_grad
        }
        dead = [name for name, norm in norms.items() if norm == 0.0]
        asleep = [name for name, module in model.named_modules() if not module.training]
        alive = [norm for norm in norms.values() if norm > 0]
        evidence = f"{len(norms) - len(dead)} of {len(norms)} parameters get a gradient"
        if alive:
            evidence += f", norms {min(alive):.1e} to {max(alive):.1e}"
        if dead:
            return Finding(
                "gradient flow",
                "warning",
                f"{evidence}; none: {', '.join(dead[:4])}",
                "layers that are not used, detached, or behind dead ReLUs",
            )
        if frozen:
            evidence += f"; frozen: {', '.join(frozen[:4])}"
            return Finding("gradient flow", "note", evidence, "intended? Else set requires_grad")
        if asleep:
            return Finding(
                "gradient flow", "warning", f"{evidence}; in eval mode: {', '.join(asleep[:4])}", "call train()"
            )
        return Finding("gradient flow", "ok", evidence)

    def overfits(self) -> Finding:
        """Train on one small batch: a model and loss that fit together learn it by heart."""
        model, batch = self._model(), self._batch(_OVERFIT_BATCH)
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=3e-3)
        model.train()
        losses = [self._step(model, optimizer, batch) for _ in range(_OVERFIT_STEPS)]
        best = min(losses)
        evidence = f"loss {losses[0]:.3g} to {best:.3g} on {batch.size} samples in {_OVERFIT_STEPS} steps"
        if best <= _OVERFIT_SHARE * losses[0]:
            return Finding("overfit one batch", "ok", evidence)
        return Finding(
            "overfit one batch",
            "warning",
            evidence,
            "the model cannot learn even this: check that loss, targets and outputs fit together, and its size",
        )

    def rate_range(self) -> Finding:
        """Raise the learning rate from step to step and see where the loss falls fastest (Smith 2017, section 3.3)."""
        model = self._model()
        optimizer = default_optimizer(model, self._config)
        rates: list[float] = []
        losses: list[float] = []
        smooth: float | None = None
        batches = self._endless()
        model.train()
        for step in range(_RANGE_STEPS):
            rate = _RANGE_LOW * (_RANGE_HIGH / _RANGE_LOW) ** (step / (_RANGE_STEPS - 1))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = self._step(model, optimizer, next(batches))
            if not math.isfinite(loss) or (losses and loss > 4 * losses[0]):
                break
            smooth = loss if smooth is None else 0.7 * smooth + 0.3 * loss
            rates.append(rate)
            losses.append(smooth)
        if len(losses) < 5 or min(losses) > 0.98 * losses[0]:
            seen = f"the loss does not fall at any rate up to {rates[-1]:.1e}" if rates else "no loss is finite"
            return Finding("learning rate range", "warning", seen, "see first output, gradient flow, overfit one batch")
        lowest = losses.index(min(losses))
        slopes = [losses[i + 2] - losses[i] for i in range(max(lowest - 1, 1))]
        steepest = rates[slopes.index(min(slopes)) + 1]
        chosen = self._config.optimizer.lr
        evidence = f"the loss falls fastest near {steepest:.1e} and rises beyond {rates[lowest]:.1e}; optimizer.lr is {chosen:g}"
        if chosen > 3 * rates[lowest]:
            return Finding("learning rate range", "warning", evidence, f"lower optimizer.lr to about {steepest:.1g}")
        if chosen < steepest / 30:
            return Finding(
                "learning rate range", "note", evidence, f"a larger optimizer.lr, up to {steepest:.1g}, learns faster"
            )
        return Finding("learning rate range", "ok", evidence)

    def speed(self) -> Finding:
        """Time loading and training apart."""
        model = self._model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        batches = self._endless()
        loaded, begun = [], time.perf_counter()
        for _ in range(_TIMED_BATCHES):
            loaded.append(next(batches))
        reading = time.perf_counter() - begun
        model.train()
        self._step(model, optimizer, loaded[0])
        begun = time.perf_counter()
        for batch in loaded:
            self._step(model, optimizer, batch)
        training = time.perf_counter() - begun
        samples = sum(batch.size for batch in loaded)
        evidence = f"loader {samples / reading:,.0f} samples/s, model {samples / training:,.0f} samples/s"
        if reading > training:
            hungry = 1 - training / reading
            return Finding(
                "loader speed",
                "warning",
                f"{evidence}: the device would be hungry {hungry:.0%} of the time",
                "more loader workers (num_workers), a faster disk, decoded data kept in memory",
            )
        return Finding("loader speed", "ok", evidence)

    def room(self) -> Finding:
        """Find the largest batch that fits into the GPU's memory."""
        has_norm = any(isinstance(module, _BatchNorm) for module in self._model().modules())
        if has_norm and self._size < 8:
            return Finding(
                "batch size",
                "warning",
                f"BatchNorm sees {self._size} samples at a time",
                "a larger batch_size, or GroupNorm",
            )
        if self._device.type != "cuda":
            return Finding("batch size", "ok", f"{self._size} samples in a micro-batch")
        model = self._model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def step(size: int) -> None:
            repeated = self._batch(min(size, len(self._task.train)))
            inputs = repeated.inputs.repeat(-(-size // repeated.size), *[1] * (repeated.inputs.ndim - 1))[:size]
            targets = repeated.targets.repeat(-(-size // repeated.size), *[1] * (repeated.targets.ndim - 1))[:size]
            self._step(model, optimizer, Batch(inputs, targets))

        size = largest_batch(fits_in_memory(step), start=self._size, tries=8)
        return Finding(
            "batch size", "ok", f"{self._size} samples in a micro-batch; up to {size} fit (powers of two tried)"
        )

    def repeats(self) -> Finding:
        """Train twice from the same seed and compare the bits."""
        first, second = self._short_run(None, 1), self._short_run(None, 1)
        if all(torch.equal(first[name], second[name]) for name in first):
            return Finding("repeatability", "ok", "two trainings of one seed give the same bits")
        differ = max(float((first[n].float() - second[n].float()).abs().max()) for n in first)
        return Finding(
            "repeatability",
            "note",
            f"two trainings of one seed differ by up to {differ:.1e}",
            "deterministic: true, where it must",
        )

    def resumes(self) -> Finding:
        """Stop a training at an epoch border, go on, and compare with one that was not stopped."""
        with tempfile.TemporaryDirectory() as folder:
            whole = self._short_run(f"{folder}/whole", 2)
            self._short_run(f"{folder}/parts", 1)
            parts = self._short_run(f"{folder}/parts", 2)
        if all(torch.equal(whole[name], parts[name]) for name in whole):
            return Finding("resume", "ok", "a stopped and resumed training ends with the same bits")
        differ = max(float((whole[n].float() - parts[n].float()).abs().max()) for n in whole)
        return Finding(
            "resume",
            "warning",
            f"a resumed training differs by up to {differ:.1e}",
            "operations that are not deterministic, or state outside model, optimizer and strategies",
        )

    def _short_run(self, folder: str | None, epochs: int) -> dict[str, Tensor]:
        config = self._config.model_copy(
            update={
                "checkpoint": self._config.checkpoint.model_copy(update={"save_dir": folder, "weights_from": None}),
                "analysis": type(self._config.analysis)(),
                "stop_epoch": epochs,
            }
        )
        rows = slice(0, max(_SMALL, 2 * self._size))
        part = TensorSet(self._task.train.inputs[rows], self._task.train.targets[rows])
        model = build_model_for(config, self._task)
        MuseSparkTrainer(model, None, None, part, self._task.validation, config).fit()
        return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}

    def _model(self) -> nn.Module:
        return build_model_for(self._config, self._task).to(self._device)

    def _batch(self, size: int | None = None) -> Batch:
        rows = torch.arange(min(size or self._size, len(self._task.train)))
        batch = Batch(self._task.train.inputs[rows], self._task.train.targets[rows])
        return to_device(batch, self._device)

    def _endless(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            for window in self._source.windows(epoch):
                yield from (to_device(batch, self._device) for batch in window.batches)
            epoch += 1

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = self._criterion(model(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()
        return float(loss.detach())


def _is_probabilities(outputs: Tensor) -> bool:
    sums = outputs.float().sum(1)
    return bool((outputs >= 0).all()) and bool((sums - 1.0).abs().max() < 1e-3)

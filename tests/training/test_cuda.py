"""What only a GPU can show: mixed precision, real memory, its own optimizers, NCCL. Skipped where there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys import blobs, in_order, small_net, trained, weights

from muse_spark_ray import MuseSparkTrainer
from muse_spark_ray.testing.ranks import on_ranks
from muse_spark_ray.testing.toys import toy_trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.filterwarnings("ignore")  # of torch.compile, which uses deprecated parts of torch
def test_a_compiled_network_trains() -> None:
    report = toy_trainer(device="cuda", strategies={"compile": {}}).fit(2)
    assert all(math.isfinite(epoch["train_loss"]) for epoch in report["history"])


def test_a_gpu_trains_as_a_cpu_does_within_rounding() -> None:
    on_cpu, on_gpu = small_net(), small_net()
    trained(on_cpu, in_order(blobs(), 8), epochs=3, device="cpu")
    trained(on_gpu, in_order(blobs(), 8), epochs=3, device="cuda", precision={"amp": "off", "tf32": False})
    assert torch.allclose(weights(on_cpu), weights(on_gpu).cpu(), atol=1e-4)


def test_a_batch_larger_than_the_memory_is_cut_and_means_the_same_oom_3() -> None:
    """The memory that this process may use is bounded, so that the first pass of the whole batch does not fit."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 600e6 / total))
    try:
        x = torch.randn(64, 16384, generator=torch.Generator().manual_seed(0))
        net = nn.Sequential(nn.Linear(16384, 64), nn.Unflatten(1, (64, 1)), _Wide(), nn.Flatten(), nn.Linear(64, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        data = TensorDataset(x, torch.arange(64) % 2)
        config = {"device": "cuda", "batch_size": 64, "precision": {"amp": "off"}}
        report = MuseSparkTrainer(net, optimizer, None, data, None, config).fit(1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert report["updates"] == 1
    assert report["micro_batch"] < 64


class _Wide(nn.Module):
    """Needs 16 MB a sample on the way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(-1, -1, 65536).exp().mean(2, keepdim=True)


def test_8_bit_adam_trains() -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `optimizers` is not installed")
    net = small_net().cuda()
    config = {"device": "cuda", "optimizer": {"name": "adamw_8bit", "lr": 0.01}}
    report = MuseSparkTrainer(net, None, None, blobs(), blobs(), config).fit(10)
    assert report["best_val_acc"] > 80


def test_fp8_trains_where_the_gpu_has_it() -> None:
    pytest.importorskip("torchao", reason="the extra `fp8` is not installed")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    data = TensorDataset(torch.cat([blobs(64).tensors[0]] * 8, dim=1), blobs(64).tensors[1])
    config = {"device": "cuda", "batch_size": 64, "precision": {"amp": "bf16", "fp8": True}}
    report = MuseSparkTrainer(net, None, None, data, data, config).fit(20)
    assert report["best_val_acc"] > 80


def _on_nccl() -> tuple[str, list[float], Any]:
    net = small_net()
    trainer = trained(net, in_order(blobs(), 8), epochs=2, validation=blobs(), device="auto")
    metrics = trainer.get_training_report()["history"][-1]
    return torch.distributed.get_backend(), weights(net).tolist(), metrics["accuracy"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_two_gpus_train_alike_over_nccl() -> None:
    first, second = on_ranks(_on_nccl, 2)
    assert first == second
    assert first[0] == "nccl"

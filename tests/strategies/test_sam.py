"""SAM: the gradient at the worst point nearby."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from toys import Batches, blobs, in_order, small_net, trained, weights

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.strategies.sam import frozen_statistics


def _by_hand(model: nn.Module, data: torch.utils.data.TensorDataset, *, rho: float, lr: float) -> torch.Tensor:
    x, y = data.tensors
    near = copy.deepcopy(model)
    nn.CrossEntropyLoss()(near(x), y).backward()
    norm = torch.cat([p.grad.flatten() for p in near.parameters() if p.grad is not None]).norm()
    far = copy.deepcopy(near)
    for ours, theirs in zip(far.parameters(), near.parameters(), strict=True):
        assert theirs.grad is not None
        ours.data.add_(theirs.grad * rho / norm)
        ours.grad = None
    nn.CrossEntropyLoss()(far(x), y).backward()
    return torch.cat(
        [(p - lr * q.grad).detach().flatten() for p, q in zip(near.parameters(), far.parameters(), strict=True)]  # type: ignore[operator]
    )


@pytest.mark.parametrize("batch", [24, 8])
def test_an_update_takes_the_gradient_at_the_worst_point_over_the_whole_window(batch: int) -> None:
    model, data = small_net(), blobs(24)
    expected = _by_hand(model, data, rho=0.3, lr=0.1)
    trained(model, in_order(data, batch), epochs=1, target_batch_size=24, strategies={"sam": {"rho": 0.3}})
    assert torch.allclose(weights(model), expected, atol=1e-6)


def test_with_every_two_each_second_update_is_a_plain_one() -> None:
    counts = []
    model = small_net()
    model.register_forward_hook(lambda *_: counts.append(model.training))
    trained(model, in_order(blobs(24), 8), epochs=1, strategies={"sam": {"every": 2}})
    assert sum(counts) == 2 + 1 + 2


def test_the_second_pass_leaves_batch_norm_statistics_alone() -> None:
    plain, twice = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    data = [(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0])), (torch.tensor([[3.0], [5.0]]), torch.tensor([0, 0]))]
    trained(plain, Batches(data).loader(), epochs=1, lr=0.0)
    trained(twice, Batches(data).loader(), epochs=1, lr=0.0, strategies={"sam": True})
    assert twice.running_mean.tolist() == pytest.approx([0.58])  # type: ignore[union-attr]
    assert {k: v.tolist() for k, v in twice.state_dict().items()} == {
        k: v.tolist() for k, v in plain.state_dict().items()
    }


def test_momentum_comes_back_even_if_the_pass_fails() -> None:
    layer = nn.BatchNorm1d(1, momentum=0.3)
    with pytest.raises(RuntimeError), frozen_statistics(layer):
        raise RuntimeError
    assert layer.momentum == 0.3


def test_losses_of_the_second_pass_are_not_taken_for_those_of_the_samples() -> None:
    """Adaptive sampling must see each sample's loss once an epoch, at the weights of the training."""
    seen = {}
    for name, block in {"alone": {}, "sam": {"sam": {"rho": 5.0}}}.items():
        trainer = trained(
            small_net(), in_order(blobs(12), 12), epochs=1, lr=0.0, strategies={"adaptive_sampling": {}, **block}
        )
        seen[name] = trainer._run.stack.state_dict()["adaptive_sampling"]["losses"]
    assert torch.equal(seen["alone"], seen["sam"])


def test_loss_scaling_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"strategies\.sam does not work with fp16 loss scaling"):
        trained(small_net(), blobs(), epochs=1, strategies={"sam": True}, precision={"amp": "fp16"})

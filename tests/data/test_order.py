"""The order of samples and its cut into windows: every sample once, on any number of ranks, again after a restart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.data import Cut, Growth, epoch_order, plan_windows

SAMPLES = st.integers(1, 60)


@given(SAMPLES, st.integers(0, 2**31), st.integers(0, 1000))
def test_an_epoch_is_a_permutation_that_seed_and_epoch_fix(samples: int, seed: int, epoch: int) -> None:
    order = epoch_order(samples, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(samples))
    assert torch.equal(order, epoch_order(samples, seed=seed, epoch=epoch))


def test_epochs_and_seeds_have_orders_of_their_own_data_6() -> None:
    orders = {tuple(epoch_order(20, seed=seed, epoch=epoch).tolist()) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64


def test_without_shuffling_the_stored_order_stands() -> None:
    assert epoch_order(5, seed=3, epoch=2, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@given(SAMPLES, st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))
def test_all_ranks_together_see_each_sample_once(
    samples: int, batch_size: int, accumulation: int, world_size: int
) -> None:
    order = epoch_order(samples, seed=1, epoch=0)
    plans = [
        plan_windows(
            order,
            batch_size=batch_size,
            window=accumulation * batch_size * world_size,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    assert len({len(plan) for plan in plans}) == 1
    seen = []
    for windows in zip(*plans, strict=True):
        assert len({len(window.shares) for window in windows}) == 1
        assert len({window.samples for window in windows}) == 1
        own = [i for w in windows for share in w.shares if not share.is_padding for i in share.indices.tolist()]
        assert len(own) == windows[0].samples
        assert all(0 < len(share.indices) <= batch_size for w in windows for share in w.shares)
        seen += own
    assert sorted(seen) == sorted(order.tolist())


@given(SAMPLES, st.integers(1, 5), st.integers(1, 5))
def test_the_samples_of_a_window_do_not_depend_on_the_number_of_ranks(
    samples: int, per_rank: int, world_size: int
) -> None:
    """The same global batch gives the same updates on one rank and on many."""
    order = epoch_order(samples, seed=1, epoch=0)
    alone = plan_windows(order, batch_size=per_rank * world_size, window=2 * per_rank * world_size)
    shared = [
        plan_windows(order, batch_size=per_rank, window=2 * per_rank * world_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for index, window in enumerate(alone):
        mine = [i for share in window.shares for i in share.indices.tolist()]
        parts = [share for plan in shared for share in plan[index].shares if not share.is_padding]
        assert sorted(mine) == sorted(i for share in parts for i in share.indices.tolist())


@pytest.mark.parametrize(("left", "sizes"), [(12, [4, 4, 4]), (10, [4, 3, 3]), (2, [1, 1, 1])])
def test_a_rest_is_dealt_out_evenly_and_no_rank_is_left_without_a_batch_data_7(left: int, sizes: list[int]) -> None:
    plans = [plan_windows(torch.arange(left), batch_size=4, window=12, rank=rank, world_size=3) for rank in range(3)]
    assert [len(plan[0].shares[0].indices) for plan in plans] == sizes
    assert [plan[0].shares[0].is_padding for plan in plans] == [False, False, left < 3]
    assert {plan[0].samples for plan in plans} == {left}


@given(SAMPLES, st.integers(1, 9), st.integers(1, 40), st.integers(1, 4))
def test_a_window_of_any_size_holds_exactly_its_samples(
    samples: int, batch_size: int, window: int, world_size: int
) -> None:
    plan = plan_windows(torch.arange(samples), batch_size=batch_size, window=window, world_size=world_size)
    assert [w.samples for w in plan[:-1]] == [window] * (samples // window - (samples % window == 0))
    assert sum(w.samples for w in plan) == samples
    assert all(len(share.indices) <= batch_size for w in plan for share in w.shares)


def test_windows_grow_to_their_limit() -> None:
    cut = Cut(batch_size=8, accumulation=2, world_size=2, growth=Growth(factor=2.0, every=3, limit=100))
    assert [cut.window_at(epoch) for epoch in range(10)] == [32, 32, 32, 64, 64, 64, 100, 100, 100, 100]
    assert cut.accumulation_at(9) == 6
    assert Cut(batch_size=8, accumulation=1, target=100).window_at(5) == 100

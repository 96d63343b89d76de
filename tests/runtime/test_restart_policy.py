"""Facts to decisions, without Ray."""

from __future__ import annotations

import pytest

from muse_spark_ray.runtime.policy import (
    GangFacts,
    GiveUp,
    Keep,
    Restart,
    RestartLimits,
    TrialFacts,
    after_loss,
    after_trial,
    is_unhealthy,
)

GOOD = TrialFacts(failed=False)
BAD = TrialFacts(failed=True, signature=7)
ELSEWHERE = TrialFacts(failed=True, signature=8)
SICK = TrialFacts(failed=True, is_unhealthy=True, signature=7)


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        pytest.param([GOOD], Keep(), id="one worker, success"),
        pytest.param([BAD], Keep(), id="one worker, user error"),
        pytest.param([SICK], Restart(1), id="one worker, out of memory"),
        pytest.param([GOOD, GOOD], Keep(), id="two workers, success"),
        pytest.param([BAD, BAD], Keep(), id="two workers, same error at the same line"),
        pytest.param([BAD, ELSEWHERE], Restart(2), id="two workers, failed at different lines"),
        pytest.param([GOOD, BAD], Restart(2), id="two workers, one failed"),
        pytest.param([SICK, SICK], Restart(2), id="two workers, both out of memory"),
    ],
)
def test_after_trial_only_a_healthy_and_agreeing_group_goes_on(
    facts: list[TrialFacts], decision: Keep | Restart
) -> None:
    assert after_trial(facts) == decision


LIMITS = RestartLimits(start_failures=3, losses_in_a_row=5, first_delay_seconds=1.0, longest_delay_seconds=4.0)


@pytest.mark.parametrize(
    ("facts", "delay_seconds"),
    [
        (GangFacts(0, 0), 1.0),
        (GangFacts(0, 1), 1.0),
        (GangFacts(0, 2), 2.0),
        (GangFacts(2, 0), 2.0),
        (GangFacts(0, 3), 4.0),
        (GangFacts(2, 4), 4.0),
    ],
)
def test_a_lost_gang_restarts_with_a_doubling_and_bounded_pause(facts: GangFacts, delay_seconds: float) -> None:
    assert after_loss(facts, 2, limits=LIMITS, reason="x") == Restart(2, delay_seconds)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (GangFacts(3, 0), "did not start in 3 tries: node went away"),
        (GangFacts(0, 5), "lost 5 times in a row"),
        (GangFacts(0, 0, is_closing=True), "closing"),
    ],
)
def test_a_gang_is_given_up_at_its_limits(facts: GangFacts, text: str) -> None:
    decision = after_loss(facts, 1, limits=LIMITS, reason="node went away")
    assert isinstance(decision, GiveUp)
    assert text in decision.reason


class OutOfMemoryError(RuntimeError):
    """Named as torch's own, which needs a GPU to be raised for real."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (MemoryError(), True),
        (OutOfMemoryError("tried to allocate"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
    ],
)
def test_memory_and_device_errors_make_a_process_unfit(error: Exception, expected: bool) -> None:
    assert is_unhealthy(error) is expected

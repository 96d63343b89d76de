"""The rules of leases, with a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muse_spark_ray.errors import ConfigError
from muse_spark_ray.runtime.book import Began, GangState, LeaseBook, Member, Message, Raised, Returned
from muse_spark_ray.runtime.lease import Failed, Finished, Job, JobKey, Reported, Started, is_final


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def book_of(*gangs: str, clock: Clock | None = None) -> LeaseBook:
    book = LeaseBook(gangs, clock=clock or Clock())
    for gang in gangs:
        assert book.hello(gang, [Member(0, 1, "n", {"cpu": 1.0})]) == 1
    return book


def job(name: str, attempt: int = 0) -> Job:
    return Job(name, attempt, "{}")


def run(book: LeaseBook, key: JobKey, gang: str = "g") -> None:
    book.deliver(key, gang, 1, 0, Began(0.0))
    book.deliver(key, gang, 1, 1, Returned(None, 0.0))


def test_jobs_are_given_in_the_order_of_submission_and_once() -> None:
    book = book_of("g", "h")
    for name in "abc":
        book.submit(job(name))
    assert book.take("g", 1) == job("a")
    assert book.take("h", 1) == job("b")
    run(book, job("a").key)
    assert book.take("g", 1) == job("c")
    assert book.take("h", 1) is None


def test_a_gang_gets_no_job_before_the_end_of_its_last_one_has_arrived() -> None:
    book = book_of("g")
    book.submit(job("a"))
    book.submit(job("b"))
    book.take("g", 1)
    assert book.take("g", 1) is None
    run(book, job("a").key)
    assert book.take("g", 1) == job("b")


@given(order=st.permutations(range(5)))
def test_messages_in_any_order_become_events_in_the_order_sent(order: list[int]) -> None:
    book = book_of("g")
    book.submit(job("a"))
    book.take("g", 1)
    messages: list[Message] = [
        Began(0.0),
        Reported({"e": 0}),
        Reported({"e": 1}),
        Reported({"e": 2}),
        Returned({"done": 1}, 0.0),
    ]
    for number in order:
        book.deliver(job("a").key, "g", 1, number, messages[number])
    events = book.events(job("a").key, 0)
    assert isinstance(events[0], Started)
    assert events[1:4] == messages[1:4]
    assert events[4] == Finished({"done": 1}, 0.0)


def test_a_failure_of_another_rank_is_preceded_by_the_start() -> None:
    book = book_of("g")
    book.submit(job("a"))
    book.take("g", 1)
    book.fail(job("a").key, "g", 1, Raised("ValueError on rank 1: x", "Traceback", 0.0))
    book.deliver(job("a").key, "g", 1, 0, Began(0.0))
    started, failed = book.events(job("a").key, 0)
    assert isinstance(started, Started)
    assert failed == Failed("ValueError on rank 1: x", "Traceback", "user", False, 0.0)


def test_a_lost_gang_fails_a_job_that_began_and_gives_back_one_that_did_not() -> None:
    book = book_of("g", "h")
    book.submit(job("a"))
    book.submit(job("b"))
    book.submit(job("c"))
    book.take("g", 1)
    book.take("h", 1)
    book.deliver(job("a").key, "g", 1, 0, Began(0.0))
    book.restart("g", "killed")
    book.restart("h", "killed")
    *_, lost = book.events(job("a").key, 0)
    assert isinstance(lost, Failed)
    assert (lost.kind, lost.retryable) == ("lost", True)
    assert book.hello("h", []) == 2
    assert book.take("h", 2) == job("b")


def test_an_earlier_incarnation_is_not_listened_to() -> None:
    book = book_of("g")
    book.submit(job("a"))
    book.restart("g", "killed")
    book.hello("g", [])
    assert book.take("g", 1) is None
    assert book.take("g", 2) == job("a")
    run(book, job("a").key)
    assert book.events(job("a").key, 0) == []


def test_stop_ends_a_waiting_job_and_flags_a_running_one() -> None:
    book = book_of("g")
    book.submit(job("a"))
    book.take("g", 1)
    book.submit(job("b"))
    for name in "ab":
        book.stop(job(name).key)
    assert book.should_stop(job("a").key)
    assert book.events(job("a").key, 0) == []
    (stopped,) = book.events(job("b").key, 0)
    assert isinstance(stopped, Failed)
    assert stopped.kind == "stopped"
    run(book, job("a").key)
    assert book.take("g", 1) is None


def test_the_same_attempt_is_refused_even_after_it_was_read() -> None:
    book = book_of("g")
    book.submit(job("a"))
    with pytest.raises(ConfigError, match="submitted before"):
        book.submit(job("a"))
    book.take("g", 1)
    run(book, job("a").key)
    book.forget(job("a").key)
    with pytest.raises(ConfigError, match="submitted before"):
        book.submit(job("a"))
    book.submit(job("a", attempt=1))


def test_waiting_and_new_jobs_fail_when_no_gang_is_left() -> None:
    book = book_of("g", "h")
    book.submit(job("a"))
    book.bury("g", "no resources")
    assert book.events(job("a").key, 0) == []
    book.bury("h", "no resources")
    book.submit(job("b"))
    for name in "ab":
        (failed,) = book.events(job(name).key, 0)
        assert isinstance(failed, Failed)
        assert "ClusterError" in failed.reason
        assert "no resources" in failed.reason
        assert not failed.retryable


def test_losses_count_up_until_a_job_ends_by_itself() -> None:
    book = book_of("g")
    assert book.restart("g", "killed").losses_in_a_row == 1
    assert book.restart("g", "no node").start_failures == 1
    assert book.hello("g", []) == 2
    book.submit(job("a"))
    book.take("g", 2)
    book.deliver(job("a").key, "g", 2, 0, Began(0.0))
    book.deliver(job("a").key, "g", 2, 1, Raised("MemoryError", "", 0.0))
    facts = book.restart("g", "unfit after a user's error")
    assert (facts.losses_in_a_row, facts.start_failures) == (0, 0)


def test_spans_and_trials_tile_the_time_held() -> None:
    clock = Clock()
    book = LeaseBook(["g"], clock=clock)
    clock.now = 3.0
    book.hold("g")
    clock.now = 5.0
    book.hello("g", [Member(0, 1, "n", {"cpu": 1.0}), Member(1, 2, "n", {"cpu": 1.0})])
    book.submit(job("a"))
    clock.now = 6.0
    book.take("g", 1)
    clock.now = 7.5
    book.deliver(job("a").key, "g", 1, 0, Began(7.0))
    clock.now = 10.0
    book.restart("g", "killed")
    clock.now = 14.0
    book.hello("g", [Member(0, 3, "n", {"cpu": 1.0})])
    clock.now = 15.0
    assert [(span.start, span.phase) for span in book.spans()] == [
        (3.0, "start"),
        (5.0, "idle"),
        (10.0, "restart"),
        (14.0, "idle"),
    ]
    ends = [span.end for span in book.spans()]
    assert ends == [5.0, 7.0, 14.0, 15.0]
    assert book.spans()[0].resources == {"cpu": 2.0}
    started, lost = book.events(job("a").key, 0)
    assert isinstance(started, Started)
    assert isinstance(lost, Failed)
    assert (started.at, lost.at) == (7.0, 10.0)
    assert len(book.drain_spans()) == 3
    assert [span.phase for span in book.spans()] == ["idle"]


def test_a_cancelled_job_leaves_its_gang_idle_from_then_on() -> None:
    clock = Clock()
    book = book_of("g", clock=clock)
    book.submit(job("a"))
    book.take("g", 1)
    book.deliver(job("a").key, "g", 1, 0, Began(0.0))
    clock.now = 2.0
    book.cancel(job("a").key)
    book.forget(job("a").key)
    assert book.status()[0].state is GangState.BUSY
    clock.now = 9.0
    assert book.take("g", 1) is None
    assert (book.status()[0].state, book.status()[0].since) == (GangState.IDLE, 2.0)


class _Walk:
    """A random walk over what proxies and gangs may do, remembering who was given what."""

    def __init__(self) -> None:
        self.book = LeaseBook(["g", "h"], clock=Clock())
        self.incarnation = {name: self.book.hello(name, []) for name in ("g", "h")}
        self.holds: dict[str, JobKey | None] = {"g": None, "h": None}
        self.began: set[JobKey] = set()
        self.submitted: list[JobKey] = []

    def step(self, action: str, gang: str) -> None:
        key, incarnation = self.holds[gang], self.incarnation[gang]
        if action == "submit":
            self.submitted.append(job(str(len(self.submitted))).key)
            self.book.submit(job(self.submitted[-1].trial))
        elif action == "take" and key is None:
            taken = self.book.take(gang, incarnation)
            self.holds[gang] = taken.key if taken else None
            assert taken is None or taken.key not in self.began
        elif action == "begin" and key is not None:
            self.began.add(key)
            self.book.deliver(key, gang, incarnation, 0, Began(0.0))
        elif action == "finish" and key in self.began:
            self.book.deliver(key, gang, incarnation, 1, Returned(None, 0.0))
            self.holds[gang] = None
        elif action == "kill":
            self.book.restart(gang, "killed")
            self.incarnation[gang] = self.book.hello(gang, [])
            self.holds[gang] = None
        elif action == "cancel" and self.submitted:
            self.book.cancel(self.submitted[len(self.submitted) // 2])

    def drain(self) -> None:
        while any(not self.book.is_over(key) for key in self.submitted):
            for gang in self.holds:
                for action in ("take", "begin", "finish"):
                    self.step(action, gang)


ACTIONS = ["submit", "take", "begin", "finish", "kill", "cancel"]


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from("gh")), max_size=60))
def test_every_job_ends_exactly_once_whatever_happens(steps: list[tuple[str, str]]) -> None:
    walk = _Walk()
    for action, gang in steps:
        walk.step(action, gang)
    walk.drain()
    for key in walk.submitted:
        events = walk.book.events(key, 0)
        assert [is_final(event) for event in events].count(True) == 1
        assert is_final(events[-1])
        assert [isinstance(event, Started) for event in events[1:]].count(True) == 0

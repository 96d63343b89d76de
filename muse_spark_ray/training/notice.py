"""Word that this process will be ended soon, from whoever hears of it first."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """An announced end.

    Args:
        reason: Who says so, and why.
        deadline: When it comes, by the monotonic clock; None if not known.
    """

    reason: str
    deadline: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, None if it is not known."""
        return None if self.deadline is None else self.deadline - time.monotonic()


Source = Callable[[], Notice | None]


class PreemptionNotices:
    """Hears of a coming end, from any thread or signal handler, and from sources that are asked.

    Training saves between two updates after one came, and then raises `PreemptedError`.
    """

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._heard: Notice | None = None
        self._lock = threading.RLock()

    def announce(self, reason: str, *, seconds: float | None = None) -> None:
        """Say that the end is near.

        Args:
            reason: Who says so, and why.
            seconds: How long from now; None if not known.
        """
        notice = Notice(reason, None if seconds is None else time.monotonic() + seconds)
        with self._lock:
            if self._heard is None:
                self._heard = notice

    def listen_to(self, source: Source) -> None:
        """Ask a source about once a second, on every rank after the same window; it returns a notice or None."""
        self._sources.append(source)

    @property
    def heard(self) -> Notice | None:
        """The first notice, without asking the sources."""
        return self._heard

    def ask(self) -> Notice | None:
        """Return the first notice; ask the sources if none came yet."""
        if self._heard is None:
            for source in self._sources:
                notice = source()
                if notice is not None:
                    self._heard = notice
                    break
        return self._heard

    def forget(self) -> None:
        """Begin anew, for a training that goes on after all."""
        self._heard = None


@contextlib.contextmanager
def listening_to_sigterm(notices: PreemptionNotices) -> Iterator[None]:
    """Turn SIGTERM into a notice; a second one ends the process as ever. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.getsignal(signal.SIGTERM)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        if notices.heard is not None:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
            return
        notices.announce("SIGTERM")

    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is on_sigterm:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)

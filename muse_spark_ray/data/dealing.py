"""Who reads what is left of a stream's epoch, when those who began it are not there any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dealing:
    """Row groups are dealt to readers when an epoch begins; from then on each such hand is read as it was dealt.

    A reader is one loader worker of one rank; those of a rank follow each other. After a resume a reader may hold
    several hands, begun by others, or one that others read in part.

    Args:
        hands: Number of hands that the epoch was dealt into.
        readers: For each reader of now, the hands that it reads, each with the batches of it that are done.
        workers: Readers a rank.
    """

    hands: int
    readers: tuple[tuple[tuple[int, int], ...], ...]
    workers: int

    @classmethod
    def fresh(cls, ranks: int, workers: int) -> Dealing:
        """Return the dealing at the beginning of an epoch: one hand a reader."""
        count = ranks * workers
        return cls(count, tuple(((hand, 0),) for hand in range(count)), workers)

    def go_on(self, sizes: Sequence[int], done: Sequence[int], *, ranks: int, workers: int) -> Dealing:
        """Deal the hands, as far as they were read, to the readers of now.

        As many ranks with as many workers go on in the same order.

        Args:
            sizes: Batches in each hand.
            done: Batches that each rank took from its readers since this dealing.
            ranks: Number of ranks now.
            workers: Readers a rank now.
        """
        read, turns = self._read(sizes, done)
        if ranks * self.workers == len(self.readers) and workers == self.workers:
            order = [
                self.readers[rank * workers + (number + turns[rank]) % workers]
                for rank in range(ranks)
                for number in range(workers)
            ]
            dealt = [tuple((hand, read[hand]) for hand, _ in reader) for reader in order]
        else:
            count = ranks * workers
            dealt = [tuple((hand, read[hand]) for hand in range(n, self.hands, count)) for n in range(count)]
        return Dealing(self.hands, tuple(dealt), workers)

    def batches_left(self, sizes: Sequence[int], rank: int) -> int:
        """Return how many batches a rank will take from its readers."""
        own = self.readers[rank * self.workers : (rank + 1) * self.workers]
        return sum(sizes[hand] - done for reader in own for hand, done in reader)

    def _read(self, sizes: Sequence[int], done: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the batches that are done of each hand, and whose turn it is among each rank's readers."""
        read = [0] * self.hands
        turns = []
        for rank, count in enumerate(done):
            own = self.readers[rank * self.workers : (rank + 1) * self.workers]
            left = [sum(sizes[hand] - before for hand, before in reader) for reader in own]
            taken, turns_now = _take_turns(left, count)
            turns.append(turns_now)
            for reader, batches in zip(own, taken, strict=True):
                for hand, before in reader:
                    more = min(batches, sizes[hand] - before)
                    read[hand] = before + more
                    batches -= more
        return read, turns

    def state(self) -> dict[str, Any]:
        """Return it as plain containers."""
        return {
            "hands": self.hands,
            "workers": self.workers,
            "readers": [[list(hand) for hand in reader] for reader in self.readers],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Dealing:
        """Return what `state` described."""
        readers = tuple(tuple((int(hand), int(done)) for hand, done in reader) for reader in state["readers"])
        return cls(int(state["hands"]), readers, int(state["workers"]))


def _take_turns(left: Sequence[int], count: int) -> tuple[list[int], int]:
    """Take batches from readers in turns, as a DataLoader does; return how many of each, and whose turn is next."""
    taken, turn = [0] * len(left), 0
    for _ in range(min(count, sum(left))):
        while taken[turn] == left[turn]:
            turn = (turn + 1) % len(left)
        taken[turn] += 1
        turn = (turn + 1) % len(left)
    return taken, turn

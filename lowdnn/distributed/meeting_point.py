"""Where the ranks of one process meet: threads hand each other bytes, and hear of each other's failures."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lowdnn import checks
from lowdnn.distributed.errors import CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.store import seconds
from lowdnn.status import LowdnnError

Bytes = NDArray[np.uint8]


@dataclass
class _Round:
    """The n-th collective call of all ranks: what each one called, and the bytes that it brought."""

    calls: dict[int, str] = field(default_factory=dict)
    brought: dict[int, Bytes] = field(default_factory=dict)
    left: int = 0


@dataclass
class Letter:
    """Bytes from one rank to another."""

    content: Bytes
    is_taken: bool = False


class MeetingPoint:
    """The meeting point of ``size`` ranks, each a thread.

    Calls that wait raise CommunicationTimeoutError after ``timeout_s``, and PeerFailedError as soon as any rank has
    failed, with the reason of the first.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = checks.integer(size, "MeetingPoint.size", 1)
        self.timeout_s = seconds(timeout_s, "MeetingPoint.timeout_s")
        self.failure = ""
        self._changed = threading.Condition()
        self._next = [0] * size
        self._rounds: defaultdict[int, _Round] = defaultdict(_Round)
        self._letters: defaultdict[tuple[int, int], deque[Letter]] = defaultdict(deque)
        self._left: set[int] = set()
        self._settled_at = 0.0
        self._successor: tuple[MeetingPoint, list[int]] | None = None

    def fail(self, reason: str) -> None:
        """Ends all waiting, now and later; the first reason counts."""
        with self._changed:
            self.failure = self.failure or reason
            self._changed.notify_all()

    def survivors(self, rank: int, settle_s: float) -> tuple[MeetingPoint, int]:
        """A new meeting point of the ranks that call this within ``settle_s`` of the first one, and the number of this
        rank there; numbers keep their order.

        Raises PeerFailedError in a rank that comes too late.
        """
        with self._changed:
            if not self._left:
                self._settled_at = time.monotonic() + seconds(settle_s, "MeetingPoint.settle_s")
            if self._successor is None:
                self._left.add(rank)
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._successor is not None or len(self._left) == self.size,
                    max(self._settled_at - time.monotonic(), 0),
                )
            if self._successor is None:
                self._successor = MeetingPoint(len(self._left), self.timeout_s), sorted(self._left)
                self._changed.notify_all()
            point, ranks = self._successor
            if rank not in ranks:
                raise PeerFailedError.at(
                    f"survivors, rank {rank}",
                    expected=f"to be counted within {settle_s:g} s",
                    got=f"ranks {ranks} only",
                )
            return point, ranks.index(rank)

    def bring(self, rank: int, call: str, content: Bytes) -> int:
        """Brings the bytes of a rank's next collective call; the number of the call. Never waits."""
        with self._changed:
            number = self._next[rank]
            self._next[rank] += 1
            found = self._rounds[number]
            found.calls[rank], found.brought[rank] = call, content
            self._changed.notify_all()
            return number

    def all_brought(self, number: int) -> bool:
        """Whether ``collect`` no longer waits."""
        with self._changed:
            return bool(self.failure) or len(self._rounds[number].brought) == self.size

    def missing(self, rank: int, number: int) -> str:
        """The call of a rank, and the ranks that have not come to it."""
        with self._changed:
            found = self._rounds[number]
            return f"{_called(rank, found)}, {self._missing(found)}"

    def waits(self) -> str:
        """All calls that wait, and the ranks that have not come to them."""
        with self._changed:
            found = (one for one in self._rounds.values() if 0 < len(one.calls) < self.size)
            waits = [f"{_called(rank, one)}, {self._missing(one)}" for one in found for rank in sorted(one.calls)]
            sent = [pair for pair, letters in self._letters.items() if letters]
            return "; ".join([*waits, *(f"rank {one}: send to {other}, no recv of it" for one, other in sent)])

    def collect(self, rank: int, number: int) -> list[Bytes]:
        """The bytes that all ranks brought to a call, in rank order, once all have.

        Raises PeerFailedError in every rank where they did not make the same call.
        """
        with self._changed:
            found = self._rounds[number]
            self._await(
                lambda: len(found.brought) == self.size,
                lambda: self._missing(found),
                _called(rank, found),
            )
            if len(set(found.calls.values())) > 1:
                calls = ", ".join(f"rank {one} {call}" for one, call in sorted(found.calls.items()))
                self.fail(f"different calls: {calls}")
                raise self._failed(_called(rank, found))
            found.left += 1
            if found.left == self.size:
                del self._rounds[number]
            return [content for _, content in sorted(found.brought.items())]

    def _missing(self, found: _Round) -> str:
        return f"no call of rank {_listed(set(range(self.size)) - set(found.calls))}"

    def post(self, sender: int, receiver: int, content: Bytes) -> Letter:
        """Bytes for another rank. Never waits."""
        letter = Letter(content)
        with self._changed:
            self._letters[sender, receiver].append(letter)
            self._changed.notify_all()
        return letter

    def await_taken(self, sender: int, receiver: int, letter: Letter) -> None:
        """Waits until the receiver has the letter."""
        with self._changed:
            self._await(
                lambda: letter.is_taken, lambda: f"no recv of rank {receiver}", f"rank {sender}: send to {receiver}"
            )

    def is_posted(self, sender: int, receiver: int) -> bool:
        """Whether ``take`` no longer waits."""
        with self._changed:
            return bool(self.failure or self._letters[sender, receiver])

    def take(self, sender: int, receiver: int, size_bytes: int) -> Bytes:
        """The next bytes from ``sender``. Raises PeerFailedError in both ranks for another number than it sent."""
        where = f"rank {receiver}: recv of {size_bytes} bytes from {sender}"
        with self._changed:
            letters = self._letters[sender, receiver]
            self._await(lambda: bool(letters), lambda: f"no send of rank {sender}", where)
            letter = letters.popleft()
            if letter.content.size != size_bytes:
                self.fail(f"rank {sender} sends {letter.content.size} bytes, rank {receiver} receives {size_bytes}")
                raise self._failed(where)
            letter.is_taken = True
            self._changed.notify_all()
            return letter.content

    def _await(self, is_there: Callable[[], bool], missing: Callable[[], str], where: str) -> None:
        """Waits for ``is_there`` with the lock held; a failure of any rank, or the end of the time, ends it."""
        self._changed.wait_for(lambda: is_there() or self.failure, self.timeout_s)
        if self.failure:
            raise self._failed(where)
        if not is_there():
            reason = missing()
            self.fail(f"{where} timed out: {reason}")
            raise CommunicationTimeoutError.at(
                where, expected=f"the other ranks within {self.timeout_s:g} s", got=reason
            )

    def _failed(self, where: str) -> LowdnnError:
        return PeerFailedError.at(where, expected="ranks that all take part", got=self.failure)


def _called(rank: int, found: _Round) -> str:
    return f"rank {rank}: {found.calls[rank]}"


def _listed(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))

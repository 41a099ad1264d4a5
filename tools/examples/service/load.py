"""Load for the service: callers that send digits at a rate and check every answer.

python -m tools.examples.service.load --port 8080 --seconds 60 --rate 50
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from lowdnn.cli import digits
from tools.examples.service.model import PIXELS, Array, weights

#: Scores may differ from the reference by as much: sums of fp16 products in another order.
_TOLERANCE = 1e-2
_SOCKET_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Report:
    """The fate of the requests.

    sent: requests that a connection took.  answers: answers by status.
    wrong: answers of status 200 whose scores are not those of the reference.
    lost: requests without an answer.  refused: attempts to connect that found nobody.
    seconds: the latency of each answer of status 200, sorted.
    """

    sent: int
    answers: Counter[int]
    wrong: int
    lost: int
    refused: int
    seconds: tuple[float, ...]

    def quantile_s(self, share: float) -> float:
        """The latency that ``share`` of the good answers do not exceed; nan without answers."""
        if not self.seconds:
            return float("nan")
        return self.seconds[min(int(share * len(self.seconds)), len(self.seconds) - 1)]

    def __str__(self) -> str:
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.answers.items()))
        times = ", ".join(f"p{share * 100:g} {self.quantile_s(share) * 1000:.1f} ms" for share in (0.5, 0.95, 0.99))
        faults = f"{self.wrong} wrong, {self.lost} lost, {self.refused} refused"
        return f"{self.sent} sent, answers {{{codes}}}, {faults}; {times}"


@dataclass
class Load:
    """Callers in threads, each with a connection that it keeps; together they send ``rate`` requests a second.

    A caller who waits longer than its turn sends the next request late: at most ``callers`` requests are under way.
    ``rate`` may be changed while they run.
    """

    port: int
    rate: float = 50.0
    callers: int = 16
    timeout_ms: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _counts: Counter[str] = field(default_factory=Counter)
    _answers: Counter[int] = field(default_factory=Counter)
    _seconds: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Sends until the block ends, and then waits for the last answers."""
        examples = _examples()
        threads = [threading.Thread(target=self._call, args=(number, *examples)) for number in range(self.callers)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def report(self) -> Report:
        with self._lock:
            counts = self._counts
            return Report(
                counts["sent"],
                Counter(self._answers),
                counts["wrong"],
                counts["lost"],
                counts["refused"],
                tuple(sorted(self._seconds)),
            )

    def _call(self, number: int, images: Sequence[Sequence[float]], wanted: Array) -> None:
        rng = random.Random(number)
        caller = _Caller(self.port, self.timeout_ms)
        due = time.monotonic() + rng.random() * self.callers / self.rate
        while not self._stop.wait(max(due - time.monotonic(), 0)):
            place = rng.randrange(len(images))
            start = time.monotonic()
            outcome, status, scores = caller.ask(images[place])
            self._note(outcome, status, scores, wanted[place], time.monotonic() - start)
            due = max(due + self.callers / self.rate, time.monotonic() - 1)
        caller.close()

    def _note(self, outcome: str, status: int, scores: Sequence[float], wanted: Array, seconds: float) -> None:
        with self._lock:
            self._counts["sent"] += outcome != "refused"
            if outcome != "answered":
                self._counts[outcome] += 1
                return
            self._answers[status] += 1
            if status == 200:
                self._seconds.append(seconds)
                self._counts["wrong"] += len(scores) != len(wanted) or bool(np.abs(scores - wanted).max() > _TOLERANCE)


class _Caller:
    """A caller with one connection at a time."""

    def __init__(self, port: int, timeout_ms: int | None) -> None:
        self._port = port
        self._headers = {"Content-Type": "application/json"}
        if timeout_ms is not None:
            self._headers["X-Timeout-Ms"] = str(timeout_ms)
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, image: Sequence[float]) -> tuple[str, int, Sequence[float]]:
        """(answered, status, scores), or (refused or lost, 0, ()).

        A kept connection may be closed by the service just before a request reaches it, of which nothing is taken then;
        such a request goes out again on a new one, as HTTP says (RFC 9112, 9.3.1).
        """
        is_kept = self._connection is not None
        if self._connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_SOCKET_TIMEOUT_S)
            try:
                connection.connect()
            except OSError:
                return "refused", 0, ()
            self._connection = connection
        try:
            self._connection.request("POST", "/classify", json.dumps({"image": image}), self._headers)
            response = self._connection.getresponse()
            body = json.loads(response.read())
        except (http.client.RemoteDisconnected, ConnectionError):
            self.close()
            return self.ask(image) if is_kept else ("lost", 0, ())
        except (OSError, http.client.HTTPException, ValueError):
            self.close()
            return "lost", 0, ()
        if response.will_close:
            self.close()
        return "answered", response.status, body.get("scores", ())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _examples() -> tuple[list[list[float]], Array]:
    """Images that no training has seen, and their scores."""
    _, held_out = digits.load()
    images = held_out.images.reshape(-1, PIXELS)
    return images.tolist(), weights().scores(images)


def main() -> int:
    """Prints the report; 1 where an answer is lost or wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.examples.service.load", description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second of all callers")
    parser.add_argument("--callers", type=int, default=16, help="the most requests that are under way at a time")
    arguments = parser.parse_args()
    with Load(arguments.port, arguments.rate, arguments.callers).running() as load:
        time.sleep(arguments.seconds)
    report = load.report()
    print(report)
    return 1 if report.lost or report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

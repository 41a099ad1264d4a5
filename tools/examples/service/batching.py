"""Requests wait in a bounded queue and run in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field

import numpy as np

from lowdnn.status import LowdnnError
from tools.examples.service.measures import Measures
from tools.examples.service.model import Array

#: Computes scores (count, CLASSES) of images (count, PIXELS), which come from requests with these contexts.
Predict = Callable[[Array, Sequence[Context]], Awaitable[Array]]


class OverloadedError(Exception):
    """The queue is full, or is served no more."""


class DeadlineError(Exception):
    """The deadline has passed before the batch began."""


@dataclass(frozen=True)
class _Waiting:
    """A request for the scores of ``image`` (PIXELS,).

    deadline: the ``time.monotonic`` after which nobody wants them.  answer: gets them.
    origin: the context of the request, for traces.
    """

    image: Array
    deadline: float
    answer: asyncio.Future[Array]
    origin: Context = field(default_factory=copy_context)

    def fail(self, error: Exception) -> None:
        """Answers with ``error`` unless there is an answer, or nobody waits any more."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Batcher:
    """Batches of at most ``most`` images, for which ``predict`` computes scores, one batch after the other.

    A batch waits up to ``wait_s`` for more images. At most ``queue_limit`` images wait.
    """

    def __init__(
        self,
        predict: Predict,
        measures: Measures,
        *,
        most: int,
        wait_s: float,
        queue_limit: int,
    ) -> None:
        self._predict = predict
        self._measures = measures
        self._most = most
        self._wait_s = wait_s
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(queue_limit)
        self._is_over = False

    async def scores(self, image: Array, deadline: float) -> Array:
        """The scores (CLASSES,) of ``image``. Raises OverloadedError, DeadlineError, and what ``predict`` raises."""
        waiting = _Waiting(image, deadline, asyncio.get_running_loop().create_future())
        if self._is_over:
            raise OverloadedError
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            raise OverloadedError from None
        self._measures.queue_is(self._queue.qsize())
        return await waiting.answer

    async def run(self) -> None:
        """Serves until it is cancelled.

        A LowdnnError of ``predict`` fails a batch; other errors end the loop and are raised.
        """
        while True:
            batch = [await self._queue.get()]
            try:
                await self._fill(batch)
                await self._serve(batch)
            finally:
                for waiting in batch:
                    waiting.fail(OverloadedError())

    def refuse_all(self) -> None:
        """Answers whoever waits, and whoever still comes, with OverloadedError."""
        self._is_over = True
        while not self._queue.empty():
            self._queue.get_nowait().fail(OverloadedError())

    async def _fill(self, batch: list[_Waiting]) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while len(batch) < self._most:
                    batch.append(await self._queue.get())
        except TimeoutError:
            pass
        self._measures.queue_is(self._queue.qsize())

    async def _serve(self, batch: list[_Waiting]) -> None:
        now = time.monotonic()
        for waiting in batch:
            if waiting.deadline < now:
                waiting.fail(DeadlineError())
        wanted = [waiting for waiting in batch if not waiting.answer.done()]
        if not wanted:
            return
        try:
            images = np.stack([waiting.image for waiting in wanted])
            scores = await self._predict(images, [waiting.origin for waiting in wanted])
        except LowdnnError as error:
            for waiting in wanted:
                waiting.fail(error)
        else:
            self._measures.batch_ran(len(wanted))
            for waiting, row in zip(wanted, scores, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(row)

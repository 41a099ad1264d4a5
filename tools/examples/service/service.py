"""The service: routes, states, and the end that loses nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np

from lowdnn.status import LowdnnError
from tools.examples.service.batching import Batcher, DeadlineError, OverloadedError
from tools.examples.service.device import Device
from tools.examples.service.http import (
    HEAD_BYTES,
    HttpError,
    Request,
    Response,
    first_byte,
    json_response,
    read_request,
)
from tools.examples.service.measures import Measures
from tools.examples.service.model import BATCH, PIXELS, Array

if TYPE_CHECKING:
    from tools.examples.service.tracing import Traces

_LOG = logging.getLogger("service")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: How long callers who have just connected may take to send their request when the port has closed.
_LAST_WORDS_S = 0.1
#: Seconds after which a caller who was turned away may come again.
_RETRY_AFTER_S = 1


@dataclass(frozen=True)
class Settings:
    """host, port: where the service listens; port 0 takes a free one.

    wait_s: how long a batch waits for more images.  queue_limit: images that may wait; more are turned away.
    deadline_s: how long a request may wait unless it says otherwise, and the most that it may say.
    notice_s: how long the service still takes requests after SIGTERM, so that balancers see that it is not ready.
    drain_s: how long the requests that it has taken may last after that.
    connections: the most that are open at a time.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    wait_s: float = 0.005
    queue_limit: int = 64
    deadline_s: float = 2.0
    notice_s: float = 1.0
    drain_s: float = 10.0
    connections: int = 512


class Service:
    """Serves ``device`` over HTTP, in one event loop and one thread for the device."""

    def __init__(self, device: Device, settings: Settings, measures: Measures, traces: Traces | None = None) -> None:
        self._device = device
        self._settings = settings
        self._measures = measures
        self._traces = traces
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._batcher = Batcher(
            self._predict, measures, most=BATCH, wait_s=settings.wait_s, queue_limit=settings.queue_limit
        )
        self._routes: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("POST", "/classify"): self._classify,
            ("GET", "/healthz"): self._healthz,
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._metrics,
        }
        self._is_ending = False
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._answering = 0

    async def serve(self, stop: asyncio.Event, listening: Callable[[int], None]) -> int:
        """Serves until ``stop`` is set, then drains.

        Returns 0, or 1 where the device is lost or draining takes too long.

        listening: is called with the port once the service takes requests.
        """
        listener = socket.create_server((self._settings.host, self._settings.port), backlog=1024)
        server = await asyncio.start_server(self._connection, sock=listener, limit=HEAD_BYTES)
        listening(listener.getsockname()[1])
        batches, stopped = asyncio.create_task(self._batcher.run()), asyncio.create_task(stop.wait())
        await asyncio.wait((batches, stopped), return_when=asyncio.FIRST_COMPLETED)
        self._is_ending = True
        is_lost = batches.done()
        if is_lost:
            _LOG.error("device_lost error=%r", str(batches.exception()))
            self._batcher.refuse_all()
        else:
            await asyncio.sleep(self._settings.notice_s)
        waiting = _accepted(listener)
        server.close()
        await self._take(waiting)
        await asyncio.sleep(_LAST_WORDS_S)
        is_drained = await self._drained()
        for task in (batches, stopped):
            task.cancel()
        await self._close_connections()
        self._thread.shutdown()
        self._device.close()
        _LOG.info("ended drained=%s", is_drained)
        return 0 if is_drained and not is_lost else 1

    async def _take(self, connections: Iterable[socket.socket]) -> None:
        """Answers connections that nobody had accepted when the port closed; the kernel would reset them."""
        for connection in connections:
            reader, writer = await asyncio.open_connection(sock=connection, limit=HEAD_BYTES)
            self._late.add(asyncio.create_task(self._connection(reader, writer)))

    async def _close_connections(self) -> None:
        """Closes what is open: the connections of callers who have no request under way."""
        for writer in self._open.values():
            writer.close()
        if self._open:
            await asyncio.wait(list(self._open), timeout=1)

    async def _drained(self) -> bool:
        """Waits until each request has its answer; False where that takes longer than it may."""
        end = time.monotonic() + self._settings.drain_s
        while self._answering and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return not self._answering

    async def _predict(self, images: Array, origins: Sequence[Context]) -> Array:
        with nullcontext() if self._traces is None else self._traces.batch(origins):
            scores = partial(copy_context().run, self._device.scores, images)  # the thread continues the span
            return await asyncio.get_running_loop().run_in_executor(self._thread, scores)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            while first := await first_byte(reader):
                self._answering += 1
                try:
                    keeps_open = await self._exchange(first, reader, writer)
                finally:
                    self._answering -= 1
                if not keeps_open:
                    break
        except ConnectionError:
            pass  # the caller has gone
        finally:
            del self._open[task]
            writer.close()

    async def _exchange(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may take another one."""
        try:
            request = await read_request(first, reader)
        except HttpError as error:
            response, keeps_open = _refusal(error.status, str(error)), False
        else:
            if request is None:
                return False
            response = await self._answered(request)
            keeps_open = request.keeps_open and not self._is_ending
        writer.write(response.encoded(keeps_open=keeps_open))
        await writer.drain()
        return keeps_open

    async def _answered(self, request: Request) -> Response:
        path = request.path.partition("?")[0]
        route = self._routes.get((request.method, path))
        if route is not None:
            return await route(request)
        if any(path == known for _, known in self._routes):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"expected another method than {request.method[:20]}")
        return _refusal(HTTPStatus.NOT_FOUND, "expected /classify, /healthz, /readyz or /metrics")

    async def _classify(self, request: Request) -> Response:
        start = time.monotonic()
        try:
            image, timeout_s = _image(request.body), _timeout_s(request, self._settings.deadline_s)
            with nullcontext() if self._traces is None else self._traces.request(request.headers):
                response = await self._scored(image, start + timeout_s)
        except HttpError as error:
            response = _refusal(error.status, str(error))
        self._measures.answered(response.status.value, time.monotonic() - start)
        return response

    async def _scored(self, image: Array, deadline: float) -> Response:
        """The answer for an image: exactly one, whatever becomes of its batch."""
        if len(self._open) > self._settings.connections:
            self._measures.shed()
            return _busy("expected fewer connections")
        try:
            scores = await self._batcher.scores(image, deadline)
        except OverloadedError:
            self._measures.shed()
            return _busy("expected a queue with room")
        except DeadlineError:
            return _refusal(HTTPStatus.GATEWAY_TIMEOUT, "expected room for the image before its deadline")
        except LowdnnError as error:
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"the batch failed: {type(error).__name__}")
        facts = {"digit": int(scores.argmax()), "scores": [round(float(score), 5) for score in scores]}
        return json_response(HTTPStatus.OK, facts)

    async def _healthz(self, _: Request) -> Response:
        return json_response(HTTPStatus.OK, {"handles_opened": self._device.handles_opened})

    async def _readyz(self, _: Request) -> Response:
        return _busy("the service ends") if self._is_ending else json_response(HTTPStatus.OK, {"ready": True})

    async def _metrics(self, _: Request) -> Response:
        return Response(HTTPStatus.OK, self._measures.text().encode(), _METRICS_TYPE)


def _accepted(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted."""
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(listener.accept()[0])
    return found


def _image(body: bytes) -> Array:
    """The image (PIXELS,) of a request. Raises HttpError."""
    rule = f'expected {{"image": [{PIXELS} numbers from 0 to 1]}}'
    try:
        image = np.asarray(json.loads(body)["image"], np.float32)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise HttpError(HTTPStatus.BAD_REQUEST, rule) from None
    if image.shape != (PIXELS,) or not ((image >= 0) & (image <= 1)).all():
        raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, rule)
    return image


def _timeout_s(request: Request, most: float) -> float:
    """How long the request may wait, by ``X-Timeout-Ms``. Raises HttpError."""
    text = request.headers.get("x-timeout-ms")
    if text is None:
        return most
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"expected X-Timeout-Ms to be milliseconds, got {text[:80]!r}")
    return min(int(text) / 1000, most)


def _refusal(status: HTTPStatus, reason: str) -> Response:
    return json_response(status, {"error": reason})


def _busy(reason: str) -> Response:
    return json_response(HTTPStatus.SERVICE_UNAVAILABLE, {"error": reason}, Retry_After=str(_RETRY_AFTER_S))

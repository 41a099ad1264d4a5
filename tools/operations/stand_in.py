"""Exporters that stand in for what a trial has not got: GPUs, a canary, and a second service with troubles on request.

They export lowdnn's measures under their own names and labels, from registries of their own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lowdnn.telemetry import measures
from lowdnn.telemetry.prometheus import text
from lowdnn.telemetry.registry import Registry

_TICK_S = 0.2
#: Executes, requests and images a tick.
_EVENTS = 50
_ENGINES = {"matmul": "matmul_wgmma", "convolution": "conv_wgmma", "softmax": "softmax_rows"}
_GPUS = (("0", "GPU-0"), ("1", "GPU-1"))
#: NVML's reason: the hardware is too hot.
_HOT = 0x40


class StandIn:
    """Three exporters: ``process`` (a program that serves), ``gpus`` and ``canary``.

    is_slow: kernels and requests take ten times as long, fewer images are answered, and requests are turned away.
    is_broken: memory is full, clocks are lowered, a case of the canary fails.
    """

    def __init__(self) -> None:
        self.process, self.gpus, self.canary = Registry(), Registry(), Registry()
        self.is_slow = False
        self.is_broken = False
        self._rng = random.Random(0)
        self._start()

    @contextmanager
    def running(self) -> Iterator[tuple[int, int, int]]:
        """Keeps the values up to date; gives the ports of ``process``, ``gpus`` and ``canary``."""
        stop = threading.Event()
        ticks = threading.Thread(target=self._tick_until, args=(stop,))
        ticks.start()
        try:
            with _served(self.process) as process, _served(self.gpus) as gpus, _served(self.canary) as canary:
                yield process, gpus, canary
        finally:
            stop.set()
            ticks.join()

    def break_down(self) -> None:
        """A hang, failed workspaces, changed algorithms, compiled kernels, a Xid, a double-bit error: all at once."""
        self.is_broken = True
        count = self.process.counter
        count(measures.HANGS).add()
        count(measures.WORKSPACE_FAILURES).add(2)
        count(measures.ALGORITHM_SWITCHES, "matmul", "matmul_wgmma", "matmul_mma").add(12)
        count(measures.COMPILES).add(60)
        count(measures.COMPILE_SECONDS).add(45)
        count(measures.REFUSALS, "NOT_SUPPORTED").add(3)
        count(measures.FALLBACKS, "torch").add(3)
        self.gpus.gauge(measures.GPU_XID, *_GPUS[0]).set(79)
        self.gpus.counter(measures.GPU_ECC_DOUBLE, *_GPUS[0]).add()

    def recover(self) -> None:
        """Ends all troubles. Counters stay where they are, and so does the number of the last Xid."""
        self.is_broken = self.is_slow = False

    def _start(self) -> None:
        """Counters that have counted nothing are there, at 0."""
        for measure in (
            measures.HANGS,
            measures.WORKSPACE_FAILURES,
            measures.OUT_OF_MEMORY,
            measures.COMPILES,
            measures.COMPILE_SECONDS,
            measures.SERVICE_SHED,
        ):
            self.process.counter(measure)
        for gpu in _GPUS:
            self.gpus.gauge(measures.GPU_XID, *gpu).set(0)
            self.gpus.counter(measures.GPU_ECC_DOUBLE, *gpu)
            self.gpus.counter(measures.GPU_ECC_SINGLE, *gpu)
        self._tick()

    def _tick_until(self, stop: threading.Event) -> None:
        while not stop.wait(_TICK_S):
            self._tick()

    def _tick(self) -> None:
        self._tick_process()
        self._tick_service()
        for place, gpu in enumerate(_GPUS):
            self._tick_gpu(gpu, is_hot=self.is_broken and place == 0)
        self.canary.gauge(measures.VERIFY_FAILURES, "matmul").set(2 if self.is_broken else 0)
        self.canary.gauge(measures.VERIFY_LARGEST_ERROR, "matmul").set(3.5 if self.is_broken else 0.2)

    def _tick_process(self) -> None:
        for place, (operation, engine) in enumerate(_ENGINES.items(), 1):
            self.process.counter(measures.EXECUTES, operation, engine).add(_EVENTS)
            kernel = self.process.histogram(measures.KERNEL_SECONDS, operation, engine)
            host = self.process.histogram(measures.EXECUTE_HOST_SECONDS, operation)
            for _ in range(_EVENTS):
                kernel.observe(place * self._rng.lognormvariate(0, 0.3) * (1e-3 if self.is_slow else 1e-4))
                host.observe(self._rng.lognormvariate(0, 0.3) * 1e-5)
        for source in ("heuristic", "record", "bundle", "document"):
            self.process.counter(measures.PLANS, source).add()
        for cache in ("plan", "disk", "module"):
            self.process.counter(measures.CACHE_HITS, cache).add(_EVENTS)
            self.process.counter(measures.CACHE_MISSES, cache).add()
        self.process.counter(measures.MODULE_LOADS).add()
        self.process.counter(measures.DRIVER_ERRORS, "other").add(0)
        self.process.gauge(measures.BUFFER_BYTES).set(3 << 30)
        self.process.gauge(measures.WORKSPACE_BYTES).set(self._rng.randrange(1 << 29, 1 << 30))
        self.process.gauge(measures.MODULE_BYTES).set(40 << 20)
        self.process.gauge(measures.TOTAL_BYTES, "0").set(80 << 30)
        self.process.gauge(measures.FREE_BYTES, "0").set((4 if self.is_broken else 30) << 30)

    def _tick_service(self) -> None:
        images = _EVENTS // 2 if self.is_slow else _EVENTS
        self.process.counter(measures.SERVICE_REQUESTS, "200").add(images)
        self.process.counter(measures.SERVICE_IMAGES).add(images)
        self.process.histogram(measures.SERVICE_BATCH_SIZE).observe(images)
        for _ in range(images):
            seconds = self._rng.lognormvariate(0, 0.4) * (1.0 if self.is_slow else 0.05)
            self.process.histogram(measures.SERVICE_REQUEST_SECONDS).observe(seconds)
        shed = _EVENTS - images
        self.process.counter(measures.SERVICE_SHED).add(shed)
        self.process.counter(measures.SERVICE_REQUESTS, "429").add(shed)
        self.process.gauge(measures.SERVICE_QUEUE_LENGTH).set(60 if self.is_slow else self._rng.randrange(8))

    def _tick_gpu(self, gpu: tuple[str, str], is_hot: bool) -> None:
        draw = self._rng.uniform
        total_mib = 80 << 10
        used_mib = int(total_mib * (0.97 if is_hot else 0.6))
        values = {
            measures.GPU_UTILISATION: draw(60, 80),
            measures.GPU_MEMORY_USED: used_mib,
            measures.GPU_MEMORY_FREE: total_mib - used_mib,
            measures.GPU_TEMPERATURE: 92 if is_hot else draw(55, 60),
            measures.GPU_POWER: draw(380, 420),
            measures.GPU_SM_CLOCK: 1100 if is_hot else 1980,
            measures.GPU_MEMORY_CLOCK: 2619,
            measures.GPU_CLOCK_REASONS: _HOT if is_hot else 0,
        }
        for measure, value in values.items():
            self.gpus.gauge(measure, *gpu).set(value)


@contextmanager
def _served(registry: Registry) -> Iterator[int]:
    """An HTTP server that answers everything with the registry's measures; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text(registry).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            with suppress(ConnectionError):  # a scrape that has timed out
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Scrapes are no news."""

    with http_server(Handler) as port:
        yield port


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """A server in threads on a free port, which it gives."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

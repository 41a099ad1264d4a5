"""The service's measures, in the registry of lowdnn's own measures."""

from __future__ import annotations

from lowdnn.telemetry import measures
from lowdnn.telemetry.prometheus import text
from lowdnn.telemetry.registry import REGISTRY, Registry

#: Answers that there have been none of yet are exported as 0, so that rates see the first one.
_CODES = (200, 500, 503, 504)


class Measures:
    """The service's measures, beside those that lowdnn counts in ``registry``."""

    def __init__(self, registry: Registry = REGISTRY) -> None:
        self._registry = registry
        self._seconds = registry.histogram(measures.SERVICE_REQUEST_SECONDS)
        self._batches = registry.histogram(measures.SERVICE_BATCH_SIZE)
        self._images = registry.counter(measures.SERVICE_IMAGES)
        self._shed = registry.counter(measures.SERVICE_SHED)
        self._queue = registry.gauge(measures.SERVICE_QUEUE_LENGTH)
        for code in _CODES:
            registry.counter(measures.SERVICE_REQUESTS, str(code))

    def answered(self, code: int, seconds: float) -> None:
        """Counts an answer with its HTTP status and its time from end to end."""
        self._registry.counter(measures.SERVICE_REQUESTS, str(code)).add()
        self._seconds.observe(seconds)

    def batch_ran(self, images: int) -> None:
        self._batches.observe(images)
        self._images.add(images)

    def shed(self) -> None:
        """Counts a request that was turned away."""
        self._shed.add()

    def queue_is(self, length: int) -> None:
        self._queue.set(length)

    def text(self) -> str:
        """All measures now, in Prometheus' text format."""
        return text(self._registry)

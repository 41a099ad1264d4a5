"""Images of kernels that a caller keeps in addition to the disk cache, for later plans."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock


class KernelImages:
    """Images by their keys in the disk cache (``compile.cache_key``). Safe to share between threads.

    A key may be named without its image, which is then the disk cache's. ``revision`` counts the changes.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._images: dict[str, bytes | None] = dict.fromkeys(names)
        self.revision = 0

    def get(self, key: str) -> bytes | None:
        return self._images.get(key)

    def put(self, key: str, image: bytes) -> None:
        with self._lock:
            if self._images.get(key) is None:
                self._images[key] = image
                self.revision += 1

    def discard(self, key: str) -> None:
        with self._lock:
            if key in self._images:
                del self._images[key]
                self.revision += 1

    @property
    def names(self) -> tuple[str, ...]:
        """The keys, in the order in which they came."""
        with self._lock:
            return tuple(self._images)

    def __len__(self) -> int:
        return len(self._images)

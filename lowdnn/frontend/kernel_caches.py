"""cudnn.kernel_cache: compiled kernels that the plans of several graphs share."""

from __future__ import annotations

from lowdnn.backend.kernel_cache import KernelCache
from lowdnn.frontend.arguments import text
from lowdnn.runtime.kernel_images import KernelImages
from lowdnn.status import BadParamError


class kernel_cache:
    """Kernels that were compiled for graphs made with this cache; further graphs with it compile none of them again.

    ``lowdnn.backend.kernel_cache.KernelCache`` says what is counted, and what the JSON form has.
    """

    def __init__(self) -> None:
        self._cache = KernelCache()
        self._was_read = False

    def serialize(self) -> str:
        """The names of its kernels, as JSON for ``deserialize``."""
        return self._cache.json_representation()

    def deserialize(self, data: str | bytes) -> None:
        """Takes over the kernels that ``data`` names.

        Raises BadParamError for a cache that is not new, BadParamError and SerializationVersionMismatchError for other
        JSON.
        """
        if self._was_read or self.size():
            got = f"one with {self.size()} kernels"
            raise BadParamError.at("kernel_cache.deserialize", expected="a new cache", got=got)
        self._cache = KernelCache(json=text(data, "kernel_cache.deserialize.data"))
        self._was_read = True

    def size(self) -> int:
        """Kernels that it holds or names."""
        return self._cache.entry_count()

    def revision(self) -> int:
        """How many times a kernel was added or removed."""
        return self._cache.revision()

    @property
    def images(self) -> KernelImages:
        """The images that plans are loaded with."""
        return self._cache.images


def create_kernel_cache() -> kernel_cache:
    """An empty kernel cache."""
    return kernel_cache()

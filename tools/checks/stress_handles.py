"""Handles on emulated devices for random calls: some open, some closed, each with a few tensors and streams."""

from __future__ import annotations

from random import Random

import numpy as np

from lowdnn.backend import Handle
from lowdnn.driver.base import DriverError
from lowdnn.frontend import DeviceTensor, create_handle, from_numpy
from lowdnn.runtime.stream import Stream

_MOST_OPEN = 3
_MOST_KEPT = 12
_ARCHITECTURES = ("sm_90a", "sm_80")


class Handles:
    """``every`` handle, closed ones included, and their tensors, freed ones included."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.every: list[Handle] = []
        self.tensors: list[DeviceTensor] = []
        self.streams: list[Stream] = []
        self.open()

    def any(self) -> Handle:
        """A handle that is mostly open."""
        if self._draw.random() < 0.03:
            return self._draw.choice(self.every)
        return self.usable()

    def usable(self) -> Handle:
        """An open handle on a device without faults."""
        usable = [handle for handle in self.every if handle.is_open]
        return self._draw.choice(usable) if usable else self.open()

    def open(self) -> Handle:
        """A new handle; the oldest is closed where there are many."""
        handle = create_handle("emulated", arch=self._draw.choice(_ARCHITECTURES))
        self.every = [*self.every, handle][-_MOST_KEPT:]
        for old in [old for old in self.every if old.is_open][:-_MOST_OPEN]:
            self.retire(old)
        return handle

    def retire(self, handle: Handle) -> None:
        """Closes a handle, after its tensors and streams or while these are still open."""
        if self._draw.random() < 0.5:
            for tensor in [tensor for tensor in self.tensors if tensor.handle is handle]:
                tensor.close()
        handle.close()

    def replace_broken(self) -> None:
        """Closes handles whose device takes no more work after a kernel's fault."""
        for handle in [handle for handle in self.every if handle.is_open]:
            try:
                handle.synchronize()
            except DriverError:
                handle.close()

    def tensor(self, shape: tuple[int, ...], dtype: object = np.float32, handle: Handle | None = None) -> DeviceTensor:
        """A new tensor of small integers."""
        owner = self.usable() if handle is None else handle
        array = np.asarray(self._draw.choices(range(-4, 5), k=int(np.prod(shape)) or 1)[: int(np.prod(shape))])
        tensor = from_numpy(array.reshape(shape).astype(dtype), owner)  # type: ignore[arg-type]
        self.tensors = [*self.tensors, tensor][-4 * _MOST_KEPT :]
        return tensor

    def free_one(self) -> None:
        if self.tensors:
            self._draw.choice(self.tensors).close()

    def stream(self) -> Stream:
        """A new stream of a usable handle, or one that may be closed."""
        if self.streams and self._draw.random() < 0.7:
            return self._draw.choice(self.streams)
        stream = Stream.create(self.usable().runtime.context)
        self.streams = [*self.streams, stream][-_MOST_KEPT:]
        return stream

    def close(self) -> None:
        for handle in self.every:
            handle.close()
        self.tensors.clear()
        self.streams.clear()
        self.every.clear()

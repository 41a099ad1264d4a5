"""Copies sequence lengths from the host to the device, as parameters of a launch: nothing waits, the caller may reuse
the array at once, and the stream may be capturing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from lowdnn.backend.handle import Handle
from lowdnn.driver.base import LaunchConfig
from lowdnn.plan import KernelRef

#: Lengths of one launch; its parameters take at most 4 KiB.
_CAPACITY = 1000
_THREADS = 128
_KERNEL = KernelRef("write_lengths_sm80", "rnn/write_lengths.cu", "sm_80", (("CAPACITY", _CAPACITY),))


class _Parameters(ctypes.Structure):
    _fields_ = (("lengths", ctypes.c_uint64), ("count", ctypes.c_int32), ("values", ctypes.c_int32 * _CAPACITY))


class LengthWriter:
    """Writes lengths into memory of the device of ``handle``, which it does not keep."""

    def __init__(self, handle: Handle) -> None:
        runtime = handle.runtime
        function = runtime.modules.function(_KERNEL)
        self._context = runtime.context
        self._parameters = _Parameters()
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._parameters))
        config = LaunchConfig((-(-_CAPACITY // _THREADS), 1, 1), (_THREADS, 1, 1))
        with self._context.activated():
            address = ctypes.addressof(self._pointers)
            self._launch = self._context.driver.prepare_launch(function, config, address)

    def write(self, address: int, lengths: Sequence[int], stream: int) -> None:
        """Writes INT32 ``lengths`` to ``address`` in the order of ``stream``."""
        parameters = self._parameters
        with self._context.activated():
            for first in range(0, len(lengths), _CAPACITY):
                part = lengths[first : first + _CAPACITY]
                parameters.lengths, parameters.count = address + 4 * first, len(part)
                parameters.values[: len(part)] = part
                self._launch(stream)

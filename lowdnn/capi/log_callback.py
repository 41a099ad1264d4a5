"""cudnnSetCallback: a C function that receives messages about calls and errors.

Source: cudnn_graph.h of cuDNN 9, cudnnDebug_t and the masks of severities.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from dataclasses import dataclass

from lowdnn.enums import Severity
from lowdnn.mirrored import version_number
from lowdnn.status import Status


class DebugRecord(ctypes.Structure):
    """cudnnDebug_t: the call that a message is about."""

    _fields_ = [
        ("cudnn_version", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("time_sec", ctypes.c_uint),
        ("time_usec", ctypes.c_uint),
        ("time_delta", ctypes.c_uint),
        ("handle", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("pid", ctypes.c_ulonglong),
        ("tid", ctypes.c_ulonglong),
        ("cuda_device_id", ctypes.c_int),
        ("reserved", ctypes.c_int * 15),
    ]


#: cudnnCallback_t: severity, the caller's own data, the record, the message.
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(DebugRecord), ctypes.c_char_p)


@dataclass(frozen=True)
class LogCallback:
    """``function``: the address of the C function, 0 for none.  mask: bit ``severity`` asks for messages of it."""

    mask: int = 0
    user_data: int = 0
    function: int = 0

    def wants(self, severity: Severity) -> bool:
        return bool(self.function and self.mask >> severity & 1)

    def tell(self, severity: Severity, status: Status, message: str, since_s: float) -> None:
        """Calls the function.  since_s: the time at which the library was loaded, from which the record's time
        counts."""
        now = time.time()
        record = DebugRecord(
            cudnn_version=version_number(),
            status=status,
            time_sec=int(now),
            time_usec=int(now % 1 * 1e6),
            time_delta=int(now - since_s),
            pid=os.getpid(),
            tid=threading.get_native_id(),
            cuda_device_id=-1,
        )
        text = message.encode(errors="backslashreplace")
        CALLBACK(self.function)(severity, self.user_data, ctypes.byref(record), text)

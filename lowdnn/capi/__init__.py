"""cuDNN's C API: a library with the names of libcudnn.so.9, and what stands behind them.

    library = lowdnn.capi.load()             # as ctypes.CDLL("libcudnn.so.9")
    handle = ctypes.c_void_p()
    library.cudnnCreate(ctypes.byref(handle))

Every function returns a status and never raises; ``cudnnGetLastErrorString`` tells the thread's last error.
"""

from lowdnn.capi.calls.catalogue import support
from lowdnn.capi.header import write_header
from lowdnn.capi.installing import call_counts, install, install_runtime, loaded_library
from lowdnn.capi.library import write_library
from lowdnn.capi.loading import load, reset
from lowdnn.capi.stubs.starting import libpython

__all__ = [
    "call_counts",
    "install",
    "install_runtime",
    "libpython",
    "load",
    "loaded_library",
    "reset",
    "support",
    "write_header",
    "write_library",
]

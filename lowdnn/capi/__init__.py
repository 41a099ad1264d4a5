"""cuDNN's C API: a library with the names of libcudnn.so.9, and what stands behind them."""

from lowdnn.capi.library import write_library

__all__ = ["write_library"]

"""The cuDNN release whose API is mirrored. Programs compare it; ``lowdnn.__version__`` is the library's own version."""

from __future__ import annotations

from typing import Final

MIRRORED_CUDNN_VERSION: Final = (9, 28, 0)

#: The cudnn-frontend release whose Python names are mirrored.
MIRRORED_FRONTEND_VERSION: Final = "1.32.0"

#: The CUDA release (major * 1000 + minor * 10) whose NVRTC compiles the kernels.
CUDA_VERSION: Final = 13000


def version_number() -> int:
    """major * 10000 + minor * 100 + patch, as cudnnGetVersion returns it."""
    major, minor, patch = MIRRORED_CUDNN_VERSION
    return major * 10000 + minor * 100 + patch

"""lowdnn: deep-learning primitives for NVIDIA GPUs, driven at the level of the CUDA driver API."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowdnn.backend.handle import Handle
    from lowdnn.frontend.device_tensor import DeviceTensor, empty, from_numpy, zeros
    from lowdnn.frontend.graph_sequence import GraphSequence
    from lowdnn.frontend.handles import create_handle
    from lowdnn.frontend.kernel_sets import build_kernels, kernel_set
    from lowdnn.frontend.layouts import channels_last_strides
    from lowdnn.frontend.python_graph import pygraph
    from lowdnn.frontend.streams import create_event, create_stream
    from lowdnn.frontend.workspace_pool import WorkspacePool
    from lowdnn.heuristics.tuning.tuner import TuningOptions
    from lowdnn.runtime.bundle import Bundle
    from lowdnn.runtime.bundle_file import load_bundle
    from lowdnn.runtime.plan_cache import PlanCache

__version__ = "0.2.0"
__all__ = [
    "Bundle",
    "DeviceTensor",
    "GraphSequence",
    "Handle",
    "PlanCache",
    "TuningOptions",
    "WorkspacePool",
    "build_kernels",
    "channels_last_strides",
    "create_event",
    "create_handle",
    "create_stream",
    "empty",
    "from_numpy",
    "kernel_set",
    "load_bundle",
    "pygraph",
    "zeros",
]

_HOMES = {
    "Bundle": "lowdnn.runtime.bundle",
    "Handle": "lowdnn.backend.handle",
    "TuningOptions": "lowdnn.heuristics.tuning.tuner",
    "DeviceTensor": "lowdnn.frontend.device_tensor",
    "build_kernels": "lowdnn.frontend.kernel_sets",
    "channels_last_strides": "lowdnn.frontend.layouts",
    "create_event": "lowdnn.frontend.streams",
    "create_handle": "lowdnn.frontend.handles",
    "create_stream": "lowdnn.frontend.streams",
    "empty": "lowdnn.frontend.device_tensor",
    "from_numpy": "lowdnn.frontend.device_tensor",
    "kernel_set": "lowdnn.frontend.kernel_sets",
    "load_bundle": "lowdnn.runtime.bundle_file",
    "pygraph": "lowdnn.frontend.python_graph",
    "GraphSequence": "lowdnn.frontend.graph_sequence",
    "PlanCache": "lowdnn.runtime.plan_cache",
    "WorkspacePool": "lowdnn.frontend.workspace_pool",
    "zeros": "lowdnn.frontend.device_tensor",
}


def __getattr__(name: str) -> object:
    """Public names are imported at first use, so that ``import lowdnn`` costs nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""The names of cudnn-frontend's Python package: ``import lowdnn.frontend as cudnn``.

Names for what lowdnn does not compute are there too (``refused_names``); they raise NotSupportedError when used.
"""

from typing import Any

from lowdnn.backend.graph_descriptors import DeviceProperties as device_properties
from lowdnn.frontend.builder import GraphContext
from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.device_info import DeviceInfo
from lowdnn.frontend.device_tensor import DeviceTensor, from_numpy
from lowdnn.frontend.enums import (
    attention_implementation,
    behavior_note,
    build_plan_policy,
    convolution_mode,
    cuda_graph_retention,
    diagonal_alignment,
    gnn_activation_op,
    gnn_agg_op,
    heur_mode,
    knob_type,
    moe_grouped_matmul_mode,
    norm_forward_phase,
    numerical_note,
    padding_mode,
    reduction_mode,
    resample_mode,
    reshape_mode,
    rng_distribution,
    scalar_type,
    tensor_reordering,
)
from lowdnn.frontend.graph_functions import graph, graph_cache, jit
from lowdnn.frontend.graph_nodes import Node
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.handle import Handle
from lowdnn.frontend.handles import (
    backend_version,
    backend_version_string,
    create_device_properties,
    create_handle,
    destroy_handle,
    get_last_error_string,
    get_stream,
    sdpa_capabilities,
    set_stream,
)
from lowdnn.frontend.kernel_caches import create_kernel_cache, kernel_cache
from lowdnn.frontend.knobs import FRONTEND_KNOB_TYPE_BASE, is_frontend_knob_type, knob
from lowdnn.frontend.node_types import NodeType
from lowdnn.frontend.python_graph import pygraph
from lowdnn.frontend.refused_names import refused_names
from lowdnn.frontend.wrapper import Graph
from lowdnn.mirrored import MIRRORED_FRONTEND_VERSION
from lowdnn.status import NotSupportedError as cudnnGraphNotSupportedError

#: The version of cudnn-frontend whose names these are.
__version__ = MIRRORED_FRONTEND_VERSION
#: cudnn-frontend's other names of the classes.
tensor = Tensor
handle = Handle

__all__ = [
    "FRONTEND_KNOB_TYPE_BASE",
    "DeviceInfo",
    "DeviceTensor",
    "Graph",
    "GraphContext",
    "Handle",
    "Node",
    "NodeType",
    "Tensor",
    "attention_implementation",
    "backend_version",
    "backend_version_string",
    "behavior_note",
    "build_plan_policy",
    "convolution_mode",
    "create_device_properties",
    "create_handle",
    "create_kernel_cache",
    "cuda_graph_retention",
    "cudnnGraphNotSupportedError",
    "data_type",
    "destroy_handle",
    "device_properties",
    "diagonal_alignment",
    "from_numpy",
    "get_last_error_string",
    "get_stream",
    "gnn_activation_op",
    "gnn_agg_op",
    "graph",
    "graph_cache",
    "handle",
    "heur_mode",
    "is_frontend_knob_type",
    "jit",
    "kernel_cache",
    "knob",
    "knob_type",
    "moe_grouped_matmul_mode",
    "norm_forward_phase",
    "numerical_note",
    "padding_mode",
    "pygraph",
    "reduction_mode",
    "resample_mode",
    "reshape_mode",
    "rng_distribution",
    "scalar_type",
    "sdpa_capabilities",
    "set_stream",
    "tensor",
    "tensor_reordering",
]


def __getattr__(name: str) -> Any:
    found = refused_names().get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *refused_names()})

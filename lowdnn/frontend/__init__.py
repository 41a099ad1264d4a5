"""The names of cudnn-frontend's Python package: ``import lowdnn.frontend as cudnn``."""

from lowdnn.backend.graph_descriptors import DeviceProperties as device_properties
from lowdnn.backend.handle import Handle
from lowdnn.frontend.builder import GraphContext
from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.device_tensor import DeviceTensor, from_numpy
from lowdnn.frontend.enums import (
    attention_implementation,
    behavior_note,
    build_plan_policy,
    convolution_mode,
    cuda_graph_retention,
    diagonal_alignment,
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
from lowdnn.frontend.graph_nodes import Node
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.handles import (
    backend_version,
    backend_version_string,
    create_device_properties,
    create_handle,
    destroy_handle,
    get_last_error_string,
    get_stream,
    set_stream,
)
from lowdnn.frontend.kernel_caches import create_kernel_cache, kernel_cache
from lowdnn.frontend.knobs import knob
from lowdnn.frontend.node_types import NodeType
from lowdnn.frontend.python_graph import pygraph
from lowdnn.frontend.wrappers import graph, graph_cache, jit
from lowdnn.status import NotSupportedError as cudnnGraphNotSupportedError

#: cudnn-frontend's older name of the class.
tensor = Tensor

__all__ = [
    "DeviceTensor",
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
    "graph",
    "graph_cache",
    "heur_mode",
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
    "set_stream",
    "tensor",
    "tensor_reordering",
]

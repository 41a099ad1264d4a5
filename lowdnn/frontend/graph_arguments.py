"""The arguments of pygraph by name, for what passes them on."""

from __future__ import annotations

from typing import TypedDict

from lowdnn.backend.graph_descriptors import DeviceProperties
from lowdnn.frontend.data_types import DataTypeLike
from lowdnn.frontend.enums import cuda_graph_retention as CudaGraphRetention
from lowdnn.frontend.kernel_caches import kernel_cache as KernelCache


class PlanningArguments(TypedDict, total=False):
    """The arguments that say what is planned for."""

    sm_count: int | None
    sm_version: int | None
    kernel_cache: KernelCache | None
    device_property: DeviceProperties | None
    is_dynamic_shape_enabled: bool
    is_override_shape_enabled: bool
    cuda_graph_retention: CudaGraphRetention | None
    is_cuda_graph_replay_expected: bool


class GraphArguments(PlanningArguments, total=False):
    """All arguments but the handle."""

    name: str
    io_data_type: DataTypeLike
    intermediate_data_type: DataTypeLike
    compute_data_type: DataTypeLike

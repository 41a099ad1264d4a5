"""Backend descriptors for tests: one call, one finalized descriptor."""

from __future__ import annotations

from lowdnn.backend import Descriptor, Handle, create
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, HeurMode, PointwiseMode

N, T = AttributeName, AttributeType

# -- uids of ``add_graph``
A, B, Y = 1, 2, 3


def made(descriptor_type: DescriptorType, *attributes: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    """A finalized descriptor with these attributes."""
    descriptor = create(descriptor_type)
    for name, attribute_type, values in attributes:
        descriptor.set_attribute(name, attribute_type, values)
    descriptor.finalize()
    return descriptor


def tensor(
    uid: int,
    dims: tuple[int, ...] = (4, 8),
    strides: tuple[int, ...] = (8, 1),
    *,
    data_type: DataType = DataType.FLOAT,
    is_virtual: bool = False,
    is_by_value: bool = False,
) -> Descriptor:
    """A tensor, 16-byte aligned."""
    return made(
        DescriptorType.TENSOR,
        (N.TENSOR_UNIQUE_ID, T.INT64, uid),
        (N.TENSOR_DATA_TYPE, T.DATA_TYPE, data_type),
        (N.TENSOR_DIMENSIONS, T.INT64, dims),
        (N.TENSOR_STRIDES, T.INT64, strides),
        (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 16),
        (N.TENSOR_IS_VIRTUAL, T.BOOLEAN, is_virtual),
        (N.TENSOR_IS_BY_VALUE, T.BOOLEAN, is_by_value),
    )


def add(x: Descriptor, b: Descriptor, y: Descriptor) -> Descriptor:
    """The operation y = x + b in fp32."""
    mode = made(
        DescriptorType.POINTWISE,
        (N.POINTWISE_MODE, T.POINTWISE_MODE, PointwiseMode.ADD),
        (N.POINTWISE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
    )
    return made(
        DescriptorType.OPERATION_POINTWISE,
        (N.OPERATION_POINTWISE_PW_DESCRIPTOR, T.BACKEND_DESCRIPTOR, mode),
        (N.OPERATION_POINTWISE_XDESC, T.BACKEND_DESCRIPTOR, x),
        (N.OPERATION_POINTWISE_BDESC, T.BACKEND_DESCRIPTOR, b),
        (N.OPERATION_POINTWISE_YDESC, T.BACKEND_DESCRIPTOR, y),
    )


def add_graph(handle: Handle | None = None) -> Descriptor:
    """The graph y = a + b of two (4, 8) tensors."""
    operations = (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, add(tensor(A), tensor(B), tensor(Y)))
    if handle is None:
        return made(DescriptorType.OPERATIONGRAPH, operations)
    return made(DescriptorType.OPERATIONGRAPH, operations, (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle))


def device_properties(sm_count: int = 132, arch: str = "sm_90a") -> Descriptor:
    text = f'{{"lowdnn_device": 1, "arch": "{arch}", "sm_count": {sm_count}}}'
    return made(DescriptorType.DEVICEPROP, (N.DEVICEPROP_JSON_REPRESENTATION, T.CHAR, text))


def best_config(graph: Descriptor, *more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    """The configuration that mode A puts first."""
    heuristics = made(
        DescriptorType.ENGINEHEUR,
        (N.ENGINEHEUR_OPERATION_GRAPH, T.BACKEND_DESCRIPTOR, graph),
        (N.ENGINEHEUR_MODE, T.HEUR_MODE, HeurMode.A),
        *more,
    )
    found: Descriptor = heuristics.get_attribute(N.ENGINEHEUR_RESULTS, T.BACKEND_DESCRIPTOR)[0]
    return found


def plan_of(config: Descriptor, *more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    return made(DescriptorType.EXECUTION_PLAN, (N.EXECUTION_PLAN_ENGINE_CONFIG, T.BACKEND_DESCRIPTOR, config), *more)


def variant_pack(pointers: dict[int, int], workspace: int = 0) -> Descriptor:
    return made(
        DescriptorType.VARIANT_PACK,
        (N.VARIANT_PACK_UNIQUE_IDS, T.INT64, tuple(pointers)),
        (N.VARIANT_PACK_DATA_POINTERS, T.VOID_PTR, tuple(pointers.values())),
        (N.VARIANT_PACK_WORKSPACE, T.VOID_PTR, workspace),
    )

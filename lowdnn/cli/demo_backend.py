"""The demo's graph through backend descriptors: call for call what a C program does with cudnnBackend*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn.backend import Descriptor, Handle, create
from lowdnn.enums import AttributeName as Name
from lowdnn.enums import AttributeType as Type
from lowdnn.enums import ConvolutionMode, DataType, DescriptorType, HeurMode, PointwiseMode
from lowdnn.ops.tensor import channels_last_strides
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.workspace import Workspace

#: uids of the tensors that the caller gives.
X, W, SCALE, BIAS, Y = 1, 2, 3, 4, 5
_CONVOLVED, _SCALED, _SHIFTED = 10, 11, 12


@dataclass(frozen=True)
class BackendGraph:
    """The finalized operation graph and the plan that the heuristics put first."""

    graph: Descriptor
    plan: Descriptor


def build(handle: Handle, images: int, filters: int) -> BackendGraph:
    """y = relu(conv(x, w) * scale + bias) for x (images, 1, 8, 8), w (filters, 1, 3, 3), in fp16, channels last."""
    shape = (images, filters, 8, 8)
    per_channel = (1, filters, 1, 1)
    x = _tensor(X, (images, 1, 8, 8), DataType.HALF)
    w = _tensor(W, (filters, 1, 3, 3), DataType.HALF)
    scale = _tensor(SCALE, per_channel, DataType.FLOAT)
    bias = _tensor(BIAS, per_channel, DataType.FLOAT)
    convolved, scaled, shifted = (
        _tensor(uid, shape, DataType.FLOAT, is_virtual=True) for uid in (_CONVOLVED, _SCALED, _SHIFTED)
    )
    y = _tensor(Y, shape, DataType.HALF)
    operations = (
        _convolution(x, w, convolved),
        _pointwise(PointwiseMode.MUL, convolved, scaled, scale),
        _pointwise(PointwiseMode.ADD, scaled, shifted, bias),
        _pointwise(PointwiseMode.RELU_FWD, shifted, y),
    )
    graph = create(DescriptorType.OPERATIONGRAPH)
    graph.set_attribute(Name.OPERATIONGRAPH_HANDLE, Type.HANDLE, handle)
    graph.set_attribute(Name.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, operations)
    graph.finalize()
    return BackendGraph(graph, _first_plan(handle, graph))


def variant_pack(buffers: Mapping[int, DeviceBuffer], workspace: Workspace) -> Descriptor:
    """The finalized addresses for one execute."""
    pack = create(DescriptorType.VARIANT_PACK)
    pack.set_attribute(Name.VARIANT_PACK_UNIQUE_IDS, Type.INT64, tuple(buffers))
    pack.set_attribute(
        Name.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, tuple(buffer.address for buffer in buffers.values())
    )
    pack.set_attribute(Name.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, workspace.address)
    pack.finalize()
    return pack


def workspace_bytes(built: BackendGraph) -> int:
    size: int = built.plan.get_attribute(Name.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64)[0]
    return size


def _tensor(uid: int, dims: tuple[int, ...], data_type: DataType, is_virtual: bool = False) -> Descriptor:
    tensor = create(DescriptorType.TENSOR)
    tensor.set_attribute(Name.TENSOR_UNIQUE_ID, Type.INT64, uid)
    tensor.set_attribute(Name.TENSOR_DATA_TYPE, Type.DATA_TYPE, data_type)
    tensor.set_attribute(Name.TENSOR_DIMENSIONS, Type.INT64, dims)
    tensor.set_attribute(Name.TENSOR_STRIDES, Type.INT64, channels_last_strides(dims))
    tensor.set_attribute(Name.TENSOR_BYTE_ALIGNMENT, Type.INT64, 16)
    tensor.set_attribute(Name.TENSOR_IS_VIRTUAL, Type.BOOLEAN, is_virtual)
    tensor.finalize()
    return tensor


def _convolution(x: Descriptor, w: Descriptor, y: Descriptor) -> Descriptor:
    geometry = create(DescriptorType.CONVOLUTION)
    geometry.set_attribute(Name.CONVOLUTION_COMP_TYPE, Type.DATA_TYPE, DataType.FLOAT)
    geometry.set_attribute(Name.CONVOLUTION_CONV_MODE, Type.CONVOLUTION_MODE, ConvolutionMode.CROSS_CORRELATION)
    geometry.set_attribute(Name.CONVOLUTION_SPATIAL_DIMS, Type.INT64, 2)
    geometry.set_attribute(Name.CONVOLUTION_PRE_PADDINGS, Type.INT64, (1, 1))
    geometry.set_attribute(Name.CONVOLUTION_POST_PADDINGS, Type.INT64, (1, 1))
    geometry.set_attribute(Name.CONVOLUTION_FILTER_STRIDES, Type.INT64, (1, 1))
    geometry.set_attribute(Name.CONVOLUTION_DILATIONS, Type.INT64, (1, 1))
    geometry.finalize()
    operation = create(DescriptorType.OPERATION_CONVOLUTION_FORWARD)
    operation.set_attribute(Name.OPERATION_CONVOLUTION_FORWARD_CONV_DESC, Type.BACKEND_DESCRIPTOR, geometry)
    operation.set_attribute(Name.OPERATION_CONVOLUTION_FORWARD_X, Type.BACKEND_DESCRIPTOR, x)
    operation.set_attribute(Name.OPERATION_CONVOLUTION_FORWARD_W, Type.BACKEND_DESCRIPTOR, w)
    operation.set_attribute(Name.OPERATION_CONVOLUTION_FORWARD_Y, Type.BACKEND_DESCRIPTOR, y)
    operation.set_attribute(Name.OPERATION_CONVOLUTION_FORWARD_ALPHA, Type.FLOAT, 1.0)
    operation.set_attribute(Name.OPERATION_CONVOLUTION_FORWARD_BETA, Type.FLOAT, 0.0)
    operation.finalize()
    return operation


def _pointwise(mode: PointwiseMode, x: Descriptor, y: Descriptor, b: Descriptor | None = None) -> Descriptor:
    pointwise = create(DescriptorType.POINTWISE)
    pointwise.set_attribute(Name.POINTWISE_MODE, Type.POINTWISE_MODE, mode)
    pointwise.set_attribute(Name.POINTWISE_MATH_PREC, Type.DATA_TYPE, DataType.FLOAT)
    pointwise.finalize()
    operation = create(DescriptorType.OPERATION_POINTWISE)
    operation.set_attribute(Name.OPERATION_POINTWISE_PW_DESCRIPTOR, Type.BACKEND_DESCRIPTOR, pointwise)
    operation.set_attribute(Name.OPERATION_POINTWISE_XDESC, Type.BACKEND_DESCRIPTOR, x)
    operation.set_attribute(Name.OPERATION_POINTWISE_YDESC, Type.BACKEND_DESCRIPTOR, y)
    if b is not None:
        operation.set_attribute(Name.OPERATION_POINTWISE_BDESC, Type.BACKEND_DESCRIPTOR, b)
    operation.finalize()
    return operation


def _first_plan(handle: Handle, graph: Descriptor) -> Descriptor:
    heuristics = create(DescriptorType.ENGINEHEUR)
    heuristics.set_attribute(Name.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, graph)
    heuristics.set_attribute(Name.ENGINEHEUR_MODE, Type.HEUR_MODE, HeurMode.A)
    heuristics.finalize()
    best = heuristics.get_attribute(Name.ENGINEHEUR_RESULTS, Type.BACKEND_DESCRIPTOR)[0]
    plan = create(DescriptorType.EXECUTION_PLAN)
    plan.set_attribute(Name.EXECUTION_PLAN_HANDLE, Type.HANDLE, handle)
    plan.set_attribute(Name.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, best)
    plan.finalize()
    return plan

"""A fused convolution through backend descriptors: call for call what a C program does with cudnnBackend*.

    python -m tools.examples.fused_convolution_backend

The graph and its inputs are those of ``fused_convolution.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

import lowdnn
from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName as Name
from lowdnn.enums import AttributeType as Type
from lowdnn.enums import ConvolutionMode, DataType, DescriptorType, HeurMode, PointwiseMode
from lowdnn.ops.tensor import channels_last_strides
from tools.examples.fused_convolution import inputs, verdict

# -- uids of the tensors that the caller gives, in the order of ``inputs``, and of those inside the graph
X, W, SCALE, BIAS, Y = 1, 2, 3, 4, 5
_CONVOLVED, _SCALED, _SHIFTED = 10, 11, 12


def main(device: str | None = None) -> int:
    """Runs on ``device`` (None: the GPU, or the emulated device where there is none); 0 where y is right."""
    arrays = inputs()
    with Handle.open(device) as handle:
        plan = first_plan(handle, operation_graph(handle, len(arrays["x"]), len(arrays["w"])))
        on_device = {
            uid: lowdnn.from_numpy(array, handle, strides=channels_last_strides(array.shape))
            for uid, array in zip((X, W, SCALE, BIAS), arrays.values(), strict=True)
        }
        shape = (len(arrays["x"]), len(arrays["w"]), 8, 8)
        y = lowdnn.from_numpy(np.zeros(shape, np.float16), handle, strides=channels_last_strides(shape))
        (size,) = plan.get_attribute(Name.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64)
        workspace = lowdnn.from_numpy(np.zeros(max(size, 1), np.uint8), handle)
        execute(handle, plan, variant_pack(on_device | {Y: y}, workspace))
        return verdict(np.asarray(y.numpy()), arrays)


def operation_graph(handle: Handle, images: int, filters: int) -> Descriptor:
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
    return graph


def first_plan(handle: Handle, graph: Descriptor) -> Descriptor:
    """The execution plan of the engine that the heuristics put first."""
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


def variant_pack(tensors: Mapping[int, lowdnn.DeviceTensor], workspace: lowdnn.DeviceTensor) -> Descriptor:
    """The addresses for one execute: ``tensors`` by uid."""
    pack = create(DescriptorType.VARIANT_PACK)
    pack.set_attribute(Name.VARIANT_PACK_UNIQUE_IDS, Type.INT64, tuple(tensors))
    pack.set_attribute(Name.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, tuple(tensor.ptr for tensor in tensors.values()))
    pack.set_attribute(Name.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, workspace.ptr)
    pack.finalize()
    return pack


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


if __name__ == "__main__":
    sys.exit(main())

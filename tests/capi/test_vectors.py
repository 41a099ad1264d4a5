"""Tensors in NCHW_VECT_C, whose elements are vectors of 4 or 32 channels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import ActivationMode, DataType, TensorFormat
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory, scale

Array = NDArray[Any]
VECT_C, NCHW, NHWC = TensorFormat.NCHW_VECT_C, TensorFormat.NCHW, TensorFormat.NHWC
TYPES = {DataType.INT8x4: (np.int8, 4), DataType.UINT8x4: (np.uint8, 4), DataType.INT8x32: (np.int8, 32)}
EACH = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)


def integers(kind: DataType, *shape: int, most: int = 9) -> Array:
    dtype, _ = TYPES[kind]
    return np.random.default_rng().integers(0 if dtype is np.uint8 else -most, most + 1, shape).astype(dtype)


def laid_out(x: Array, vector: int) -> Array:
    """(N, C, H, W) as it lies in memory: (N, C / v, H, W, v)."""
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // vector, vector, h, w).transpose(0, 1, 3, 4, 2))


def read(memory: Memory, address: int) -> Array:
    """The values at the address, as (N, C, H, W)."""
    found = memory.get(address)
    n, c, h, w, vector = found.shape
    return found.transpose(0, 1, 4, 2, 3).reshape(n, c * vector, h, w)


def tensor(caller: Caller, kind: DataType, layout: TensorFormat, dims: tuple[int, ...]) -> int:
    descriptor = int(caller.output("cudnnCreateTensorDescriptor"))
    caller.call("cudnnSetTensor4dDescriptor", descriptor, layout, kind, *dims)
    return descriptor


def scales(alpha: float, beta: float) -> list[Any]:
    return [ctypes.byref(scale(value)) for value in (alpha, beta)]


@EACH
def test_descriptors(caller: Caller, kind: DataType) -> None:
    _, vector = TYPES[kind]
    descriptor, filters = (
        tensor(caller, kind, VECT_C, (2, 2 * vector, 3, 5)),
        caller.output("cudnnCreateFilterDescriptor"),
    )
    assert caller.output("cudnnGetTensorSizeInBytes", descriptor, kind=ctypes.c_size_t) == 2 * 2 * vector * 15
    found = [ctypes.c_int() for _ in range(9)]
    caller.call("cudnnGetTensor4dDescriptor", descriptor, *map(ctypes.byref, found))
    assert [number.value for number in found] == [kind, 2, 2 * vector, 3, 5, 30, 15, 5, 1]
    caller.call("cudnnSetFilter4dDescriptor", filters, kind, VECT_C, 4, vector, 3, 3)
    assert caller.output("cudnnGetFilterSizeInBytes", filters, kind=ctypes.c_size_t) == 4 * vector * 9
    for layout, data_type, channels in ((NHWC, kind, vector), (VECT_C, DataType.FLOAT, 4), (VECT_C, kind, vector + 1)):
        arguments = (descriptor, layout, data_type, 2, channels, 3, 3)
        assert caller.status("cudnnSetTensor4dDescriptor", *arguments) is Status.BAD_PARAM
        arguments = (filters, data_type, layout, 2, channels, 3, 3)
        assert caller.status("cudnnSetFilter4dDescriptor", *arguments) is Status.BAD_PARAM


@EACH
def test_layouts(caller: Caller, device: Runtime, kind: DataType) -> None:
    """NHWC floats go into vectors, scaled and added, and back to NCHW."""
    dtype, vector = TYPES[kind]
    memory, handle, dims = Memory(device), caller.handle(), (2, 2 * vector, 3, 5)
    x, old = integers(kind, *dims).astype(np.float32), integers(kind, *dims)
    plain, vectors = tensor(caller, DataType.FLOAT, NHWC, dims), tensor(caller, kind, VECT_C, dims)
    source, target = memory.put(x.transpose(0, 2, 3, 1)), memory.put(laid_out(old, vector))
    alpha, beta = scales(2.0, 3.0)
    caller.call("cudnnTransformTensor", handle, alpha, plain, source, beta, vectors, target)
    np.testing.assert_array_equal(read(memory, target), 2 * x + 3 * old)
    back, (one, zero) = memory.put(np.zeros(dims, dtype)), scales(1.0, 0.0)
    scalars = tensor(caller, DataType.UINT8 if dtype is np.uint8 else DataType.INT8, NCHW, dims)
    caller.call("cudnnTransformTensor", handle, one, vectors, target, zero, scalars, back)
    np.testing.assert_array_equal(memory.get(back), read(memory, target))


@EACH
def test_activations_and_pooling(caller: Caller, device: Runtime, kind: DataType) -> None:
    _, vector = TYPES[kind]
    memory, handle, dims = Memory(device), caller.handle(), (2, vector, 4, 6)
    x, (one, zero) = integers(kind, *dims, most=100), scales(1.0, 0.0)
    vectors, pooled = tensor(caller, kind, VECT_C, dims), tensor(caller, kind, VECT_C, (2, vector, 2, 3))
    address, result = memory.put(laid_out(x, vector)), memory.put(laid_out(x[:, :, :2, :3], vector))
    pooling = caller.output("cudnnCreatePoolingDescriptor")
    for mode in (0, 1):
        caller.call("cudnnSetPooling2dDescriptor", pooling, mode, 0, 2, 2, 0, 0, 2, 2)
        caller.call("cudnnPoolingForward", handle, pooling, one, vectors, address, zero, pooled, result)
        windows = x.reshape(2, vector, 2, 2, 3, 2).astype(float)
        expected = windows.max((3, 5)) if mode == 0 else np.rint(windows.mean((3, 5)))
        np.testing.assert_array_equal(read(memory, result), expected)
    activation = caller.output("cudnnCreateActivationDescriptor")
    caller.call("cudnnSetActivationDescriptor", activation, ActivationMode.RELU, 0, 0.0)
    caller.call("cudnnActivationForward", handle, activation, one, vectors, address, zero, vectors, address)
    np.testing.assert_array_equal(read(memory, address), np.maximum(x, 0))


@pytest.mark.parametrize("is_float", [False, True])
@pytest.mark.parametrize("kind", [DataType.INT8x4, DataType.INT8x32], ids=lambda kind: kind.name)
def test_convolutions(caller: Caller, device: Runtime, kind: DataType, is_float: bool) -> None:
    """Results go into vectors, saturated, and into floats; then with bias and ReLU in the same call."""
    _, vector = TYPES[kind]
    memory, handle = Memory(device), caller.handle()
    x, w = integers(kind, 2, 2 * vector, 5, 6), integers(kind, vector, 2 * vector, 3, 3)
    geometry = Convolution(DataType.INT32, 2, (1, 1), (1, 1), (2, 1), (1, 1))
    dims = geometry.output_dims(x.shape, w.shape)
    tensors = {
        port: Tensor(1, DataType.INT32, shape, packed_strides(shape), 16)
        for port, shape in (("x", x.shape), ("w", w.shape), ("y", dims))
    }
    operands = {"x": x.astype(np.float64), "w": w.astype(np.float64)}
    product = ConvolutionForward(geometry, **tensors).reference(operands)["y"]
    descriptors = [tensor(caller, kind, VECT_C, x.shape), int(caller.output("cudnnCreateFilterDescriptor"))]
    caller.call("cudnnSetFilter4dDescriptor", descriptors[1], kind, VECT_C, *w.shape)
    convolution = caller.output("cudnnCreateConvolutionDescriptor")
    caller.call("cudnnSetConvolution2dDescriptor", convolution, 1, 1, 2, 1, 1, 1, 1, DataType.INT32)
    target = tensor(caller, DataType.FLOAT if is_float else kind, NCHW if is_float else VECT_C, dims)
    result = memory.put(np.zeros(dims, np.float32) if is_float else laid_out(np.zeros(dims, np.int8), vector))
    given = [memory.put(laid_out(array, vector)) for array in (x, w)]
    name, problem = "cudnnGetConvolutionForwardWorkspaceSize", (*descriptors, convolution, target)
    size = caller.output(name, handle, *problem, 1, kind=ctypes.c_size_t)
    workspace = (memory.put(np.zeros(size, np.uint8)), size)
    one, zero = scales(1.0, 0.0)
    inputs = (descriptors[0], given[0], descriptors[1], given[1], convolution, 1, *workspace)
    caller.call("cudnnConvolutionForward", handle, one, *inputs, zero, target, result)

    def found() -> Array:
        return memory.get(result) if is_float else read(memory, result)

    def stored(values: Array) -> Array:
        return values if is_float else np.clip(np.rint(values), -128, 127)

    np.testing.assert_array_equal(found(), stored(product))
    (alpha,) = scales(0.125, 0.0)[:1]
    activation = caller.output("cudnnCreateActivationDescriptor")
    caller.call("cudnnSetActivationDescriptor", activation, ActivationMode.RELU, 0, 0.0)
    row = (1, dims[1], 1, 1)
    bias = np.random.default_rng().integers(-9, 9, row).astype(np.float32)
    described = tensor(caller, DataType.FLOAT, NCHW, row)
    caller.call(
        "cudnnConvolutionBiasActivationForward", handle, alpha, *inputs, zero, 0, 0, described, memory.put(bias),
        activation, target, result,
    )  # fmt: skip
    np.testing.assert_array_equal(found(), stored(np.maximum(product / 8 + bias, 0)))


def test_reordering(caller: Caller, device: Runtime) -> None:
    """Filters that were reordered are what they were, so that convolutions with and without reordering agree."""
    memory, handle = Memory(device), caller.handle()
    w, bias = laid_out(integers(DataType.INT8x32, 4, 32, 3, 3), 32), np.arange(4, dtype=np.float32)
    filters = caller.output("cudnnCreateFilterDescriptor")
    caller.call("cudnnSetFilter4dDescriptor", filters, DataType.INT8x32, VECT_C, 4, 32, 3, 3)
    new, new_bias = memory.put(np.zeros_like(w)), memory.put(np.zeros_like(bias))
    name, given = "cudnnReorderFilterAndBias", (handle, filters, 0, memory.put(w), new)
    assert caller.status(name, *given, 1, 0, new_bias) is Status.BAD_PARAM_NULL_POINTER
    assert not memory.get(new).any()
    caller.call(name, *given, 0, 0, 0)
    caller.call(name, *given, 1, memory.put(bias), new_bias)
    np.testing.assert_array_equal(memory.get(new), w)
    np.testing.assert_array_equal(memory.get(new_bias), bias)

"""Transforms that pad and fold, im2col and folded gradients against NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.capi.classic_enums import FoldingDirection
from lowdnn.enums import DataType, TensorFormat
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory, scale, tensor_descriptor
from tests.support.random_calls.transforms import folded, resized, unfolded

Array = NDArray[Any]
FOLD, UNFOLD = FoldingDirection.FOLD, FoldingDirection.UNFOLD


def integers(*shape: int) -> Array:
    return np.random.default_rng().integers(-9, 10, shape).astype(np.float32)


def transform(
    caller: Caller, before: tuple[int, ...], after: tuple[int, ...], folds: tuple[int, ...],
    direction: FoldingDirection, layout: TensorFormat = TensorFormat.NCHW,
) -> int:  # fmt: skip
    descriptor = int(caller.output("cudnnCreateTensorTransformDescriptor"))
    arrays = [(ctypes.c_int32 * len(values))(*values) for values in (before, after, folds)]
    name = "cudnnSetTensorTransformDescriptor"
    caller.call(name, descriptor, len(before), layout, *arrays, direction)
    return descriptor


CASES = [
    ((2, 3, 4, 5), (0, 0, 0, 0), (0, 0, 0, 0), (1, 1), FOLD),
    ((2, 3, 4, 5), (1, 2, 0, 3), (0, 1, 2, -1), (1, 1), FOLD),
    ((2, 3, 4, 6), (0, 0, 0, 0), (0, 0, 0, 0), (2, 3), FOLD),
    ((2, 3, 5, 5), (0, 0, 1, 2), (0, 0, 2, 1), (2, 4), FOLD),
    ((1, 2, 5, 4, 3), (0, 0, 1, 0, -1), (1, 0, 0, 2, 4), (2, 3, 2), FOLD),
    ((2, 12, 3, 2), (0, 0, 0, 0), (0, 0, 0, 0), (2, 3), UNFOLD),
    ((2, 8, 3, 2), (0, 0, -1, 2), (0, 1, 0, -3), (2, 4), UNFOLD),
    ((2, 3, 2, 2), (0, 0, -1, -2), (0, 0, -1, 0), (1, 1), FOLD),
    ((1, 1, 3, 2), (0, 0, 0, 1), (0, 0, 1, 1), (2, 2), FOLD),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (2.0, -3.0)])
def test_transforms(caller: Caller, device: Runtime, case: tuple[Any, ...], alpha: float, beta: float) -> None:
    """The destination is what cudnnInitTransformDest says, and holds NaN where it must not be read."""
    shape, before, after, folds, direction = case
    memory, handle = Memory(device), caller.handle()
    descriptor = transform(caller, before, after, folds, direction)
    x, target = integers(*shape), caller.output("cudnnCreateTensorDescriptor")
    source = tensor_descriptor(caller, x)
    name, is_fold = "cudnnInitTransformDest", direction is FOLD
    wanted = resized(x, before, after) if is_fold else unfolded(x, folds)
    if not wanted.size:
        size = ctypes.byref(ctypes.c_size_t())
        assert caller.status(name, descriptor, source, target, size) is Status.BAD_PARAM
        return
    wanted = folded(wanted, folds) if is_fold else resized(wanted, before, after)
    size = caller.output(name, descriptor, source, target, kind=ctypes.c_size_t)
    assert size == wanted.nbytes
    old = integers(*wanted.shape) if beta else np.full(wanted.shape, np.nan, np.float32)
    address, scales = memory.put(old), [ctypes.byref(scale(value)) for value in (alpha, beta)]
    operands = (scales[0], source, memory.put(x), scales[1])
    caller.call("cudnnTransformTensorEx", handle, descriptor, *operands, target, address)
    np.testing.assert_array_equal(memory.get(address), alpha * wanted + (beta * old if beta else 0))
    strides = (ctypes.c_int * wanted.ndim)(*[stride // 4 for stride in wanted.strides[:-1]], 0)
    overlapping, dims = caller.output("cudnnCreateTensorDescriptor"), (ctypes.c_int * wanted.ndim)(*wanted.shape)
    caller.call("cudnnSetTensorNdDescriptor", overlapping, DataType.FLOAT, wanted.ndim, dims, strides)
    # With beta 1 nothing but the pieces is written.
    added = (scales[0], source, operands[2], ctypes.byref(scale(1.0)), overlapping, address)
    status = caller.status("cudnnTransformTensorEx", handle, descriptor, *added)
    assert status is (Status.BAD_PARAM if wanted.shape[-1] > 1 else Status.SUCCESS)
    status = caller.status("cudnnTransformTensorEx", handle, descriptor, *operands, source, address)
    assert status is (Status.SUCCESS if wanted.shape == shape else Status.BAD_PARAM_SHAPE_MISMATCH)


def test_the_descriptor(caller: Caller) -> None:
    descriptor = transform(caller, (0, 0, 1, -2), (3, 0, 0, 0), (2, 1), UNFOLD, TensorFormat.NHWC)
    layout, direction = ctypes.c_int(), ctypes.c_int()
    arrays = [(ctypes.c_int32 * 4)(*[77] * 4) for _ in range(3)]
    get = ("cudnnGetTensorTransformDescriptor", descriptor)
    caller.call(*get, 3, ctypes.byref(layout), *arrays, ctypes.byref(direction))
    assert [[*array] for array in arrays] == [[0, 0, 1, 77], [3, 0, 0, 77], [2, 77, 77, 77]]
    assert (layout.value, direction.value) == (TensorFormat.NHWC, UNFOLD)
    name = ("cudnnSetTensorTransformDescriptor", descriptor)
    for arguments, status in (
        ((2, 0, 0, 0, 0, 0), Status.BAD_PARAM),
        ((9, 0, 0, 0, 0, 0), Status.NOT_SUPPORTED),
        ((4, 2, 0, 0, 0, 0), Status.NOT_SUPPORTED),
        ((4, 3, 0, 0, 0, 0), Status.BAD_PARAM),
        ((4, 0, 0, 0, (ctypes.c_uint32 * 2)(0, 1), 0), Status.BAD_PARAM),
        ((4, 0, 0, 0, 0, 2), Status.BAD_PARAM),
    ):
        assert caller.status(*name, *arguments) is status
    caller.call(*get, 4, ctypes.byref(layout), *arrays, ctypes.byref(direction))
    assert [*arrays[0]] == [0, 0, 1, -2]
    caller.call(*name, 4, 0, 0, 0, 0, 0)
    caller.call(*get, 4, ctypes.byref(layout), *arrays, ctypes.byref(direction))
    assert [[*array] for array in arrays] == [[0] * 4, [0] * 4, [1, 1, 77, 77]]


def _filter(caller: Caller, shape: tuple[int, ...]) -> int:
    descriptor = int(caller.output("cudnnCreateFilterDescriptor"))
    caller.call("cudnnSetFilter4dDescriptor", descriptor, DataType.FLOAT, 0, *shape)
    return descriptor


def _convolution(
    caller: Caller, pads: tuple[int, int], strides: tuple[int, int], *, mode: int = 1, gap: int = 1
) -> int:
    descriptor = int(caller.output("cudnnCreateConvolutionDescriptor"))
    caller.call("cudnnSetConvolution2dDescriptor", descriptor, *pads, *strides, gap, gap, mode, DataType.FLOAT)
    return descriptor


def test_im2col(caller: Caller, device: Runtime) -> None:
    memory, x, gap = Memory(device), integers(2, 3, 6, 5), 2
    convolution = _convolution(caller, (2, 1), (2, 1), gap=gap)
    padded = np.pad(x, [(0, 0), (0, 0), (2, 2), (1, 1)])
    expected = np.empty((2, 3, 5, 3, 3, 2), np.float32)
    for p, q, r, s in np.ndindex(3, 5, 3, 2):
        expected[:, p, q, :, r, s] = padded[:, :, 2 * p + gap * r, q + gap * s]
    columns = memory.put(np.full((30, 18), np.nan, np.float32))
    source = (tensor_descriptor(caller, x), memory.put(x))
    caller.call("cudnnIm2Col", caller.handle(), *source, _filter(caller, (4, 3, 3, 2)), convolution, columns)
    np.testing.assert_array_equal(memory.get(columns), expected.reshape(30, 18))


@pytest.mark.parametrize(("pads", "strides"), [((1, 1), (2, 2)), ((0, 2), (3, 2)), ((2, 0), (1, 4))])
def test_folded_gradients(caller: Caller, device: Runtime, pads: tuple[int, int], strides: tuple[int, int]) -> None:
    """The gradient by way of the folded convolution is the gradient."""
    memory, handle = Memory(device), caller.handle()
    w, dx = integers(4, 3, 3, 5), np.full((2, 3, 7, 8), np.nan, np.float32)
    convolution, filters, image = (
        _convolution(caller, pads, strides),
        _filter(caller, w.shape),
        tensor_descriptor(caller, dx),
    )
    dims = (ctypes.c_int * 4)()
    caller.call("cudnnGetConvolutionNdForwardOutputDim", convolution, image, filters, 4, dims)
    dy = integers(*dims)
    response = tensor_descriptor(caller, dy)
    kinds = ("Filter", "Tensor", "Convolution", "Tensor", *["TensorTransform"] * 4)
    made = [int(caller.output(f"cudnnCreate{kind}Descriptor")) for kind in kinds]
    name = "cudnnGetFoldedConvBackwardDataDescriptors"
    caller.call(name, handle, filters, response, convolution, image, TensorFormat.NCHW, *made)
    folded_w, padded_dy, folded_convolution, folded_dx, fold_w, pad_dy, fold_dx, unfold_dx = made
    one, zero = ctypes.byref(scale(1.0)), ctypes.byref(scale(0.0))

    def room(descriptor: int, kind: str) -> int:
        size = caller.output(f"cudnnGet{kind}SizeInBytes", descriptor, kind=ctypes.c_size_t)
        return memory.put(np.full(size // 4, np.nan, np.float32))

    w_at, dy_at, dx_at = memory.put(w), memory.put(dy), memory.put(dx)
    parts = (room(folded_w, "Filter"), room(padded_dy, "Tensor"), room(folded_dx, "Tensor"))
    caller.call("cudnnTransformFilter", handle, fold_w, one, filters, w_at, zero, folded_w, parts[0])
    caller.call("cudnnTransformTensorEx", handle, pad_dy, one, response, dy_at, zero, padded_dy, parts[1])
    gradient = ("cudnnConvolutionBackwardData", handle, one)
    workspace = (memory.put(np.zeros(1 << 20, np.uint8)), 1 << 20)
    caller.call(
        *gradient, folded_w, parts[0], padded_dy, parts[1], folded_convolution, 1, *workspace, zero, folded_dx, parts[2]
    )
    caller.call("cudnnTransformTensorEx", handle, unfold_dx, one, folded_dx, parts[2], zero, image, dx_at)
    found = memory.get(dx_at)
    caller.call(*gradient, filters, w_at, response, dy_at, convolution, 1, *workspace, zero, image, dx_at)
    np.testing.assert_array_equal(found, memory.get(dx_at))
    caller.call("cudnnTransformTensorEx", handle, fold_dx, one, image, dx_at, zero, folded_dx, parts[2])
    for mode, gap in ((0, 1), (1, 2)):
        other = _convolution(caller, (6, 6), (1, 1), mode=mode, gap=gap)
        caller.call("cudnnGetConvolutionNdForwardOutputDim", other, image, filters, 4, dims)
        wide = tensor_descriptor(caller, np.zeros([*dims], np.float32))
        assert caller.status(name, handle, filters, wide, other, image, 0, *made) is Status.NOT_SUPPORTED

"""Classic calls that come again are launched without their graph, on their own addresses and numbers."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.graphs import Builder
from lowdnn.capi.loading import Binding
from lowdnn.enums import ConvolutionMode, DataType, TensorFormat
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import DTYPES, Caller, Memory, scale, tensor_descriptor

DIMS = (2, 3, 4, 5)


class Sum:
    """c = alpha * a + beta * c, each call with new descriptors; results are compared."""

    def __init__(self, caller: Caller, device: Runtime, dtype: type = np.float32) -> None:
        self.caller, self.memory, self.handle = caller, Memory(device), caller.handle()
        self.rng, self.dtype = np.random.default_rng(3), dtype

    def run(self, alpha: float, beta: float, offset: int = 0, dims: tuple[int, ...] = DIMS) -> None:
        """offset: in elements, from an address with every alignment."""
        a, c = (self.rng.integers(-3, 4, np.prod(dims) + offset).astype(self.dtype) for _ in range(2))
        places = [self.memory.put(array) + offset * array.itemsize for array in (a, c)]
        shaped = np.zeros(dims, self.dtype)
        one, other = (tensor_descriptor(self.caller, shaped) for _ in range(2))
        scales = [ctypes.byref(scale(value, self.dtype)) for value in (alpha, beta)]
        self.caller.call("cudnnAddTensor", self.handle, scales[0], one, places[0], scales[1], other, places[1])
        found = self.memory.get(places[1] - offset * c.itemsize)[offset:]
        np.testing.assert_array_equal(found, alpha * a[offset:] + beta * c[offset:])


def test_a_call_that_comes_again_builds_no_graph(
    caller: Caller, device: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Sum(caller, device)
    case.run(2.0, 3.0)
    monkeypatch.setattr(Builder, "tensor", None)
    for _ in range(3):
        case.run(2.0, 3.0)
    with pytest.raises(AssertionError, match="TypeError"):
        case.run(2.0, 4.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_differs_is_another_call(caller: Caller, device: Runtime, dtype: type) -> None:
    """The upper half of a double alpha tells 1 from 2."""
    case = Sum(caller, device, dtype)
    kinds = [(1.0, 0.0), (2.0, 0.0), (2.0, 1.0), (2.0, 1.0, 1), (2.0, 1.0, 0, (1, 3, 4, 5)), (1.0, 2.0)]
    for kind in (*kinds, *kinds, *itertools.islice(itertools.cycle(kinds[::-1]), 9)):
        case.run(*kind)


def test_handles_end(caller: Caller, device: Runtime, binding: Binding) -> None:
    case = Sum(caller, device)
    case.run(1.0, 1.0)
    old = case.handle
    caller.call("cudnnDestroy", old)
    with pytest.raises(AssertionError, match="where nothing is"):
        case.run(1.0, 1.0)
    case.handle = caller.handle()
    case.run(1.0, 1.0)
    assert old != case.handle


def test_convolutions_with_workspaces_and_their_sizes(caller: Caller, device: Runtime) -> None:
    memory, handle = Memory(device), caller.handle()
    descriptors = [caller.output(f"cudnnCreate{kind}Descriptor") for kind in ("Filter", "Convolution")]
    x, w, y = (np.full(dims, 2.0, np.float32) for dims in ((1, 4, 6, 6), (8, 4, 1, 1), (1, 8, 6, 6)))
    filters = (ctypes.c_int * 4)(*w.shape)
    kind = DTYPES[w.dtype]
    caller.call("cudnnSetFilterNdDescriptor", descriptors[0], kind, TensorFormat.NCHW, 4, filters)
    zeros, ones = (ctypes.c_int * 2)(0, 0), (ctypes.c_int * 2)(1, 1)
    settings = (2, zeros, ones, ones, ConvolutionMode.CROSS_CORRELATION, DataType.FLOAT)
    caller.call("cudnnSetConvolutionNdDescriptor", descriptors[1], *settings)
    for extra, value in itertools.product((0, 1 << 16), (1.0, -2.0)):
        one, other = tensor_descriptor(caller, x), tensor_descriptor(caller, y)
        sized = (handle, one, *descriptors, other, 0)
        name = "cudnnGetConvolutionForwardWorkspaceSize"
        sizes = {caller.output(name, *sized, kind=ctypes.c_size_t) for _ in range(2)}
        assert caller.status(name, *sized, None) is Status.BAD_PARAM_NULL_POINTER
        places = [memory.put(array) for array in (x * value, w, y)]
        (size,) = sizes
        room = memory.put(np.zeros(size + extra + 1, np.uint8))
        caller.call(
            "cudnnConvolutionForward", handle, ctypes.byref(scale(1.0)), one, places[0], descriptors[0], places[1],
            descriptors[1], 0, room, size + extra, ctypes.byref(scale(0.0)), other, places[2],
        )  # fmt: skip
        np.testing.assert_array_equal(memory.get(places[2]), np.full_like(y, 16 * value))


def test_settings_that_come_again_are_not_worked_out(
    caller: Caller, device: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the last ints counts, as does what the descriptor was; a setting that fails leaves nothing behind."""

    def sizes() -> list[int]:
        found = []
        for last in ((1, 1), (2, 1), (1, 2)):
            strides, dims = (ctypes.c_int * 4)(60, 20, 5, last[0]), (ctypes.c_int * 4)(2, 3, 4, last[1])
            tensor = caller.output("cudnnCreateTensorDescriptor")
            caller.call("cudnnSetTensorNdDescriptor", tensor, DataType.FLOAT, 4, dims, strides)
            found.append(caller.output("cudnnGetTensorSizeInBytes", tensor, kind=ctypes.c_size_t))
            wrong = ("cudnnSetTensorNdDescriptor", tensor, DataType.FLOAT, 4, None, strides)
            assert caller.status(*wrong) is Status.BAD_PARAM_NULL_POINTER
        return found

    expected = [4 * (60 + 40 + 15 + 1), 4 * (60 + 40 + 15 + 1), 4 * (60 + 40 + 15 + 2)]
    assert sizes() == expected
    monkeypatch.setattr(TensorDescriptor, "of", None)
    assert sizes() == expected
    tensor = caller.output("cudnnCreateTensorDescriptor")
    for _ in range(2):
        dims, strides = (ctypes.c_int * 4)(2, 3, 4, 5), (ctypes.c_int * 4)(60, 20, 5, 0)
        with pytest.raises(AssertionError, match="TypeError"):
            caller.call("cudnnSetTensorNdDescriptor", tensor, DataType.FLOAT, 4, dims, strides)


def test_settings_of_one_field_leave_the_others(caller: Caller, device: Runtime) -> None:
    x, w = tensor_descriptor(caller, np.ones((1, 4, 9, 9), np.float32)), caller.output("cudnnCreateFilterDescriptor")
    caller.call("cudnnSetFilter4dDescriptor", w, DataType.FLOAT, TensorFormat.NCHW, 4, 2, 3, 3)
    for padding in (0, 1, 0, 2):
        convolution = caller.output("cudnnCreateConvolutionDescriptor")
        settings = (padding, padding, 1, 1, 1, 1, ConvolutionMode.CONVOLUTION, DataType.FLOAT)
        caller.call("cudnnSetConvolution2dDescriptor", convolution, *settings)
        caller.call("cudnnSetConvolutionGroupCount", convolution, 2)
        dims = (ctypes.c_int * 4)()
        caller.call("cudnnGetConvolutionNdForwardOutputDim", convolution, x, w, 4, dims)
        assert [*dims] == [1, 4, 7 + 2 * padding, 7 + 2 * padding]


def test_a_call_in_place_is_another_call(caller: Caller, device: Runtime) -> None:
    """A call in place between two layouts is refused, though the same call between two addresses has been made."""
    memory, handle, x = Memory(device), caller.handle(), np.ones(DIMS, np.float32)
    source, target = tensor_descriptor(caller, x), caller.output("cudnnCreateTensorDescriptor")
    caller.call("cudnnSetTensor4dDescriptor", target, TensorFormat.NHWC, DataType.FLOAT, *DIMS)
    one, zero, (a, b) = scale(1.0), scale(0.0), (memory.put(x) for _ in range(2))
    for y, status in ((b, Status.SUCCESS), (a, Status.BAD_PARAM), (b, Status.SUCCESS)):
        arguments = (handle, ctypes.byref(one), source, a, ctypes.byref(zero), target, y)
        assert caller.status("cudnnTransformTensor", *arguments) is status


def test_doubles_by_the_type_of_computation(caller: Caller, device: Runtime) -> None:
    """A double alpha of 2 has the lower half of one of 1."""
    memory, handle, x = Memory(device), caller.handle(), np.ones(DIMS, np.float32)
    operation = caller.output("cudnnCreateOpTensorDescriptor")
    caller.call("cudnnSetOpTensorDescriptor", operation, 0, DataType.DOUBLE, 0)
    tensor, (a, b, c) = tensor_descriptor(caller, x), (memory.put(x) for _ in range(3))
    for alpha in (1.0, 2.0, 1.0, 2.0):
        scales = [ctypes.byref(scale(value, np.float64)) for value in (alpha, 0.5, 0.0)]
        operands = (scales[0], tensor, a, scales[1], tensor, b, scales[2], tensor, c)
        caller.call("cudnnOpTensor", handle, operation, *operands)
        np.testing.assert_array_equal(memory.get(c), (alpha + 0.5) * x)

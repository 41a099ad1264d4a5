"""The classic descriptors: what is set comes back, extents of outputs, and what is refused."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import pytest

from lowdnn.capi.calls.catalogue import CALLS
from lowdnn.capi.signatures import Argument, functions
from lowdnn.enums import DataType, TensorFormat
from lowdnn.status import Status
from tests.support.capi import Caller

INT, FLOAT = DataType.INT8, DataType.FLOAT

#: (descriptor, set function, its values, get function): what is set comes back in the same order.
ROUND_TRIPS: list[tuple[str, str, tuple[Any, ...], str]] = [
    ("Tensor", "cudnnSetTensor4dDescriptorEx", (FLOAT, 2, 3, 4, 5, 100, 30, 6, 1), "cudnnGetTensor4dDescriptor"),
    ("Filter", "cudnnSetFilter4dDescriptor", (DataType.HALF, 1, 6, 5, 4, 3), "cudnnGetFilter4dDescriptor"),
    ("Convolution", "cudnnSetConvolution2dDescriptor", (1, 0, 2, 3, 4, 5, 1, 0), "cudnnGetConvolution2dDescriptor"),
    ("Convolution", "cudnnSetConvolutionGroupCount", (7,), "cudnnGetConvolutionGroupCount"),
    ("Convolution", "cudnnSetConvolutionMathType", (3,), "cudnnGetConvolutionMathType"),
    ("Convolution", "cudnnSetConvolutionReorderType", (1,), "cudnnGetConvolutionReorderType"),
    ("Pooling", "cudnnSetPooling2dDescriptor", (2, 1, 3, 4, 0, 1, 2, 5), "cudnnGetPooling2dDescriptor"),
    ("Activation", "cudnnSetActivationDescriptor", (4, 1, 0.3), "cudnnGetActivationDescriptor"),
    ("Activation", "cudnnSetActivationDescriptorSwishBeta", (0.7,), "cudnnGetActivationDescriptorSwishBeta"),
    ("LRN", "cudnnSetLRNDescriptor", (7, 0.5, 0.25, 1.5), "cudnnGetLRNDescriptor"),
    ("OpTensor", "cudnnSetOpTensorDescriptor", (3, 0, 1), "cudnnGetOpTensorDescriptor"),
    ("ReduceTensor", "cudnnSetReduceTensorDescriptor", (5, 0, 1, 1, 2), "cudnnGetReduceTensorDescriptor"),
]


def ints(*values: int) -> Any:
    return (ctypes.c_int * len(values))(*values)


@pytest.mark.parametrize(("kind", "set_name", "values", "get_name"), ROUND_TRIPS, ids=lambda value: str(value))
def test_what_is_set_comes_back(
    caller: Caller, kind: str, set_name: str, values: tuple[Any, ...], get_name: str
) -> None:
    descriptor = caller.output(f"cudnnCreate{kind}Descriptor")
    assert [argument.name for argument in functions()[set_name].arguments[1:]] == [
        argument.name for argument in functions()[get_name].arguments[1:]
    ]
    caller.call(set_name, descriptor, *values)
    outputs = [ctypes.c_double() if isinstance(value, float) else ctypes.c_int() for value in values]
    caller.call(get_name, descriptor, *map(ctypes.byref, outputs))
    assert [output.value for output in outputs] == list(values)
    for missing in range(len(values)):
        pointers = [None if index == missing else ctypes.byref(output) for index, output in enumerate(outputs)]
        assert caller.status(get_name, descriptor, *pointers) is Status.BAD_PARAM_NULL_POINTER
    caller.call(f"cudnnDestroy{kind}Descriptor", descriptor)
    assert caller.status(set_name, descriptor, *values) is Status.BAD_PARAM


def test_descriptors_of_any_rank(caller: Caller) -> None:
    tensor = caller.output("cudnnCreateTensorDescriptor")
    caller.call("cudnnSetTensorNdDescriptor", tensor, FLOAT, 5, ints(2, 3, 4, 5, 6), ints(400, 130, 31, 6, 1))
    kind, count, dims, strides = ctypes.c_int(), ctypes.c_int(), ints(*[-9] * 8), ints(*[-9] * 8)
    for requested in (8, 5, 3, 0):
        for array in (dims, strides):
            array[:] = [-9] * 8
        outputs = (ctypes.byref(kind), ctypes.byref(count), dims, strides)
        caller.call("cudnnGetTensorNdDescriptor", tensor, requested, *outputs)
        assert (kind.value, count.value) == (FLOAT, 5)
        shown = min(requested, 5)
        assert list(dims) == [2, 3, 4, 5, 6][:shown] + [-9] * (8 - shown)
        assert list(strides) == [400, 130, 31, 6, 1][:shown] + [-9] * (8 - shown)
    size = caller.output("cudnnGetTensorSizeInBytes", tensor, kind=ctypes.c_size_t)
    assert size == 4 * (400 + 2 * 130 + 3 * 31 + 4 * 6 + 5 + 1)
    filters = caller.output("cudnnCreateFilterDescriptor")
    caller.call("cudnnSetFilterNdDescriptor", filters, INT, TensorFormat.NHWC, 5, ints(2, 3, 4, 5, 6))
    layout = ctypes.c_int()
    outputs = (ctypes.byref(kind), ctypes.byref(layout), ctypes.byref(count), dims)
    caller.call("cudnnGetFilterNdDescriptor", filters, 4, *outputs)
    assert (kind.value, layout.value, count.value, *dims[:5]) == (INT, TensorFormat.NHWC, 5, 2, 3, 4, 5, -9)
    assert caller.output("cudnnGetFilterSizeInBytes", filters, kind=ctypes.c_size_t) == 720
    assert caller.status("cudnnGetTensor4dDescriptor", tensor, *[ctypes.byref(kind)] * 9) is Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("layout", "strides"), [(TensorFormat.NCHW, [60, 20, 5, 1]), (TensorFormat.NHWC, [60, 1, 15, 3])]
)
def test_formats(caller: Caller, layout: TensorFormat, strides: list[int]) -> None:
    for name, values in (
        ("cudnnSetTensor4dDescriptor", (2, 3, 4, 5)),
        ("cudnnSetTensorNdDescriptorEx", (4, ints(2, 3, 4, 5))),
    ):
        tensor = caller.output("cudnnCreateTensorDescriptor")
        caller.call(name, tensor, layout, FLOAT, *values)
        outputs = [ctypes.c_int() for _ in range(9)]
        caller.call("cudnnGetTensor4dDescriptor", tensor, *map(ctypes.byref, outputs))
        assert [output.value for output in outputs] == [FLOAT, 2, 3, 4, 5, *strides]


def test_outputs_of_convolutions_and_pooling(caller: Caller) -> None:
    """Against the windows that NumPy counts."""
    rng = random.Random()
    image, filters = caller.output("cudnnCreateTensorDescriptor"), caller.output("cudnnCreateFilterDescriptor")
    convolution, pooling = (
        caller.output("cudnnCreateConvolutionDescriptor"),
        caller.output("cudnnCreatePoolingDescriptor"),
    )
    for _ in range(100):
        rank = rng.randint(1, 3)
        taps, strides, dilations, pads = ([rng.randint(least, 3) for _ in range(rank)] for least in (1, 1, 1, 0))
        extents, groups = [rng.randint(9, 12) for _ in range(rank)], rng.randint(1, 3)
        expected, pooled = [], []
        for extent, tap, stride, dilation, pad in zip(extents, taps, strides, dilations, pads, strict=True):
            padded = np.zeros(extent + 2 * pad)
            expected.append(
                np.lib.stride_tricks.sliding_window_view(padded, 1 + (tap - 1) * dilation)[::stride].shape[0]
            )
            pooled.append(np.lib.stride_tricks.sliding_window_view(padded, tap)[::stride].shape[0])
        dims = (2, 4 * groups, *extents)
        caller.call("cudnnSetTensorNdDescriptorEx", image, 0, FLOAT, rank + 2, ints(*dims))
        caller.call("cudnnSetFilterNdDescriptor", filters, FLOAT, 0, rank + 2, ints(6, 4, *taps))
        arrays = (ints(*pads), ints(*strides), ints(*dilations))
        caller.call("cudnnSetConvolutionNdDescriptor", convolution, rank, *arrays, 1, FLOAT)
        caller.call("cudnnSetConvolutionGroupCount", convolution, groups)
        caller.call("cudnnSetPoolingNdDescriptor", pooling, 0, 0, rank, ints(*taps), ints(*pads), ints(*strides))
        found = ints(*[-1] * 8)
        caller.call("cudnnGetConvolutionNdForwardOutputDim", convolution, image, filters, rank + 2, found)
        assert list(found) == [2, 6, *expected] + [-1] * (6 - rank)
        caller.call("cudnnGetPoolingNdForwardOutputDim", pooling, image, rank + 2, found)
        assert list(found) == [2, 4 * groups, *pooled] + [-1] * (6 - rank)
        if rank == 2:
            outputs = [ctypes.c_int() for _ in range(4)]
            caller.call(
                "cudnnGetConvolution2dForwardOutputDim", convolution, image, filters, *map(ctypes.byref, outputs)
            )
            assert [output.value for output in outputs] == [2, 6, *expected]
            caller.call("cudnnGetPooling2dForwardOutputDim", pooling, image, *map(ctypes.byref, outputs))
            assert [output.value for output in outputs] == [2, 4 * groups, *pooled]


def test_what_is_refused(caller: Caller) -> None:
    tensor, filters = caller.output("cudnnCreateTensorDescriptor"), caller.output("cudnnCreateFilterDescriptor")
    convolution, pooling = (
        caller.output("cudnnCreateConvolutionDescriptor"),
        caller.output("cudnnCreatePoolingDescriptor"),
    )
    lrn = caller.output("cudnnCreateLRNDescriptor")
    bad, unsupported = Status.BAD_PARAM, Status.NOT_SUPPORTED
    cases: list[tuple[Status, str, str, tuple[Any, ...]]] = [
        (bad, "dims", "cudnnSetTensor4dDescriptor", (tensor, 0, FLOAT, 2, 0, 4, 5)),
        (bad, "dataType", "cudnnSetTensor4dDescriptor", (tensor, 0, 99, 2, 3, 4, 5)),
        (bad, "format", "cudnnSetTensor4dDescriptor", (tensor, 3, FLOAT, 2, 3, 4, 5)),
        (bad, "format", "cudnnSetTensor4dDescriptor", (tensor, 2, FLOAT, 2, 3, 4, 5)),
        (bad, "strides", "cudnnSetTensor4dDescriptorEx", (tensor, FLOAT, 2, 3, 4, 5, 60, 20, -5, 1)),
        (unsupported, "nbDims", "cudnnSetTensorNdDescriptor", (tensor, FLOAT, 2, ints(2, 3), ints(3, 1))),
        (unsupported, "dimA.count", "cudnnSetTensorNdDescriptor", (tensor, FLOAT, 9, ints(*[1] * 9), ints(*[1] * 9))),
        (bad, "tensorDesc", "cudnnSetTensor4dDescriptor", (filters, 0, FLOAT, 2, 3, 4, 5)),
        (bad, "padA", "cudnnSetConvolution2dDescriptor", (convolution, -1, 0, 1, 1, 1, 1, 0, FLOAT)),
        (bad, "filterStrideA", "cudnnSetConvolution2dDescriptor", (convolution, 0, 0, 0, 1, 1, 1, 0, FLOAT)),
        (bad, "dilationA", "cudnnSetConvolution2dDescriptor", (convolution, 0, 0, 1, 1, 1, 0, 0, FLOAT)),
        (bad, "groupCount", "cudnnSetConvolutionGroupCount", (convolution, 0)),
        (bad, "windowDimA", "cudnnSetPooling2dDescriptor", (pooling, 0, 0, 0, 1, 0, 0, 1, 1)),
        (bad, "mode", "cudnnSetPooling2dDescriptor", (pooling, 4, 0, 1, 1, 0, 0, 1, 1)),
        (bad, "lrnN", "cudnnSetLRNDescriptor", (lrn, 17, 1.0, 1.0, 1.0)),
        (bad, "lrnBeta", "cudnnSetLRNDescriptor", (lrn, 5, 1.0, 0.001, 1.0)),
        (bad, "lrnK", "cudnnSetLRNDescriptor", (lrn, 5, 1.0, 1.0, float("nan"))),
        (bad, "lrnAlpha", "cudnnSetLRNDescriptor", (lrn, 5, float("inf"), 1.0, 1.0)),
        (bad, "tensorDesc", "cudnnGetTensorSizeInBytes", (tensor, ints(1, 1))),
    ]
    for status, field, name, arguments in cases:
        assert caller.status(name, *arguments) is status, (name, arguments, caller.last_error())
        assert f"{name}.{field}: expected" in caller.last_error()
    assert "one that was only created" in caller.last_error()


def test_random_numbers_give_statuses(caller: Caller) -> None:
    """Any numbers beside valid descriptors and memory: nothing crashes, no error is internal."""
    rng = random.Random()
    kinds = ("Tensor", "Filter", "Convolution", "Pooling", "Activation", "OpTensor", "ReduceTensor")
    known = {kind: caller.output(f"cudnnCreate{kind}Descriptor") for kind in kinds}
    names = [
        name
        for name in CALLS
        if any(argument.type.base.removesuffix("Descriptor") in kinds for argument in functions()[name].arguments)
        and not name.startswith(("cudnnCreate", "cudnnDestroy"))
        and not any(argument.type.base == "Handle" for argument in functions()[name].arguments)
    ]
    room = ctypes.create_string_buffer(256)

    def value(argument: Argument) -> Any:
        kind = argument.type.base.removesuffix("Descriptor")
        if kind in known:
            return known[kind]
        if argument.type.pointers:
            return room
        number = rng.choice((-1, 0, 1, 2, 3, 4, 5, 2**31 - 1))
        return float(number) if argument.type.base == "double" else number

    succeeded = set()
    for _ in range(4000):
        name = rng.choice(names)
        if rng.random() < 0.3:
            room.raw = np.array([rng.choice((1, 2, 3, -1, 2**31 - 1)) for _ in range(64)], np.int32).tobytes()
        status = caller.status(name, *map(value, functions()[name].arguments))
        assert status.category in (Status.SUCCESS, Status.BAD_PARAM, Status.NOT_SUPPORTED), caller.last_error()
        succeeded |= {name} if status is Status.SUCCESS else set()
    assert len(succeeded) > len(names) / 2

"""The classic convolutions against NumPy: three directions, algorithms, workspaces, alpha and beta."""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.capi.calls.convolution_algorithms import (
    BACKWARD_DATA,
    BACKWARD_FILTER,
    FORWARD,
    Direction,
    Method,
    method_of,
)
from lowdnn.capi.loading import Binding
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import ActivationMode, ConvolutionMode, DataType, HeurMode, MathType
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import DTYPES, Caller, Memory, scale, tensor_descriptor

PERFORMANCE = struct.Struct("=iif4xQii3i4x")


class Case:
    """A random convolution of small integers: descriptors, arrays on the device, the exact result."""

    def __init__(
        self, caller: Caller, device: Runtime, direction: Direction, *, dtype: Any = np.float32, groups: int = 1,
        strides: tuple[int, int] = (2, 1), dilations: tuple[int, int] = (1, 2), taps: tuple[int, int] = (3, 2),
        mode: ConvolutionMode | None = None,
    ) -> None:  # fmt: skip
        rng = random.Random()
        self.caller, self.direction, self.memory = caller, direction, Memory(device)
        self.handle = caller.handle()
        values = np.random.default_rng()
        pads = (rng.randint(0, 1), 1)
        mode = ConvolutionMode(rng.randint(0, 1)) if mode is None else mode
        compute = DataType.DOUBLE if dtype == np.float64 else DataType.FLOAT
        geometry = Convolution(compute, 2, pads, pads, strides, dilations, mode)
        x, w = ((2, 2 * groups, 6, 7), (3 * groups, 2, *taps))
        y = geometry.output_dims(x, w)
        shapes = {"x": x, "dx": x, "w": w, "dw": w, "y": y, "dy": y}
        self.arrays = [values.integers(-3, 4, shapes[port]).astype(dtype) for port in direction.ports]
        self.addresses = [self.memory.put(array) for array in self.arrays]
        self.descriptors = [
            _filter(caller, array) if "w" in port else tensor_descriptor(caller, array)
            for port, array in zip(direction.ports, self.arrays, strict=True)
        ]
        self.convolution = caller.output("cudnnCreateConvolutionDescriptor")
        caller.call("cudnnSetConvolution2dDescriptor", self.convolution, *pads, *strides, *dilations, mode, compute)
        caller.call("cudnnSetConvolutionGroupCount", self.convolution, groups)
        tensors = {
            port: Tensor(index, DTYPES[array.dtype], array.shape, _strides(array.shape), 16)
            for index, (port, array) in enumerate(zip(direction.ports, self.arrays, strict=True))
        }
        operation = direction.operation(geometry, **tensors)
        inputs = dict(zip(direction.ports[:2], (array.astype(np.float64) for array in self.arrays), strict=False))
        (self.product,) = operation.reference(inputs).values()

    @property
    def result(self) -> NDArray[Any]:
        return self.memory.get(self.addresses[2])

    @property
    def problem(self) -> tuple[int, ...]:
        """The descriptors as queries take them."""
        a, b, c = self.descriptors
        return (self.handle, a, b, self.convolution, c)

    def run(self, algorithm: int, alpha: float = 1.0, beta: float = 0.0, workspace: tuple[int, int] = (0, 0)) -> Status:
        (a, b, c), (pa, pb, pc) = self.descriptors, self.addresses
        kind = self.arrays[2].dtype
        scales = ctypes.byref(scale(alpha, kind)), ctypes.byref(scale(beta, kind))
        return self.caller.status(
            f"cudnnConvolution{self.direction.name}", self.handle, scales[0], a, pa, b, pb, self.convolution,
            algorithm, *workspace, scales[1], c, pc,
        )  # fmt: skip

    def workspace_bytes(self, algorithm: int) -> int:
        name = f"cudnnGetConvolution{self.direction.name}WorkspaceSize"
        return int(self.caller.output(name, *self.problem, algorithm, kind=ctypes.c_size_t))

    def listed(self, name: str, requested: int, *more: Any) -> list[tuple[Any, ...]]:
        """The structures that a function of algorithms writes."""
        room = ctypes.create_string_buffer(b"\xaa" * (PERFORMANCE.size * requested + 8))
        count = ctypes.c_int(-1)
        self.caller.call(name, *self.problem, requested, ctypes.byref(count), room, *more)
        assert 1 <= count.value <= requested
        assert room.raw[PERFORMANCE.size * count.value :].strip(b"\xaa\0") == b""
        return [PERFORMANCE.unpack_from(room.raw, PERFORMANCE.size * index) for index in range(count.value)]


def _filter(caller: Caller, array: NDArray[Any]) -> int:
    descriptor = int(caller.output("cudnnCreateFilterDescriptor"))
    caller.call("cudnnSetFilter4dDescriptor", descriptor, DTYPES[array.dtype], 0, *array.shape)
    return descriptor


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


DIRECTIONS = pytest.mark.parametrize("direction", [FORWARD, BACKWARD_DATA, BACKWARD_FILTER], ids=lambda d: d.name)


@DIRECTIONS
@pytest.mark.parametrize(("dtype", "groups"), [(np.float32, 1), (np.float16, 2), (np.float64, 1)])
def test_a_convolution(caller: Caller, device: Runtime, direction: Direction, dtype: Any, groups: int) -> None:
    case = Case(caller, device, direction, dtype=dtype, groups=groups)
    algorithm = int(direction.order[0])
    size = case.workspace_bytes(algorithm)
    room = case.memory.put(np.zeros(68 + size, np.uint8)) + 68
    assert case.run(algorithm, workspace=(room, size)) is Status.SUCCESS, caller.last_error()
    np.testing.assert_array_equal(case.result, case.product.astype(dtype))
    before = case.result.astype(np.float64)
    assert case.run(algorithm, 2.0, -1.0, (room, 1 << 20)) is Status.SUCCESS, caller.last_error()
    np.testing.assert_array_equal(case.result, (2 * case.product - before).astype(dtype))
    if size:
        assert case.run(algorithm, workspace=(room, size - 1)) is Status.BAD_PARAM_SIZE_INSUFFICIENT


@DIRECTIONS
def test_algorithms(caller: Caller, device: Runtime, direction: Direction) -> None:
    """Each listed algorithm gives the exact result in the workspace that it says; the others refuse."""
    case = Case(caller, device, direction)
    count = caller.output(f"cudnnGetConvolution{direction.name}AlgorithmMaxCount", case.handle, kind=ctypes.c_int)
    assert count == len(direction.algorithms) - 1
    rows = case.listed(f"cudnnGetConvolution{direction.name}Algorithm_v7", count)
    listed = [row[0] for row in rows]
    assert len({*listed}) == len(listed) > 1
    assert {*listed} < {int(number) for number in direction.order}
    for algorithm, status, milliseconds, memory, determinism, math_type, *reserved in rows:
        assert (status, milliseconds, determinism, reserved) == (0, -1.0, 1, [0, 0, 0])
        assert math_type in (MathType.TENSOR_OP_MATH, MathType.DEFAULT_MATH)
        caller.call("cudnnSetConvolutionMathType", case.convolution, math_type)
        assert memory == case.workspace_bytes(algorithm)
        room = case.memory.put(np.zeros(max(memory, 1), np.uint8))
        case.memory._buffers[case.addresses[2]][0].fill_bytes(0x7F)
        assert case.run(algorithm, workspace=(room, memory)) is Status.SUCCESS, caller.last_error()
        np.testing.assert_array_equal(case.result, case.product)
        if memory:
            assert case.run(algorithm, workspace=(room, memory - 1)) is Status.BAD_PARAM_SIZE_INSUFFICIENT
    for number in direction.order[:2]:
        assert case.run(int(number)).category in (Status.SUCCESS, Status.BAD_PARAM)
    for number in {*direction.order[2:]} - {direction.check(found, "") for found in listed}:
        assert case.run(int(number)) is Status.NOT_SUPPORTED
    assert case.run(count) is Status.BAD_PARAM
    assert case.run(99) is Status.BAD_PARAM
    caller.call("cudnnSetConvolutionMathType", case.convolution, MathType.FMA_MATH)
    precise = case.listed(f"cudnnGetConvolution{direction.name}Algorithm_v7", count)
    assert {row[5] for row in precise} == {MathType.FMA_MATH}


@DIRECTIONS
def test_winograd_is_an_algorithm(caller: Caller, device: Runtime, direction: Direction) -> None:
    """Winograd is listed with its workspace, with and without rounding to TF32, and not first for a small layer."""
    mode = ConvolutionMode.CROSS_CORRELATION
    case = Case(caller, device, direction, strides=(1, 1), dilations=(1, 1), taps=(3, 3), mode=mode)
    nonfused, *second = direction.methods[Method.WINOGRAD]
    (other,) = second or direction.methods[Method.WINOGRAD_FUSED]
    for math_type, error in ((MathType.DEFAULT_MATH, 0.05), (MathType.FMA_MATH, 1e-5)):
        caller.call("cudnnSetConvolutionMathType", case.convolution, math_type)
        rows = case.listed(f"cudnnGetConvolution{direction.name}Algorithm_v7", len(direction.order))
        listed = [row[0] for row in rows]
        assert listed[0] not in (nonfused, other)
        for number in (nonfused, other):
            (memory,) = {row[3] for row in rows if row[0] == number}
            room = case.memory.put(np.zeros(memory, np.uint8))
            assert case.run(int(number), workspace=(room, memory)) is Status.SUCCESS, caller.last_error()
            np.testing.assert_allclose(case.result, case.product, rtol=error, atol=error * np.abs(case.product).max())
            assert case.run(int(number), workspace=(room, memory - 1)) is Status.BAD_PARAM_SIZE_INSUFFICIENT


def test_methods_of_engines() -> None:
    methods = {engine.name: method_of(engine) for engine in ENGINES if engine.name.startswith(("conv", "matmul"))}
    expected = {
        "conv_direct": Method.DIRECT,
        "conv_depthwise": Method.DIRECT,
        "conv_implicit_gemm_mma": Method.IMPLICIT_PRODUCT,
        "conv_wgrad_wgmma": Method.IMPLICIT_PRODUCT,
        "conv_winograd_4x4_fp32": Method.WINOGRAD,
        "conv_winograd_fused_2x2": Method.WINOGRAD_FUSED,
        "conv_stem": Method.PRODUCT,
        "matmul_wgmma": Method.PRODUCT,
    }
    assert expected.items() <= methods.items()


def test_an_algorithm_is_an_engine_of_its_method() -> None:
    """The best one, that with the least workspace, the next best."""
    for direction, word in ((FORWARD, "fprop"), (BACKWARD_DATA, "dgrad"), (BACKWARD_FILTER, "wgrad")):
        graph = parse_case(f"conv n=2 c=64 hw=14x14 k=64 rs=3x3 pad=1 dir={word} dtype=fp16").graph()
        candidates = rank(graph, SM_90A, HeurMode.A, ENGINES).candidates
        places = direction.places(candidates)
        assert [*places.values()] == sorted({*places.values()})
        for algorithms in direction.methods.values():
            shared = {other for other, same in direction.methods.items() if same == algorithms}
            own = [place for place, found in enumerate(candidates) if method_of(found.engine) in shared]
            assert places.get(algorithms[0]) == (own[0] if own else None)
            if len(own) > 1 < len(algorithms):
                least = min(candidates[place].workspace_bytes for place in own[1:])
                assert candidates[places[algorithms[1]]].workspace_bytes == least


@DIRECTIONS
@pytest.mark.parametrize("groups", [1, 2])
def test_the_told_workspace_is_enough_for_any_scales(
    caller: Caller, device: Runtime, direction: Direction, groups: int
) -> None:
    """Channels of images lie inside. alpha, beta and addresses of less alignment may take other plans than the told."""
    case = Case(caller, device, direction, groups=groups)
    images = ["w" not in port for port in direction.ports]
    orders = [(0, 2, 3, 1) if is_image else (0, 1, 2, 3) for is_image in images]
    for descriptor, array, is_image in zip(case.descriptors, case.arrays, images, strict=True):
        if is_image:
            caller.call("cudnnSetTensor4dDescriptor", descriptor, 1, DataType.FLOAT, *array.shape)
    rows = case.listed(f"cudnnGetConvolution{direction.name}Algorithm_v7", len(direction.order))
    old, expected = case.arrays[2], 2 * case.product - case.arrays[2]
    for skipped, row in ((skipped, row) for skipped in (0, 1, 2) for row in rows):
        flat = [array.transpose(order).ravel() for array, order in zip(case.arrays, orders, strict=True)]
        begins = [case.memory.put(np.concatenate([np.zeros(skipped, np.float32), values])) for values in flat]
        case.addresses = [begin + skipped * old.itemsize for begin in begins]
        room = case.memory.put(np.zeros(max(row[3], 1), np.uint8))
        assert case.run(row[0], 2.0, -1.0, (room, row[3])) is Status.SUCCESS, caller.last_error()
        found = case.memory.get(begins[2])[skipped:]
        np.testing.assert_array_equal(found, expected.transpose(orders[2]).ravel())


@DIRECTIONS
def test_other_scales_need_no_other_plan(
    caller: Caller, device: Runtime, binding: Binding, direction: Direction
) -> None:
    case = Case(caller, device, direction)
    expected, workspace = case.arrays[2].astype(np.float64), (case.memory.put(np.zeros(1 << 20, np.uint8)), 1 << 20)
    for alpha, beta in ((2.0, 0.0), (-3.0, 0.0), (1.0, 1.0), (2.0, -0.5), (-1.0, 4.0)):
        assert case.run(int(direction.order[0]), alpha, beta, workspace) is Status.SUCCESS, caller.last_error()
        expected = alpha * case.product + beta * expected
        np.testing.assert_array_equal(case.result, expected)
    (known,) = binding.state.graphs._planned.values()
    assert len(known) <= 3  # with beta and without, and the problem that queries refer to


@DIRECTIONS
def test_finding_algorithms(caller: Caller, device: Runtime, direction: Direction) -> None:
    case = Case(caller, device, direction)
    name, count = f"cudnnFindConvolution{direction.name}Algorithm", len(direction.order)
    heuristic = case.listed(f"cudnnGetConvolution{direction.name}Algorithm_v7", count)
    rows = case.listed(name, count)
    assert sorted(row[0] for row in rows) == sorted(row[0] for row in heuristic)
    times = [row[2] for row in rows if row[1] == 0]
    assert times == sorted(times)
    assert min(times) >= 0
    assert len(case.listed(name, 1)) == 1
    (a, b, c), (pa, pb, pc) = case.descriptors, case.addresses
    room, found = ctypes.create_string_buffer(PERFORMANCE.size * count), ctypes.c_int()
    caller.call(f"{name}Ex", case.handle, a, pa, b, pb, case.convolution, c, pc, count, ctypes.byref(found), room, 0, 0)
    for row in (PERFORMANCE.unpack_from(room.raw, PERFORMANCE.size * index) for index in range(found.value)):
        assert (row[1], row[2] >= 0) == ((0, True) if row[3] == 0 else (Status.BAD_PARAM_SIZE_INSUFFICIENT, False))
    np.testing.assert_array_equal(case.result, case.product)


def test_wrong_groups_and_shapes(caller: Caller, device: Runtime) -> None:
    case = Case(caller, device, FORWARD)
    caller.call("cudnnSetConvolutionGroupCount", case.convolution, 2)
    assert case.run(1) is Status.BAD_PARAM
    assert "channels: expected 2 * 2 groups, got 2" in caller.last_error()
    caller.call("cudnnSetConvolutionGroupCount", case.convolution, 1)
    caller.call("cudnnSetTensor4dDescriptor", case.descriptors[2], 0, DataType.FLOAT, 2, 3, 1, 1)
    assert case.run(1) is Status.BAD_PARAM_SHAPE_MISMATCH
    case.addresses[0] += 2
    assert case.run(1) is Status.BAD_PARAM_MISALIGNED_POINTER


@pytest.mark.parametrize(("mode", "alpha2"), [(ActivationMode.RELU, 2.0), (ActivationMode.IDENTITY, 0.0)])
def test_bias_and_activation(caller: Caller, device: Runtime, mode: ActivationMode, alpha2: float) -> None:
    case = Case(caller, device, FORWARD)
    activation = caller.output("cudnnCreateActivationDescriptor")
    caller.call("cudnnSetActivationDescriptor", activation, mode, 0, 0.0)
    z = np.random.default_rng().integers(-3, 4, case.product.shape).astype(np.float32)
    bias = np.random.default_rng().integers(-9, 9, (1, z.shape[1], 1, 1)).astype(np.float32)
    (x_desc, w_desc, y_desc), (x, w, y) = case.descriptors, case.addresses
    given_z = (y_desc, case.memory.put(z)) if alpha2 else (0, 0)
    given_bias = (tensor_descriptor(caller, bias), case.memory.put(bias))
    scales = [ctypes.byref(scale(value)) for value in (3.0, alpha2)]
    arguments = [
        case.handle, scales[0], x_desc, x, w_desc, w, case.convolution, 1, 0, 0, scales[1], *given_z, *given_bias,
        activation, y_desc, y,
    ]  # fmt: skip
    caller.call("cudnnConvolutionBiasActivationForward", *arguments)
    expected = 3 * case.product + alpha2 * z + bias
    np.testing.assert_array_equal(case.result, np.maximum(expected, 0) if mode is ActivationMode.RELU else expected)
    caller.call("cudnnSetActivationDescriptor", activation, ActivationMode.TANH, 0, 0.0)
    assert caller.status("cudnnConvolutionBiasActivationForward", *arguments) is Status.NOT_SUPPORTED
    arguments[7] = 8
    assert caller.status("cudnnConvolutionBiasActivationForward", *arguments) is Status.BAD_PARAM

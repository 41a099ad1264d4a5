"""Activations, pooling, softmax, element-wise calls and reductions, with alpha and beta, against NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.capi.classic_enums import IndicesType, OpTensorOp, PoolingMode, SoftmaxAlgorithm, SoftmaxMode
from lowdnn.capi.graphs import MAX_STREAMS
from lowdnn.capi.loading import Binding
from lowdnn.enums import ActivationMode, DataType, ReduceTensorOp
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import Status
from tests.support.capi import Caller, Memory, scale, tensor_descriptor

Array = NDArray[Any]
#: alpha and beta: those that most callers have, and what takes another graph. Each mode of a call takes one of them.
SCALES = ((1.0, 0.0), (-2.0, 0.0), (0.5, 3.0))
SHAPE = (2, 3, 4, 5)


class Calls:
    """Calls of one handle whose operands are arrays: each array becomes a descriptor and an address."""

    def __init__(self, caller: Caller, device: Runtime) -> None:
        self.caller, self.memory = caller, Memory(device)
        self.handle = caller.handle()

    def status(self, name: str, *arguments: Any) -> Status:
        """Arrays stand for (descriptor, address), floats for pointers to them."""
        return self._status(name, arguments)[0]

    def result(self, name: str, *arguments: Any) -> Array:
        """The last array after the call."""
        status, addresses = self._status(name, arguments)
        assert status is Status.SUCCESS, self.caller.last_error()
        return self.memory.get(addresses[-1])

    def _status(self, name: str, arguments: tuple[Any, ...]) -> tuple[Status, list[int]]:
        passed: list[Any] = [self.handle]
        addresses: list[int] = []
        kind = next(argument.dtype for argument in reversed(arguments) if isinstance(argument, np.ndarray))
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                addresses.append(self.memory.put(argument))
                passed += [tensor_descriptor(self.caller, argument), addresses[-1]]
            else:
                passed.append(ctypes.byref(scale(argument, kind)) if isinstance(argument, float) else argument)
        return self.caller.status(name, *passed), addresses


@pytest.fixture
def calls(caller: Caller, device: Runtime) -> Calls:
    return Calls(caller, device)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng().standard_normal(shape).astype(dtype)


def integers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng().integers(-4, 5, shape).astype(dtype)


def close(found: Array, expected: Array) -> None:
    tolerance = {2: 4e-3, 4: 2e-5, 8: 1e-12}[found.dtype.itemsize]
    np.testing.assert_allclose(found, expected.astype(found.dtype), rtol=tolerance, atol=tolerance)


COEFFICIENT, SWISH_BETA = 0.75, 1.5


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


#: y(x) and dy/dx(x) of each mode.
ACTIVATIONS: dict[ActivationMode, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    ActivationMode.SIGMOID: (sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x))),
    ActivationMode.RELU: (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    ActivationMode.TANH: (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    ActivationMode.CLIPPED_RELU: (lambda x: np.clip(x, 0, COEFFICIENT), lambda x: ((x > 0) & (x < COEFFICIENT)) * 1.0),
    ActivationMode.ELU: (
        lambda x: np.where(x > 0, x, COEFFICIENT * np.expm1(x)),
        lambda x: np.where(x > 0, 1, COEFFICIENT * np.exp(x)),
    ),
    ActivationMode.IDENTITY: (lambda x: x, np.ones_like),
    ActivationMode.SWISH: (
        lambda x: x * sigmoid(SWISH_BETA * x),
        lambda x: sigmoid(SWISH_BETA * x) * (1 + SWISH_BETA * x * (1 - sigmoid(SWISH_BETA * x))),
    ),
}


@pytest.mark.parametrize("mode", ActivationMode, ids=lambda mode: mode.name)
def test_activations(calls: Calls, mode: ActivationMode) -> None:
    alpha, beta = SCALES[mode % 3]
    dtype = np.float64 if alpha == -2 else np.float32
    descriptor = calls.caller.output("cudnnCreateActivationDescriptor")
    calls.caller.call("cudnnSetActivationDescriptorSwishBeta", descriptor, SWISH_BETA)
    calls.caller.call("cudnnSetActivationDescriptor", descriptor, mode, 1, COEFFICIENT)
    x, dy, old = (normal(*SHAPE, dtype=dtype) for _ in range(3))
    function, derivative = ACTIVATIONS[mode]
    y = function(x.astype(np.float64))
    close(calls.result("cudnnActivationForward", descriptor, alpha, x, beta, old), alpha * y + beta * old)
    found = calls.result("cudnnActivationBackward", descriptor, alpha, y.astype(dtype), dy, x, beta, old)
    close(found, alpha * dy * derivative(x.astype(np.float64)) + beta * old)


def test_a_gradient_after_an_activation_in_place(calls: Calls) -> None:
    """x is y then, which is enough for these."""
    descriptor = calls.caller.output("cudnnCreateActivationDescriptor")
    x, dy = normal(*SHAPE), normal(*SHAPE)
    for mode in (ActivationMode.SIGMOID, ActivationMode.TANH, ActivationMode.RELU):
        calls.caller.call("cudnnSetActivationDescriptor", descriptor, mode, 0, 0.0)
        function, derivative = ACTIVATIONS[mode]
        y = function(x)
        close(
            calls.result("cudnnActivationBackward", descriptor, 1.0, y, dy, y, 0.0, normal(*SHAPE)), dy * derivative(x)
        )


@pytest.mark.parametrize("mode", PoolingMode, ids=lambda mode: mode.name)
def test_pooling(calls: Calls, mode: PoolingMode) -> None:
    alpha, beta = SCALES[(mode + 2) % 3]
    descriptor = calls.caller.output("cudnnCreatePoolingDescriptor")
    calls.caller.call("cudnnSetPooling2dDescriptor", descriptor, mode, 1, 3, 2, 1, 0, 2, 1)
    x = np.random.default_rng().permutation(2 * 3 * 5 * 4).reshape(2, 3, 5, 4).astype(np.float32)
    is_max = mode in (PoolingMode.MAX, PoolingMode.MAX_DETERMINISTIC)
    y, old = np.zeros((2, 3, 3, 3)), normal(2, 3, 3, 3)
    dy, dx = normal(2, 3, 3, 3), np.zeros(x.shape)
    for n, c, i, j in np.ndindex(*y.shape):
        rows, columns = slice(max(2 * i - 1, 0), 2 * i + 2), slice(j, j + 2)
        window = x[n, c, rows, columns]
        divisor = 6 if mode is PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING else window.size
        y[n, c, i, j] = window.max() if is_max else window.sum() / divisor
        dx[n, c, rows, columns] += dy[n, c, i, j] * (window == window.max() if is_max else 1 / divisor)
    close(calls.result("cudnnPoolingForward", descriptor, alpha, x, beta, old), alpha * y + beta * old)
    old = normal(*x.shape)
    found = calls.result("cudnnPoolingBackward", descriptor, alpha, y.astype(np.float32), dy, x, beta, old)
    close(found, alpha * dx + beta * old)
    assert calls.status("cudnnPoolingForward", descriptor, 1.0, x, 0.0, x) is Status.BAD_PARAM_SHAPE_MISMATCH


@pytest.mark.parametrize("mode", SoftmaxMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("algorithm", SoftmaxAlgorithm, ids=lambda algorithm: algorithm.name)
def test_softmax(calls: Calls, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> None:
    alpha, beta = SCALES[(algorithm + mode) % 3]
    x, dy, old = (normal(*SHAPE) for _ in range(3))
    axes = (1,) if mode is SoftmaxMode.CHANNEL else (1, 2, 3)
    powers = np.exp(x.astype(np.float64))
    y = powers / powers.sum(axes, keepdims=True)
    is_log = algorithm is SoftmaxAlgorithm.LOG
    result = np.log(y) if is_log else y
    found = calls.result("cudnnSoftmaxForward", int(algorithm), int(mode), alpha, x, beta, old)
    close(found, alpha * result + beta * old)
    gradient = dy - y * dy.sum(axes, keepdims=True) if is_log else y * (dy - (y * dy).sum(axes, keepdims=True))
    stored = result.astype(np.float32)
    found = calls.result("cudnnSoftmaxBackward", int(algorithm), int(mode), alpha, stored, dy, beta, old)
    close(found, alpha * gradient + beta * old)


@pytest.mark.parametrize(("alpha", "beta"), SCALES[::2])
def test_local_response_normalisation(calls: Calls, alpha: float, beta: float) -> None:
    descriptor = calls.caller.output("cudnnCreateLRNDescriptor")
    n, slope, power, k = 3, 0.9, 0.75, 1.5
    calls.caller.call("cudnnSetLRNDescriptor", descriptor, n, slope, power, k)
    x, dy, old = (normal(2, 5, 3, 2) for _ in range(3))
    near = np.array([[abs(a - b) <= 1 for b in range(5)] for a in range(5)], float)
    s = k + slope / n * np.einsum("ab,nbhw->nahw", near, x.astype(np.float64) ** 2)
    y = x * s**-power
    close(calls.result("cudnnLRNCrossChannelForward", descriptor, 0, alpha, x, beta, old), alpha * y + beta * old)
    shares = np.einsum("ab,nbhw->nahw", near, dy * x * s ** (-power - 1))
    dx = dy * s**-power - 2 * slope * power / n * x * shares
    arguments = (y.astype(np.float32), dy, x, beta, old)
    close(calls.result("cudnnLRNCrossChannelBackward", descriptor, 0, alpha, *arguments), alpha * dx + beta * old)


@pytest.mark.parametrize(("alpha", "beta"), SCALES[::2])
def test_divisive_normalisation(calls: Calls, alpha: float, beta: float) -> None:
    """Calls with means, then without; x describes the means, dy and the memory that cuDNN would work in, too."""
    descriptor = calls.caller.output("cudnnCreateLRNDescriptor")
    calls.caller.call("cudnnSetLRNDescriptor", descriptor, 3, 0.9, 0.75, 1.5)
    x, dy, means, old, old_means = (normal(2, 3, 4, 5) for _ in range(5))
    tensor = Tensor(1, DataType.FLOAT, x.shape, (60, 20, 5, 1), 16)
    dmeans, temporary = calls.memory.put(old_means), calls.memory.put(x)
    parameters = {"lrn_n": 3, "lrn_alpha": 0.9, "lrn_beta": 0.75, "lrn_k": 1.5}
    values = {"x": x.astype(float), "dy": dy.astype(float), "means": means.astype(float)}
    forward = DivisiveNormalizationForward(tensor, tensor, tensor, **parameters).reference(values)
    ports = dict.fromkeys(("x", "dy", "dx", "means", "dmeans"), tensor)
    backward = DivisiveNormalizationBackward(**ports, **parameters).reference(values)
    given, name = calls.memory.put(means), "cudnnDivisiveNormalizationForward"
    found = calls.result(name, descriptor, 0, alpha, x, given, temporary, temporary, beta, old)
    close(found, alpha * forward["y"] + beta * old)
    assert calls.status(name, descriptor, 0, alpha, x, given, 0, temporary, beta, old) is Status.BAD_PARAM_NULL_POINTER
    gradient, name = calls.memory.put(dy), "cudnnDivisiveNormalizationBackward"
    target, address = tensor_descriptor(calls.caller, old), calls.memory.put(old)
    scales = [ctypes.byref(scale(value)) for value in (alpha, beta)]
    source = (tensor_descriptor(calls.caller, x), calls.memory.put(x))
    arguments = (gradient, temporary, temporary, scales[1], target, address)
    calls.caller.call(name, calls.handle, descriptor, 0, scales[0], *source, given, *arguments, dmeans)
    close(calls.memory.get(address), alpha * backward["dx"] + beta * old)
    close(calls.memory.get(dmeans), alpha * backward["dmeans"] + beta * old_means)
    calls.caller.call(name, calls.handle, descriptor, 0, scales[0], *source, 0, *arguments, 0)


@pytest.mark.parametrize("operation", OpTensorOp, ids=lambda operation: operation.name)
def test_op_tensor(calls: Calls, operation: OpTensorOp) -> None:
    beta = (0.0, 2.0)[operation % 2]
    descriptor = calls.caller.output("cudnnCreateOpTensorDescriptor")
    calls.caller.call("cudnnSetOpTensorDescriptor", descriptor, operation, DataType.FLOAT, 0)
    a, b, old = integers(*SHAPE) + 4, integers(1, 3, 1, 1), integers(*SHAPE)
    functions: dict[OpTensorOp, Callable[[Array, Array], Array]] = {
        OpTensorOp.ADD: np.add,
        OpTensorOp.MUL: np.multiply,
        OpTensorOp.MIN: np.minimum,
        OpTensorOp.MAX: np.maximum,
        OpTensorOp.SQRT: lambda a, _: np.sqrt(a),
        OpTensorOp.NOT: lambda a, _: 1 - a,
    }
    expected = functions[operation](2.0 * a, -3.0 * b) + beta * old
    close(calls.result("cudnnOpTensor", descriptor, 2.0, a, -3.0, b, beta, old), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_copies(calls: Calls, dtype: Any) -> None:
    bias, x, y = integers(1, 3, 1, 1, dtype=dtype), integers(*SHAPE, dtype=dtype), integers(*SHAPE, dtype=dtype)
    np.testing.assert_array_equal(calls.result("cudnnAddTensor", 2.0, bias, 3.0, y), 2 * bias + 3 * y)
    np.testing.assert_array_equal(calls.result("cudnnTransformTensor", 2.0, x, -1.0, y), 2 * x - y)
    np.testing.assert_array_equal(calls.result("cudnnTransformTensor", 1.0, x, 0.0, y), x)
    np.testing.assert_array_equal(calls.result("cudnnScaleTensor", y, -0.5), -0.5 * y)
    value = np.array([-2.5], dtype)
    np.testing.assert_array_equal(calls.result("cudnnSetTensor", y, value.ctypes.data), np.full(SHAPE, -2.5))
    assert calls.status("cudnnAddTensor", 1.0, x[:1, :2], 1.0, y) is Status.BAD_PARAM_SHAPE_MISMATCH
    assert calls.status("cudnnSetTensor", y, None) is Status.BAD_PARAM_NULL_POINTER


def test_a_change_of_layout_and_type(caller: Caller, calls: Calls) -> None:
    x, y = integers(*SHAPE), np.zeros((2, 4, 5, 3), np.float16)
    target, address = caller.output("cudnnCreateTensorDescriptor"), calls.memory.put(y)
    caller.call("cudnnSetTensor4dDescriptor", target, 1, DataType.HALF, *SHAPE)
    one, zero = scale(1.0), scale(0.0)
    source = (tensor_descriptor(caller, x), calls.memory.put(x))
    caller.call("cudnnTransformTensor", calls.handle, ctypes.byref(one), *source, ctypes.byref(zero), target, address)
    np.testing.assert_array_equal(calls.memory.get(address), x.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("operation", ReduceTensorOp, ids=lambda operation: operation.name)
def test_reductions(calls: Calls, operation: ReduceTensorOp) -> None:
    alpha, beta = SCALES[(operation + 1) % 3]
    descriptor = calls.caller.output("cudnnCreateReduceTensorDescriptor")
    calls.caller.call("cudnnSetReduceTensorDescriptor", descriptor, operation, DataType.FLOAT, 0, 0, 0)
    a, old, axes = integers(2, 3, 2, 2), integers(1, 3, 1, 1), (0, 2, 3)
    functions: dict[ReduceTensorOp, Callable[[Array], Array]] = {
        ReduceTensorOp.ADD: lambda a: a.sum(axes, keepdims=True),
        ReduceTensorOp.MUL: lambda a: a.prod(axes, keepdims=True),
        ReduceTensorOp.MIN: lambda a: a.min(axes, keepdims=True),
        ReduceTensorOp.MAX: lambda a: a.max(axes, keepdims=True),
        ReduceTensorOp.AMAX: lambda a: abs(a).max(axes, keepdims=True),
        ReduceTensorOp.AVG: lambda a: a.mean(axes, keepdims=True),
        ReduceTensorOp.NORM1: lambda a: abs(a).sum(axes, keepdims=True),
        ReduceTensorOp.NORM2: lambda a: np.sqrt((a * a).sum(axes, keepdims=True)),
        ReduceTensorOp.MUL_NO_ZEROS: lambda a: np.where(a == 0, 1, a).prod(axes, keepdims=True),
    }
    sizes = (calls.handle, descriptor, tensor_descriptor(calls.caller, a), tensor_descriptor(calls.caller, old))
    size = calls.caller.output("cudnnGetReductionWorkspaceSize", *sizes, kind=ctypes.c_size_t)
    assert calls.caller.output("cudnnGetReductionIndicesSize", *sizes, kind=ctypes.c_size_t) == 0
    room = calls.memory.put(np.zeros(max(size, 1), np.uint8))
    found = calls.result("cudnnReduceTensor", descriptor, 0, 0, room, size, alpha, a, beta, old)
    close(found, alpha * functions[operation](a.astype(np.float64)) + beta * old)
    if operation not in (ReduceTensorOp.MIN, ReduceTensorOp.MAX):
        calls.caller.call("cudnnSetReduceTensorDescriptor", descriptor, operation, DataType.FLOAT, 0, 1, 0)
        assert calls.status("cudnnReduceTensor", descriptor, 0, 0, 0, 0, alpha, a, beta, old) is Status.BAD_PARAM


@pytest.mark.parametrize("kind", IndicesType, ids=lambda kind: kind.name)
@pytest.mark.parametrize("operation", [ReduceTensorOp.MIN, ReduceTensorOp.MAX], ids=lambda operation: operation.name)
def test_indices_of_extremes(calls: Calls, operation: ReduceTensorOp, kind: IndicesType) -> None:
    """The first extreme counts among equal ones; a NaN is the extreme where it propagates, and otherwise none."""
    nan, dtype = kind % 2, (np.uint32, np.uint64, np.uint16, np.uint8)[kind]
    descriptor = calls.caller.output("cudnnCreateReduceTensorDescriptor")
    calls.caller.call("cudnnSetReduceTensorDescriptor", descriptor, operation, DataType.FLOAT, nan, 1, kind)
    shape, old = ((4, 3, 5, 40) if kind is IndicesType.BITS_16 else (2, 3, 5, 4)), integers(1, 3, 5, 1)
    a = integers(*shape)
    a[1, 1, 2, 3], a[0, 2, 4, :2] = np.nan, np.nan
    sizes = (calls.handle, descriptor, tensor_descriptor(calls.caller, a), tensor_descriptor(calls.caller, old))
    needed = calls.caller.output("cudnnGetReductionIndicesSize", *sizes, kind=ctypes.c_size_t)
    room, size = calls.memory.put(np.full((1, 3, 5, 1), 77, dtype)), (1 << 20) * (nan + 1)
    assert needed == 15 * np.dtype(dtype).itemsize
    workspace = calls.memory.put(np.zeros(size, np.uint8))
    found = calls.result("cudnnReduceTensor", descriptor, room, needed, workspace, size, 2.0, a, -1.0, old)
    flat = a.transpose(1, 2, 0, 3).reshape(3, 5, -1)
    is_max = operation is ReduceTensorOp.MAX
    extremes, places = (np.max, np.argmax) if is_max else (np.min, np.argmin)
    usable = flat if nan else np.where(np.isnan(flat), -np.inf if is_max else np.inf, flat)
    close(found, 2 * extremes(usable, -1).reshape(old.shape) - old)
    np.testing.assert_array_equal(calls.memory.get(room).reshape(3, 5), places(usable, -1))
    status = calls.status("cudnnReduceTensor", descriptor, room, needed - 1, workspace, size, 2.0, a, -1.0, old)
    assert status is Status.BAD_PARAM_SIZE_INSUFFICIENT
    too_many = np.zeros((1, 1, 8, 40), np.float32)
    if kind is IndicesType.BITS_8:
        arguments = (descriptor, room, 1, workspace, size, 1.0, too_many, 0.0, integers(1, 1, 1, 1))
        assert calls.status("cudnnReduceTensor", *arguments) is Status.NOT_SUPPORTED


@pytest.mark.parametrize(("alpha", "beta"), SCALES)
def test_gradient_of_a_bias(calls: Calls, alpha: float, beta: float) -> None:
    dy, old = integers(*SHAPE), integers(1, 3, 1, 1)
    found = calls.result("cudnnConvolutionBackwardBias", alpha, dy, beta, old)
    np.testing.assert_array_equal(found, alpha * dy.sum((0, 2, 3), keepdims=True) + beta * old)
    assert calls.status("cudnnConvolutionBackwardBias", 1.0, dy, 0.0, dy) is Status.BAD_PARAM_SHAPE_MISMATCH


def test_a_call_repeats_without_planning_anew(calls: Calls, binding: Binding) -> None:
    x, y = normal(*SHAPE), normal(*SHAPE)
    calls.result("cudnnAddTensor", 1.0, x, 1.0, y)
    (known,) = binding.state.graphs._planned.values()
    before = [*known.values()]
    calls.result("cudnnAddTensor", 1.0, x, 1.0, y)
    assert [*known.values()] == before


def test_other_scales_and_values_need_no_other_plan(calls: Calls, binding: Binding) -> None:
    x, y = integers(1, 3, 1, 1), integers(*SHAPE)
    planned = set()
    for factor in (2.0, -0.5, 3.25):
        np.testing.assert_array_equal(calls.result("cudnnAddTensor", factor, x, -factor, y), factor * (x - y))
        np.testing.assert_array_equal(calls.result("cudnnScaleTensor", y, factor), factor * y)
        value = np.array([factor], np.float32)
        np.testing.assert_array_equal(calls.result("cudnnSetTensor", y, value.ctypes.data), np.full(SHAPE, factor))
        (known,) = binding.state.graphs._planned.values()
        planned.add(len(known))
    assert planned == {3}


def test_memory_of_streams_is_bounded(calls: Calls, binding: Binding, device: Runtime) -> None:
    """A sum whose plan needs a workspace, in ever new streams. They stay open, since a driver gives a closed one's
    handle to the next."""
    caller, memory = calls.caller, calls.memory
    dy, total = integers(2, 3, 64, 64), np.zeros((1, 3, 1, 1), np.float32)
    source, target = ((tensor_descriptor(caller, array), memory.put(array)) for array in (dy, total))
    one = ctypes.byref(scale(1.0))
    device.context.synchronize()
    with ExitStack() as streams:
        for _ in range(2 * MAX_STREAMS):
            stream = streams.enter_context(Stream.create(device.context))
            caller.call("cudnnSetStream", calls.handle, stream.handle)
            caller.call("cudnnConvolutionBackwardBias", calls.handle, one, *source, one, *target)
            stream.synchronize()
    np.testing.assert_array_equal(memory.get(target[1]), 2 * MAX_STREAMS * dy.sum((0, 2, 3), keepdims=True))
    (known,) = binding.state.graphs._workspaces.values()
    assert len(known) == MAX_STREAMS
    assert min(workspace.size_bytes for workspace in known.values()) > 0

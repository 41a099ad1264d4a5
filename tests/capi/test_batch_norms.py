"""Batch normalisation against NumPy: training, inference and gradients, plain and fused, in both modes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.capi.classic_enums import BatchNormMode, BatchNormOps, NormAlgo, NormMode, NormOps
from lowdnn.enums import ActivationMode
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import DTYPES, Caller, Memory, scale, tensor_descriptor

Array = NDArray[Any]
EPSILON, FACTOR = 1e-3, 0.25
SHAPE = (4, 3, 2, 5)


class Case:
    """Random operands on the device, their descriptors, and what NumPy computes from them."""

    def __init__(
        self, caller: Caller, device: Runtime, mode: BatchNormMode, operations: BatchNormOps, dtype: Any = np.float32,
        *, is_nhwc: bool = False,
    ) -> None:  # fmt: skip
        self.is_nhwc, self.caller, self.memory, self.mode, self.operations = (
            is_nhwc,
            caller,
            Memory(device),
            mode,
            operations,
        )
        self.handle = caller.handle()
        self.axes = (0,) if mode is BatchNormMode.PER_ACTIVATION else (0, 2, 3)
        rows = (1, *SHAPE[1:]) if mode is BatchNormMode.PER_ACTIVATION else (1, SHAPE[1], 1, 1)
        draw = np.random.default_rng().standard_normal
        self.x, self.z, self.dy, self.old = (draw(SHAPE).astype(dtype) for _ in range(4))
        self.scale, self.bias, self.mean, self.old_row = (draw(rows).astype(np.float32) for _ in range(4))
        self.variance = np.abs(draw(rows)).astype(np.float32)
        self.descriptor = tensor_descriptor(caller, self.x)
        if is_nhwc:
            caller.call("cudnnSetTensor4dDescriptor", self.descriptor, 1, DTYPES[np.dtype(dtype)], *SHAPE)
        self.parameters = caller.output("cudnnCreateTensorDescriptor")
        caller.call("cudnnDeriveBNTensorDescriptor", self.parameters, self.descriptor, mode)
        self.activation = caller.output("cudnnCreateActivationDescriptor")
        caller.call("cudnnSetActivationDescriptor", self.activation, ActivationMode.RELU, 0, 0.0)

    def put(self, *arrays: Array) -> list[int]:
        """Addresses of copies; those of whole tensors are in the layout of the case."""
        is_moved = [self.is_nhwc and array.shape == SHAPE for array in arrays]
        moved = zip(arrays, is_moved, strict=True)
        return [self.memory.put(array.transpose(0, 2, 3, 1) if move else array) for array, move in moved]

    def get(self, address: int) -> Array:
        found = self.memory.get(address)
        return found.transpose(0, 3, 1, 2) if self.is_nhwc and found.shape[-1] == SHAPE[1] else found

    def workspace(self, direction: str, count: int) -> tuple[int, int]:
        """The caller's memory of a fused call, as large as the library asks for."""
        name = f"cudnnGetBatchNormalization{direction}ExWorkspaceSize"
        arguments = (*[self.descriptor] * count, self.parameters, self.activation)
        size = self.caller.output(name, self.handle, self.mode, self.operations, *arguments, kind=ctypes.c_size_t)
        return self.memory.put(np.zeros(max(size, 1), np.uint8)), size

    def finished(self, normalised: Array) -> Array:
        """The steps behind the normalisation."""
        if self.operations is BatchNormOps.BN_ADD_ACTIVATION:
            normalised = normalised + self.z
        return normalised if self.operations is BatchNormOps.BN else np.maximum(normalised, 0)

    def batch(self) -> tuple[Array, Array]:
        """Mean and variance of the batch."""
        wide = self.x.astype(np.float64)
        return wide.mean(self.axes, keepdims=True), wide.var(self.axes, keepdims=True)


def close(found: Array, expected: Array) -> None:
    tolerance = 5e-3 if found.dtype == np.float16 else 5e-5
    np.testing.assert_allclose(found, expected.astype(found.dtype), rtol=tolerance, atol=tolerance)


def pointers(*values: float) -> list[Any]:
    return [ctypes.byref(scale(value)) for value in values]


CASES = pytest.mark.parametrize(
    ("mode", "operations", "dtype", "is_nhwc"),
    [
        (BatchNormMode.SPATIAL, BatchNormOps.BN, np.float32, False),
        (BatchNormMode.SPATIAL_PERSISTENT, BatchNormOps.BN_ADD_ACTIVATION, np.float16, True),
        (BatchNormMode.PER_ACTIVATION, BatchNormOps.BN_ACTIVATION, np.float32, False),
        (BatchNormMode.PER_ACTIVATION, BatchNormOps.BN_ADD_ACTIVATION, np.float32, True),
    ],
    ids=lambda value: getattr(value, "name", ""),
)


@CASES
def test_training(
    caller: Caller, device: Runtime, mode: BatchNormMode, operations: BatchNormOps, dtype: Any, is_nhwc: bool
) -> None:
    case = Case(caller, device, mode, operations, dtype, is_nhwc=is_nhwc)
    mean, variance = case.batch()
    inv_variance = 1 / np.sqrt(variance + EPSILON)
    normalised = (case.x - mean) * inv_variance * case.scale + case.bias
    count = case.x.size / mean.size
    for alpha, beta in ((1.0, 0.0), (0.5, 2.0)):
        x, z, y, weight, bias = case.put(case.x, case.z, case.old, case.scale, case.bias)
        running = case.put(case.mean, case.variance)
        saved = case.put(*[np.full(mean.shape, np.nan, np.float32)] * 2)
        d = case.descriptor
        caller.call(
            "cudnnBatchNormalizationForwardTrainingEx", case.handle, mode, operations, *pointers(alpha, beta), d, x, d,
            z, d, y, case.parameters, weight, bias, FACTOR, *running, EPSILON, *saved, case.activation,
            *case.workspace("ForwardTraining", 3), 0, 0,
        )  # fmt: skip
        close(case.get(y), alpha * case.finished(normalised) + beta * case.old)
        close(case.get(saved[0]), mean)
        close(case.get(saved[1]), inv_variance)
        close(case.get(running[0]), (1 - FACTOR) * case.mean + FACTOR * mean)
        unbiased = variance * count / (count - 1)
        close(case.get(running[1]), (1 - FACTOR) * case.variance + FACTOR * unbiased)
    plain = ("cudnnBatchNormalizationForwardTraining", case.handle, mode, *pointers(1.0, 0.0), d, x, d, y)
    parameters = (case.parameters, weight, bias, FACTOR)
    caller.call(*plain, *parameters, 0, 0, EPSILON, 0, 0)
    close(case.get(y), normalised)
    assert caller.status(*plain, *parameters, running[0], 0, EPSILON, 0, 0) is Status.BAD_PARAM
    reserve = (case.handle, mode, operations, case.activation, d)
    name = "cudnnGetBatchNormalizationTrainingExReserveSpaceSize"
    assert caller.output(name, *reserve, kind=ctypes.c_size_t) == 0


@CASES
def test_gradients(
    caller: Caller, device: Runtime, mode: BatchNormMode, operations: BatchNormOps, dtype: Any, is_nhwc: bool
) -> None:
    case = Case(caller, device, mode, operations, dtype, is_nhwc=is_nhwc)
    mean, variance = case.batch()
    inv_variance = 1 / np.sqrt(variance + EPSILON)
    xhat = (case.x - mean) * inv_variance
    y = case.finished(xhat * case.scale + case.bias).astype(dtype)
    dy = case.dy.astype(np.float64) * (1 if operations is BatchNormOps.BN else y > 0)
    dscale, dbias = (dy * xhat).sum(case.axes, keepdims=True), dy.sum(case.axes, keepdims=True)
    count = case.x.size / mean.size
    dx = case.scale * inv_variance * (dy - dbias / count - xhat * dscale / count)
    d = case.descriptor
    for scales, is_saved in (
        ((1.0, 0.0, 1.0, 0.0), True),
        ((0.5, 2.0, -1.0, 3.0), True),
        ((1.0, 0.0, 1.0, 0.0), False),
    ):
        operands = case.put(case.x, y, case.dy, np.zeros_like(case.x), case.old)
        weight, bias, found_scale, found_bias, *saved = case.put(
            case.scale, case.bias, case.old_row, case.old_row, mean.astype(np.float32), inv_variance.astype(np.float32)
        )
        if not is_saved:
            saved = [0, 0]
        caller.call(
            "cudnnBatchNormalizationBackwardEx", case.handle, mode, operations, *pointers(*scales),
            *(value for address in operands for value in (d, address)), case.parameters, weight, bias, found_scale,
            found_bias, EPSILON, *saved, case.activation, *case.workspace("Backward", 5), 0, 0,
        )  # fmt: skip
        close(case.get(operands[4]), scales[0] * dx + scales[1] * case.old)
        close(case.get(found_scale), scales[2] * dscale + scales[3] * case.old_row)
        close(case.get(found_bias), scales[2] * dbias + scales[3] * case.old_row)
        if operations is BatchNormOps.BN_ADD_ACTIVATION:
            close(case.get(operands[3]), dy)
    if operations is BatchNormOps.BN:
        x, _, gradient, _, result = operands
        plain = (
            "cudnnBatchNormalizationBackward", case.handle, mode, *pointers(1.0, 0.0, 1.0, 0.0), d, x, d, gradient, d,
            result, case.parameters, weight, found_scale, found_bias, EPSILON,
        )  # fmt: skip
        caller.call(*plain, *saved)
        assert caller.status(*plain, weight, 0) is Status.BAD_PARAM
        close(case.get(result), dx)


@pytest.mark.parametrize("mode", [BatchNormMode.SPATIAL, BatchNormMode.PER_ACTIVATION], ids=lambda mode: mode.name)
def test_inference(caller: Caller, device: Runtime, mode: BatchNormMode) -> None:
    case = Case(caller, device, mode, BatchNormOps.BN, is_nhwc=mode is BatchNormMode.PER_ACTIVATION)
    x, y, *rows = case.put(case.x, case.old, case.scale, case.bias, case.mean, case.variance)
    caller.call(
        "cudnnBatchNormalizationForwardInference", case.handle, mode, *pointers(2.0, -1.0), case.descriptor, x,
        case.descriptor, y, case.parameters, *rows, EPSILON,
    )  # fmt: skip
    expected = (case.x - case.mean) / np.sqrt(case.variance + EPSILON) * case.scale + case.bias
    close(case.get(y), 2 * expected - case.old)
    for parameters, epsilon in ((case.descriptor, EPSILON), (case.parameters, -EPSILON)):
        status = caller.status(
            "cudnnBatchNormalizationForwardInference", case.handle, mode, *pointers(2.0, -1.0), case.descriptor, x,
            case.descriptor, y, parameters, *rows, epsilon,
        )  # fmt: skip
        assert status.category is Status.BAD_PARAM


def test_other_activations_are_refused(caller: Caller, device: Runtime) -> None:
    case = Case(caller, device, BatchNormMode.SPATIAL, BatchNormOps.BN_ACTIVATION)
    caller.call("cudnnSetActivationDescriptor", case.activation, ActivationMode.TANH, 0, 0.0)
    name = "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize"
    arguments = (*[case.descriptor] * 3, case.parameters, case.activation, ctypes.byref(ctypes.c_size_t()))
    assert caller.status(name, case.handle, case.mode, case.operations, *arguments) is Status.NOT_SUPPORTED
    assert "activationDesc.mode: expected RELU, got TANH" in caller.last_error()


@pytest.mark.parametrize("mode", NormMode, ids=lambda mode: mode.name)
def test_normalisation_is_the_same_under_other_names(caller: Caller, device: Runtime, mode: NormMode) -> None:
    batch_mode = BatchNormMode.PER_ACTIVATION if mode is NormMode.PER_ACTIVATION else BatchNormMode.SPATIAL
    case = Case(caller, device, batch_mode, BatchNormOps.BN_ADD_ACTIVATION)
    mean, variance = case.batch()
    inv_variance = 1 / np.sqrt(variance + EPSILON)
    xhat = (case.x - mean) * inv_variance
    rows = [caller.output("cudnnCreateTensorDescriptor") for _ in range(2)]
    caller.call("cudnnDeriveNormTensorDescriptor", *rows, case.descriptor, mode, 1)
    head, d, one = (case.handle, mode, NormOps.NORM_ADD_ACTIVATION, NormAlgo.STANDARD), case.descriptor, (1.0, 0.0)
    x, z, y, dz, dy, dx = case.put(case.x, case.z, case.old, case.old, case.dy, case.old)
    weight, bias, *running = case.put(case.scale, case.bias, case.mean, case.variance)
    mean_at, inv_variance_at, dscale_at, dbias_at = case.put(*[np.zeros_like(case.old_row)] * 4)
    sizes = (*head, *[d] * 3, rows[0], case.activation, rows[1])
    size, bytes_at = ctypes.c_size_t(), case.memory.put(np.zeros(1 << 14, np.uint8))
    caller.call("cudnnGetNormalizationForwardTrainingWorkspaceSize", *sizes, ctypes.byref(size), 1)
    assert size.value <= 1 << 14
    caller.call(
        "cudnnNormalizationForwardTraining", *head, *pointers(*one), d, x, rows[0], weight, bias, FACTOR, rows[1],
        *running, EPSILON, mean_at, inv_variance_at, case.activation, d, z, d, y, bytes_at, size.value, 0, 0, 1,
    )  # fmt: skip
    expected = case.finished(xhat * case.scale + case.bias)
    close(case.get(y), expected)
    close(case.get(running[0]), (1 - FACTOR) * case.mean + FACTOR * mean)
    sizes = (*head, *[d] * 5, rows[0], case.activation, rows[1])
    caller.call("cudnnGetNormalizationBackwardWorkspaceSize", *sizes, ctypes.byref(size), 1)
    caller.call(
        "cudnnNormalizationBackward", *head, *pointers(*one, *one), d, x, d, y, d, dy, d, dz, d, dx, rows[0], weight,
        bias, dscale_at, dbias_at, EPSILON, rows[1], mean_at, inv_variance_at, case.activation, bytes_at, size.value,
        0, 0, 1,
    )  # fmt: skip
    gradient = case.dy.astype(np.float64) * (expected > 0)
    close(case.get(dz), gradient)
    close(case.get(dscale_at), (gradient * xhat).sum(case.axes, keepdims=True))
    close(case.get(dbias_at), gradient.sum(case.axes, keepdims=True))
    given = case.put(case.mean, case.variance)
    inference = (
        "cudnnNormalizationForwardInference", *head, *pointers(*one), d, x, rows[0], weight, bias, rows[1], *given, d,
        z, case.activation, d, y, EPSILON,
    )  # fmt: skip
    caller.call(*inference, 1)
    normalised = (case.x - case.mean) / np.sqrt(case.variance + EPSILON) * case.scale + case.bias
    close(case.get(y), case.finished(normalised))
    assert caller.status(*inference, 2) is Status.NOT_SUPPORTED
    reserve = (*head, case.activation, d, ctypes.byref(size), 1)
    caller.call("cudnnGetNormalizationTrainingReserveSpaceSize", *reserve)
    assert size.value == 0

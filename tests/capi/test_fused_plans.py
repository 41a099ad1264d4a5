"""Fused operations around a convolution and batch normalisation against NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.capi.classic_enums import FusedOps
from lowdnn.capi.classic_enums import FusedOpsConstParamLabel as Const
from lowdnn.capi.classic_enums import FusedOpsVariantParamLabel as Variant
from lowdnn.enums import ActivationMode, DataType
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory, tensor_descriptor

Array = NDArray[Any]
GEOMETRY = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (2, 1), (1, 1))
X, W = (2, 4, 6, 5), (3, 4, 3, 3)
Y = GEOMETRY.output_dims(X, W)
EPSILON, FACTOR = 0.25, 0.5


def integers(*shape: int) -> Array:
    return np.random.default_rng().integers(-3, 4, shape).astype(np.float32)


def reference(operation: type, **arrays: Array) -> Array:
    """The result of a convolution's operation; the port without values is its result."""
    shapes = {"x": X, "w": W, "y": Y, "dy": Y, "dw": W}
    ports = ("x", "w", "y") if operation is ConvolutionForward else ("x", "dy", "dw")
    tensors = {port: Tensor(1, DataType.FLOAT, shapes[port], packed_strides(shapes[port]), 16) for port in ports}
    (result,) = (
        operation(GEOMETRY, **tensors)
        .reference({port: array.astype(np.float64) for port, array in arrays.items()})
        .values()
    )
    return np.asarray(result)


class Plan:
    """A plan of an operation with its packs."""

    def __init__(self, caller: Caller, device: Runtime, operation: FusedOps) -> None:
        self.caller, self.memory, self.handle = caller, Memory(device), caller.handle()
        kinds = ("ConstParamPack", "VariantParamPack", "Plan")
        made = [self._created(kind, operation) for kind in kinds]
        self.constants, self.variants, self.plan = made

    def constant(self, label: Const, value: int | None) -> None:
        """Enums' numbers are passed through a pointer."""
        is_number = label is Const.BN_MODE or label.name.endswith("PLACEHOLDER")
        passed = ctypes.byref(ctypes.c_int(value)) if is_number and value is not None else value or 0
        self.caller.call("cudnnSetFusedOpsConstParamPackAttribute", self.constants, label, passed)

    def variant(self, label: Variant, value: Any) -> None:
        passed = value if isinstance(value, int) else ctypes.byref(value)
        self.caller.call("cudnnSetFusedOpsVariantParamPackAttribute", self.variants, label, passed)

    def operand(self, array: Array, pointer: Variant, placeholder: Const, descriptor: Const) -> int:
        """Puts an array behind a label; returns its address."""
        address = self.memory.put(array)
        self.variant(pointer, address)
        self.constant(placeholder, 1)
        if descriptor in (Const.WDESC, Const.DWDESC):
            described = int(self.caller.output("cudnnCreateFilterDescriptor"))
            self.caller.call("cudnnSetFilter4dDescriptor", described, DataType.FLOAT, 0, *array.shape)
        else:
            described = tensor_descriptor(self.caller, array)
        self.constant(descriptor, described)
        return address

    def convolution(self) -> None:
        descriptor = int(self.caller.output("cudnnCreateConvolutionDescriptor"))
        arguments = (*GEOMETRY.pre_paddings, *GEOMETRY.strides, *GEOMETRY.dilations, 1, DataType.FLOAT)
        self.caller.call("cudnnSetConvolution2dDescriptor", descriptor, *arguments)
        self.constant(Const.CONV_DESC, descriptor)

    def relu(self) -> None:
        descriptor = int(self.caller.output("cudnnCreateActivationDescriptor"))
        self.caller.call("cudnnSetActivationDescriptor", descriptor, ActivationMode.RELU, 0, 0.0)
        self.constant(Const.ACTIVATION_DESC, descriptor)

    def run(self) -> None:
        make = ("cudnnMakeFusedOpsPlan", self.handle, self.plan, self.constants)
        size = self.caller.output(*make, kind=ctypes.c_size_t)
        self.variant(Variant.PTR_WORKSPACE, self.memory.put(np.zeros(max(size, 1), np.uint8)))
        self.variant(Variant.SCALAR_SIZE_T_WORKSPACE_SIZE_IN_BYTES, ctypes.c_size_t(size))
        self.caller.call("cudnnFusedOpsExecute", self.handle, self.plan, self.variants)

    def _created(self, kind: str, operation: FusedOps) -> int:
        value = ctypes.c_void_p()
        self.caller.call(f"cudnnCreateFusedOps{kind}", ctypes.byref(value), operation)
        return int(value.value or 0)


def rows(plan: Plan, channels: int) -> tuple[Array, Array]:
    """eqscale and eqbias of so many channels."""
    scale, bias = integers(1, channels, 1, 1), integers(1, channels, 1, 1)
    plan.operand(scale, Variant.PTR_BN_EQSCALE, Const.BN_EQSCALE_PLACEHOLDER, Const.BN_EQSCALEBIAS_DESC)
    plan.operand(bias, Variant.PTR_BN_EQBIAS, Const.BN_EQBIAS_PLACEHOLDER, Const.BN_EQSCALEBIAS_DESC)
    return scale, bias


@pytest.mark.parametrize("has_prologue", [True, False])
def test_convolution_with_statistics(caller: Caller, device: Runtime, has_prologue: bool) -> None:
    plan = Plan(caller, device, FusedOps.SCALE_BIAS_ACTIVATION_CONV_BNSTATS)
    x, w = integers(*X), integers(*W)
    plan.operand(x, Variant.PTR_XDATA, Const.XDATA_PLACEHOLDER, Const.XDESC)
    plan.operand(w, Variant.PTR_WDATA, Const.WDATA_PLACEHOLDER, Const.WDESC)
    plan.convolution()
    image = x
    if has_prologue:
        scale, bias = rows(plan, X[1])
        plan.relu()
        image = np.maximum(x * scale + bias, 0)
    at = plan.operand(np.zeros(Y, np.float32), Variant.PTR_YDATA, Const.YDATA_PLACEHOLDER, Const.YDESC)
    row, stats = np.zeros((1, Y[1], 1, 1), np.float32), Const.YSTATS_DESC
    total = plan.operand(row, Variant.PTR_YSUM, Const.YSUM_PLACEHOLDER, stats)
    squares = plan.operand(row, Variant.PTR_YSQSUM, Const.YSQSUM_PLACEHOLDER, stats)
    plan.run()
    y = reference(ConvolutionForward, x=image, w=w)
    np.testing.assert_array_equal(plan.memory.get(at), y)
    np.testing.assert_array_equal(plan.memory.get(total), y.sum((0, 2, 3), keepdims=True))
    np.testing.assert_allclose(plan.memory.get(squares), np.square(y).sum((0, 2, 3), keepdims=True), rtol=1e-6)


def test_gradient_of_the_filter(caller: Caller, device: Runtime) -> None:
    plan = Plan(caller, device, FusedOps.SCALE_BIAS_ACTIVATION_WGRAD)
    x, dy = integers(*X), integers(*Y)
    plan.operand(x, Variant.PTR_XDATA, Const.XDATA_PLACEHOLDER, Const.XDESC)
    plan.operand(dy, Variant.PTR_DYDATA, Const.DYDATA_PLACEHOLDER, Const.DYDESC)
    at = plan.operand(np.zeros(W, np.float32), Variant.PTR_DWDATA, Const.DWDATA_PLACEHOLDER, Const.DWDESC)
    plan.convolution()
    scale, bias = rows(plan, X[1])
    plan.relu()
    plan.run()
    expected = reference(ConvolutionBackwardFilter, x=np.maximum(x * scale + bias, 0), dy=dy)
    np.testing.assert_array_equal(plan.memory.get(at), expected)


def test_convolution_with_a_residual(caller: Caller, device: Runtime) -> None:
    plan = Plan(caller, device, FusedOps.CONV_SCALE_BIAS_ADD_ACTIVATION)
    x, w, z = integers(*X), integers(*W), integers(*Y)
    plan.operand(x, Variant.PTR_XDATA, Const.XDATA_PLACEHOLDER, Const.XDESC)
    plan.operand(w, Variant.PTR_WDATA, Const.WDATA_PLACEHOLDER, Const.WDESC)
    plan.operand(z, Variant.PTR_ZDATA, Const.ZDATA_PLACEHOLDER, Const.ZDESC)
    at = plan.operand(np.zeros(Y, np.float32), Variant.PTR_YDATA, Const.YDATA_PLACEHOLDER, Const.YDESC)
    plan.convolution()
    scale, bias = rows(plan, Y[1])
    plan.relu()
    plan.run()
    expected = np.maximum(reference(ConvolutionForward, x=x, w=w) * scale + bias + z, 0)
    np.testing.assert_array_equal(plan.memory.get(at), expected)


@pytest.mark.parametrize("is_training", [True, False])
def test_finalizing_statistics(caller: Caller, device: Runtime, is_training: bool) -> None:
    operation = FusedOps.BN_FINALIZE_STATISTICS_TRAINING
    plan = Plan(caller, device, operation if is_training else FusedOps.BN_FINALIZE_STATISTICS_INFERENCE)
    count, shape = 50, (1, 7, 1, 1)
    mean, variance, weight, bias, old = (np.random.default_rng().random(shape) + 0.5 for _ in range(5))
    labels = {
        Variant.PTR_YSUM: (mean * count, Const.YSUM_PLACEHOLDER, Const.YSTATS_DESC),
        Variant.PTR_YSQSUM: ((variance + mean**2) * count, Const.YSQSUM_PLACEHOLDER, Const.YSTATS_DESC),
        Variant.PTR_BN_SCALE: (weight, Const.BN_SCALE_PLACEHOLDER, Const.BN_SCALEBIAS_MEANVAR_DESC),
        Variant.PTR_BN_BIAS: (bias, Const.BN_BIAS_PLACEHOLDER, Const.BN_SCALEBIAS_MEANVAR_DESC),
        Variant.PTR_BN_SAVED_MEAN: (old, Const.BN_SAVED_MEAN_PLACEHOLDER, Const.BN_SCALEBIAS_MEANVAR_DESC),
        Variant.PTR_BN_RUNNING_MEAN: (mean, Const.BN_RUNNING_MEAN_PLACEHOLDER, Const.BN_SCALEBIAS_MEANVAR_DESC),
        Variant.PTR_BN_RUNNING_VAR: (variance, Const.BN_RUNNING_VAR_PLACEHOLDER, Const.BN_SCALEBIAS_MEANVAR_DESC),
        Variant.PTR_BN_EQSCALE: (old, Const.BN_EQSCALE_PLACEHOLDER, Const.BN_EQSCALEBIAS_DESC),
        Variant.PTR_BN_EQBIAS: (old, Const.BN_EQBIAS_PLACEHOLDER, Const.BN_EQSCALEBIAS_DESC),
    }
    at = {label: plan.operand(array.astype(np.float32), label, *rest) for label, (array, *rest) in labels.items()}
    plan.variant(Variant.SCALAR_DOUBLE_BN_EPSILON, ctypes.c_double(EPSILON))
    if is_training:
        plan.variant(Variant.SCALAR_INT64_T_BN_ACCUMULATION_COUNT, ctypes.c_int64(count))
        plan.variant(Variant.SCALAR_DOUBLE_BN_EXP_AVG_FACTOR, ctypes.c_double(FACTOR))
    plan.run()
    eq_scale = weight / np.sqrt(variance + EPSILON)
    expected = {Variant.PTR_BN_EQSCALE: eq_scale, Variant.PTR_BN_EQBIAS: bias - mean * eq_scale}
    if is_training:
        unbiased = variance * count / (count - 1)
        expected |= {
            Variant.PTR_BN_SAVED_MEAN: mean,
            Variant.PTR_BN_RUNNING_MEAN: mean,
            Variant.PTR_BN_RUNNING_VAR: (1 - FACTOR) * variance + FACTOR * unbiased,
        }
    for label, values in expected.items():
        # A bias may be a difference of two nearly equal numbers.
        np.testing.assert_allclose(plan.memory.get(at[label]), values, rtol=1e-4, atol=1e-5, err_msg=label.name)


def test_packs(caller: Caller, device: Runtime) -> None:
    """Values are read back; what is not set is NULL; packs and plans of two operations do not go together."""
    plan = Plan(caller, device, FusedOps.SCALE_BIAS_ACTIVATION_WGRAD)
    get = ("cudnnGetFusedOpsConstParamPackAttribute", plan.constants)
    number, is_null = ctypes.c_int(77), ctypes.c_int(77)
    found = (ctypes.byref(number), ctypes.byref(is_null))
    for label, value in ((Const.BN_MODE, 1), (Const.XDATA_PLACEHOLDER, 2)):
        caller.call(*get, label, *found)
        assert is_null.value == 1
        plan.constant(label, value)
        caller.call(*get, label, *found)
        assert (number.value, is_null.value) == (value, 0)
    x = tensor_descriptor(caller, integers(*X))
    plan.constant(Const.XDESC, x)
    other = caller.output("cudnnCreateTensorDescriptor")
    caller.call(*get, Const.XDESC, other, ctypes.byref(is_null))
    size = ("cudnnGetTensorSizeInBytes", other)
    assert caller.output(*size, kind=ctypes.c_size_t) == 4 * np.prod(X)
    plan.constant(Const.XDESC, None)
    caller.call(*get, Const.XDESC, 0, ctypes.byref(is_null))
    assert is_null.value == 1
    name, address = "cudnnGetFusedOpsVariantParamPackAttribute", ctypes.c_void_p(77)
    caller.call(name, plan.variants, Variant.PTR_XDATA, ctypes.byref(address))
    assert address.value is None
    plan.variant(Variant.PTR_XDATA, 4096)
    caller.call(name, plan.variants, Variant.PTR_XDATA, ctypes.byref(address))
    assert address.value == 4096
    epsilon = ctypes.c_double()
    arguments = (plan.variants, Variant.SCALAR_DOUBLE_BN_EPSILON, ctypes.byref(epsilon))
    assert caller.status(name, *arguments) is Status.BAD_PARAM
    plan.variant(Variant.SCALAR_DOUBLE_BN_EPSILON, ctypes.c_double(0.5))
    caller.call(name, *arguments)
    assert epsilon.value == 0.5
    set_constant = ("cudnnSetFusedOpsConstParamPackAttribute", plan.constants)
    for arguments in ((39, x), (Const.WDESC, x), (Const.BN_MODE, ctypes.byref(ctypes.c_int(3)))):
        assert caller.status(*set_constant, *arguments) is Status.BAD_PARAM
    assert caller.status("cudnnFusedOpsExecute", plan.handle, plan.plan, plan.variants) is Status.BAD_PARAM
    bytes_at = ctypes.byref(ctypes.c_size_t())
    make = ("cudnnMakeFusedOpsPlan", plan.handle)
    assert caller.status(*make, plan.plan, plan.constants, bytes_at) is Status.BAD_PARAM
    assert "XDESC: expected a value in the pack of constants, got none" in caller.last_error()
    masks = Plan(caller, device, FusedOps.SCALE_BIAS_ADD_ACTIVATION_GEN_BITMASK)
    assert caller.status(*make, masks.plan, plan.constants, bytes_at) is Status.BAD_PARAM
    assert (
        caller.status("cudnnMakeFusedOpsPlan", masks.handle, masks.plan, masks.constants, bytes_at)
        is Status.NOT_SUPPORTED
    )
    for kind, value in (("ConstParamPack", plan.constants), ("VariantParamPack", plan.variants), ("Plan", plan.plan)):
        caller.call(f"cudnnDestroyFusedOps{kind}", value)
        assert caller.status(f"cudnnDestroyFusedOps{kind}", value) is Status.BAD_PARAM
        assert caller.status(f"cudnnCreateFusedOps{kind}", ctypes.byref(address), 7) is Status.BAD_PARAM

"""cudnnActivationForward and cudnnActivationBackward."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import was_set
from lowdnn.capi.descriptors import ActivationDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Builder, Launched, compute_type_of
from lowdnn.capi.memory import Address
from lowdnn.capi.state import State
from lowdnn.enums import ActivationMode, NanPropagation, PointwiseMode
from lowdnn.ops.tensor import Tensor


def activation_forward(
    state: State, handle: Address, activation: Address, alpha: Address, x_desc: Address, x: Address, beta: Address,
    y_desc: Address, y: Address,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnActivationForward")
    found = was_set(state, activation, ActivationDescriptor, f"{frame.name}.activationDesc")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(frame.descriptor(x_desc, "x"), target, "y")
    scales = frame.scales(alpha, beta, target)

    def write(result: Tensor) -> None:
        activate(frame.builder, found, source, result)

    frame.builder.store(write, target, y, scales, f"{frame.name}.y")
    return frame.run()


def activate(builder: Builder, activation: ActivationDescriptor, x: Tensor, y: Tensor) -> None:
    """Adds y = activation(x); that of a NaN which does not propagate is 0."""
    if activation.mode in _RELUS and activation.nan_propagation is NanPropagation.NOT_PROPAGATE_NAN:
        x = builder.without_nan(x, builder.constant(0.0, x.rank, compute_type_of(x.data_type)))
    mode, parameters = _FORWARD[activation.mode](activation)
    builder.pointwise(mode, y, x, parameters=parameters)


_RELUS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU)
_FORWARD: Mapping[ActivationMode, Callable[[ActivationDescriptor], tuple[PointwiseMode, dict[str, float]]]] = {
    ActivationMode.SIGMOID: lambda _: (PointwiseMode.SIGMOID_FWD, {}),
    ActivationMode.RELU: lambda _: (PointwiseMode.RELU_FWD, {}),
    ActivationMode.TANH: lambda _: (PointwiseMode.TANH_FWD, {}),
    ActivationMode.CLIPPED_RELU: lambda found: (PointwiseMode.RELU_FWD, {"relu_upper_clip": found.coefficient}),
    ActivationMode.ELU: lambda found: (PointwiseMode.ELU_FWD, {"elu_alpha": found.coefficient}),
    ActivationMode.IDENTITY: lambda _: (PointwiseMode.IDENTITY, {}),
    ActivationMode.SWISH: lambda found: (PointwiseMode.SWISH_FWD, {"swish_beta": found.swish_beta}),
}


def activation_backward(
    state: State, handle: Address, activation: Address, alpha: Address, y_desc: Address, y: Address,
    dy_desc: Address, dy: Address, x_desc: Address, x: Address, beta: Address, dx_desc: Address, dx: Address,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnActivationBackward")
    found = was_set(state, activation, ActivationDescriptor, f"{frame.name}.activationDesc")
    tensors = {"x": frame.tensor(x_desc, x, "x"), "y": frame.tensor(y_desc, y, "y")}
    gradient, target = frame.tensor(dy_desc, dy, "dy"), frame.descriptor(dx_desc, "dx")
    for argument, address in (("y", y_desc), ("dy", dy_desc), ("x", x_desc)):
        frame.check_dims(target, frame.descriptor(address, argument), argument)
    scales = frame.scales(alpha, beta, target)

    def write(result: Tensor) -> None:
        _differentiate(frame.builder, found, gradient, tensors["x"], tensors["y"], result)

    frame.builder.store(write, target, dx, scales, f"{frame.name}.dx")
    return frame.run()


def _differentiate(
    builder: Builder, activation: ActivationDescriptor, dy: Tensor, x: Tensor, y: Tensor, dx: Tensor
) -> None:
    """Adds dx = dy * activation'(x), from y where that is enough, since a forward call in place has overwritten x."""
    mode = activation.mode
    if mode in (ActivationMode.SIGMOID, ActivationMode.TANH):
        # The derivatives are y - y * y and 1 - y * y.
        between = compute_type_of(dx.data_type)
        product = builder.pointwise(PointwiseMode.MUL, builder.virtual(dx.dims, between), dy, y)
        square = builder.pointwise(PointwiseMode.MUL, builder.virtual(dx.dims, between), product, y)
        builder.pointwise(PointwiseMode.SUB, dx, product if mode is ActivationMode.SIGMOID else dy, square)
    elif mode is ActivationMode.IDENTITY:
        builder.pointwise(PointwiseMode.IDENTITY, dx, dy)
    else:
        backward, parameters, is_of_y = _BACKWARD[mode](activation)
        builder.pointwise(backward, dx, dy, y if is_of_y else x, parameters=parameters)


_BACKWARD: Mapping[ActivationMode, Callable[[ActivationDescriptor], tuple[PointwiseMode, dict[str, float], bool]]] = {
    ActivationMode.RELU: lambda _: (PointwiseMode.RELU_BWD, {}, True),
    ActivationMode.CLIPPED_RELU: lambda found: (PointwiseMode.RELU_BWD, {"relu_upper_clip": found.coefficient}, False),
    ActivationMode.ELU: lambda found: (PointwiseMode.ELU_BWD, {"elu_alpha": found.coefficient}, False),
    ActivationMode.SWISH: lambda found: (PointwiseMode.SWISH_BWD, {"swish_beta": found.swish_beta}, False),
}


CALLS: Mapping[str, Call] = {
    "cudnnActivationForward": activation_forward,
    "cudnnActivationBackward": activation_backward,
}

"""Softmax over the channels or over each sample, its logarithm, and the gradients."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import member
from lowdnn.capi.classic_enums import SoftmaxAlgorithm, SoftmaxMode
from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched, compute_type_of
from lowdnn.capi.memory import Address
from lowdnn.capi.state import State
from lowdnn.enums import PointwiseMode, ReduceTensorOp
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor


def softmax_forward(
    state: State, handle: Address, algorithm: int, mode: int, alpha: Address, x_desc: Address, x: Address,
    beta: Address, y_desc: Address, y: Address,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnSoftmaxForward")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(frame.descriptor(x_desc, "x"), target, "y")
    is_log = member(SoftmaxAlgorithm, algorithm, f"{frame.name}.algo") is SoftmaxAlgorithm.LOG
    axes = _axes(frame, mode, target)

    def write(result: Tensor) -> None:
        frame.builder.operations.append(Softmax(source, result, axes=axes, is_log=is_log, masked_is_nan=True))

    frame.builder.store(write, target, y, frame.scales(alpha, beta, target), f"{frame.name}.y")
    return frame.run()


def softmax_backward(
    state: State, handle: Address, algorithm: int, mode: int, alpha: Address, y_desc: Address, y: Address,
    dy_desc: Address, dy: Address, beta: Address, dx_desc: Address, dx: Address,
) -> Launched:  # fmt: skip
    """dx = y * (dy - sum(y * dy)); of the logarithm, dx = dy - exp(y) * sum(dy)."""
    frame = Frame.of(state, handle, "cudnnSoftmaxBackward")
    values, gradient = frame.tensor(y_desc, y, "y"), frame.tensor(dy_desc, dy, "dy")
    target = frame.descriptor(dx_desc, "dx")
    for argument, address in (("y", y_desc), ("dy", dy_desc)):
        frame.check_dims(target, frame.descriptor(address, argument), argument)
    is_log = member(SoftmaxAlgorithm, algorithm, f"{frame.name}.algo") is SoftmaxAlgorithm.LOG
    axes, builder, compute = _axes(frame, mode, target), frame.builder, compute_type_of(target.data_type)
    sums = tuple(1 if axis in axes else extent for axis, extent in enumerate(target.dims))

    def between(dims: tuple[int, ...] = target.dims) -> Tensor:
        return builder.virtual(dims, compute)

    def write(result: Tensor) -> None:
        if is_log:
            total = builder.reduced(gradient, between(sums), ReduceTensorOp.ADD)
            weights = builder.pointwise(PointwiseMode.EXP, between(), values)
            share = builder.pointwise(PointwiseMode.MUL, between(), weights, total)
            builder.pointwise(PointwiseMode.SUB, result, gradient, share)
            return
        product = builder.pointwise(PointwiseMode.MUL, between(), values, gradient)
        total = builder.reduced(product, between(sums), ReduceTensorOp.ADD)
        centred = builder.pointwise(PointwiseMode.SUB, between(), gradient, total)
        builder.pointwise(PointwiseMode.MUL, result, centred, values)

    builder.store(write, target, dx, frame.scales(alpha, beta, target), f"{frame.name}.dx")
    return frame.run()


def _axes(frame: Frame, mode: int, of: TensorDescriptor) -> tuple[int, ...]:
    """The axes that a softmax sums over: the channels, or all but the first one."""
    is_channel = member(SoftmaxMode, mode, f"{frame.name}.mode") is SoftmaxMode.CHANNEL
    return (1,) if is_channel else tuple(range(1, len(of.dims)))


CALLS: Mapping[str, Call] = {
    "cudnnSoftmaxForward": softmax_forward,
    "cudnnSoftmaxBackward": softmax_backward,
}

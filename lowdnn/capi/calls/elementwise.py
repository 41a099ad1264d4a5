"""Calls whose elements are computed one by one, beside activations: binary operations, scaling, filling, copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowdnn import dtypes
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import was_set
from lowdnn.capi.classic_enums import OpTensorOp
from lowdnn.capi.descriptors import OpTensorDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched, compute_type_of
from lowdnn.capi.memory import Address, checked, read_array
from lowdnn.capi.state import State
from lowdnn.enums import NanPropagation, PointwiseMode
from lowdnn.ops.tensor import Tensor


def op_tensor(
    state: State, handle: Address, operation: Address, alpha1: Address, a_desc: Address, a: Address, alpha2: Address,
    b_desc: Address, b: Address, beta: Address, c_desc: Address, c: Address,
) -> Launched:  # fmt: skip
    """C = operation(alpha1 * A, alpha2 * B) + beta * C; B repeats where its extent is 1."""
    frame = Frame.of(state, handle, "cudnnOpTensor")
    found = was_set(state, operation, OpTensorDescriptor, f"{frame.name}.opTensorDesc")
    first, target = frame.tensor(a_desc, a, "a"), frame.descriptor(c_desc, "c")
    frame.check_dims(target, frame.descriptor(a_desc, "a"), "a")
    builder, kind = frame.builder, found.compute_type
    compute = compute_type_of(target.data_type, first.data_type)
    scaled = [builder.scaled(frame.scale(alpha1, kind, "alpha1"), first, compute)]
    if found.operation in _BINARY:
        frame.check_repeats(frame.descriptor(b_desc, "b"), target, "b")
        scaled.append(builder.scaled(frame.scale(alpha2, kind, "alpha2"), frame.tensor(b_desc, b, "b"), compute))
    if found.operation in _EXTREMES and found.nan_propagation is NanPropagation.NOT_PROPAGATE_NAN:
        scaled = [builder.without_nan(x, other) for x, other in (scaled, scaled[::-1])]

    def write(result: Tensor) -> None:
        if found.operation is OpTensorOp.SQRT:
            builder.pointwise(PointwiseMode.SQRT, result, *scaled)
        elif found.operation is OpTensorOp.NOT:
            builder.pointwise(PointwiseMode.SUB, result, builder.constant(1.0, len(target.dims), compute), *scaled)
        else:
            builder.pointwise(_BINARY[found.operation], result, *scaled)

    builder.store(write, target, c, (1.0, frame.scale(beta, kind, "beta")), f"{frame.name}.C")
    return frame.run()


_BINARY: Mapping[OpTensorOp, PointwiseMode] = {
    OpTensorOp.ADD: PointwiseMode.ADD,
    OpTensorOp.MUL: PointwiseMode.MUL,
    OpTensorOp.MIN: PointwiseMode.MIN,
    OpTensorOp.MAX: PointwiseMode.MAX,
}
_EXTREMES = (OpTensorOp.MIN, OpTensorOp.MAX)


def add_tensor(
    state: State, handle: Address, alpha: Address, a_desc: Address, a: Address, beta: Address, c_desc: Address,
    c: Address,
) -> Launched:  # fmt: skip
    """C = alpha * A + beta * C; A repeats where its extent is 1."""
    frame = Frame.of(state, handle, "cudnnAddTensor")
    source, target = frame.tensor(a_desc, a, "a"), frame.descriptor(c_desc, "c")
    frame.check_repeats(frame.descriptor(a_desc, "a"), target, "a")
    _copy(frame, source, target, c, frame.scales(alpha, beta, target), "C")
    return frame.run()


def transform_tensor(
    state: State, handle: Address, alpha: Address, x_desc: Address, x: Address, beta: Address, y_desc: Address,
    y: Address,
) -> Launched:  # fmt: skip
    """y = alpha * x + beta * y, in the layout and data type of y."""
    frame = Frame.of(state, handle, "cudnnTransformTensor")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(frame.descriptor(x_desc, "x"), target, "y")
    _copy(frame, source, target, y, frame.scales(alpha, beta, target), "y")
    return frame.run()


def scale_tensor(state: State, handle: Address, y_desc: Address, y: Address, alpha: Address) -> Launched:
    """y = alpha * y."""
    frame = Frame.of(state, handle, "cudnnScaleTensor")
    old, target = frame.tensor(y_desc, y, "y"), frame.descriptor(y_desc, "y")
    _copy(frame, old, target, y, (frame.scale(alpha, target.data_type, "alpha"), 0.0), "y")
    return frame.run()


def set_tensor(state: State, handle: Address, y_desc: Address, y: Address, value: Address) -> Launched:
    """Every element gets the value, which has the tensor's data type."""
    frame = Frame.of(state, handle, "cudnnSetTensor")
    target = frame.descriptor(y_desc, "y")
    checked(y, f"{frame.name}.y")
    number = _read_value(frame, target, value)
    filling = frame.builder.value(number, len(target.dims), compute_type_of(target.data_type))
    _copy(frame, filling, target, y, (1.0, 0.0), "y")
    return frame.run()


def _read_value(frame: Frame, target: TensorDescriptor, value: Address) -> float:
    facts = dtypes.info(target.data_type)
    content = b"".join(read_array(value, "c", facts.size_bytes, f"{frame.name}.valuePtr"))
    return float(dtypes.to_float64(np.frombuffer(content, facts.storage), target.data_type)[0])


def _copy(
    frame: Frame, source: Tensor, target: TensorDescriptor, address: Address, scales: tuple[float, float], argument: str
) -> None:
    """Adds target = alpha * source + beta * target."""
    frame.builder.assign(source, target, address, scales, f"{frame.name}.{argument}")


CALLS: Mapping[str, Call] = {
    "cudnnOpTensor": op_tensor,
    "cudnnAddTensor": add_tensor,
    "cudnnTransformTensor": transform_tensor,
    "cudnnScaleTensor": scale_tensor,
    "cudnnSetTensor": set_tensor,
}

"""Dropout: y = x * mask / (1 - dropout), where mask is 1 with probability 1 - dropout, and its gradient.

States are two 64-bit integers in device memory: the seed, and how many forward calls have used it. The reserve space is
the mask, a byte for each element.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import change, life_of, was_set
from lowdnn.capi.descriptors import DropoutDescriptor, TensorDescriptor, packed_strides
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Builder
from lowdnn.capi.memory import Address, checked, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import DataType, PointwiseMode, RngDistribution, TensorFormat
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.status import BadParamError, SizeInsufficientError

_STATES_BYTES = 16
#: One 64-bit integer.
_NUMBER = TensorDescriptor(DataType.INT64, (1, 1, 1, 1), (1, 1, 1, 1))


def states_size(state: State, handle: Address, size: Address) -> None:
    state.objects.get(handle, Handle, "cudnnDropoutGetStatesSize.handle")
    write_outputs((size, "Q", _STATES_BYTES, "cudnnDropoutGetStatesSize.sizeInBytes"))


def reserve_space_size(state: State, x_desc: Address, size: Address) -> None:
    name = "cudnnDropoutGetReserveSpaceSize"
    found = was_set(state, x_desc, TensorDescriptor, f"{name}.xdesc")
    write_outputs((size, "Q", prod(found.dims), f"{name}.sizeInBytes"))


def set_descriptor(
    state: State, descriptor: Address, handle: Address, dropout: float, states: Address, states_bytes: int, seed: int
) -> None:
    """Writes the states, unless they are NULL, which is enough where nothing is dropped."""
    where = "cudnnSetDropoutDescriptor"
    user = _change(state, where, descriptor, handle, dropout, states, states_bytes, seed)
    if states:
        begun = np.array([seed, 0], np.uint64)
        DeviceBuffer(user.runtime.context, states, _STATES_BYTES).copy_from_host(begun, user.borrowed_stream())


def restore_descriptor(
    state: State, descriptor: Address, handle: Address, dropout: float, states: Address, states_bytes: int, seed: int
) -> None:
    """Sets the descriptor to states that another call has already written."""
    where = "cudnnRestoreDropoutDescriptor"
    checked(states, f"{where}.states")
    _change(state, where, descriptor, handle, dropout, states, states_bytes, seed)


def get_descriptor(
    state: State, descriptor: Address, handle: Address, dropout: Address, states: Address, seed: Address
) -> None:
    where = "cudnnGetDropoutDescriptor"
    found = was_set(state, descriptor, DropoutDescriptor, f"{where}.dropoutDesc")
    state.objects.get(handle, Handle, f"{where}.handle")
    write_outputs(
        (dropout, "f", found.dropout, f"{where}.dropout"),
        (states, "Q", found.states, f"{where}.states"),
        (seed, "Q", found.seed, f"{where}.seed"),
    )


def forward(
    state: State, handle: Address, descriptor: Address, x_desc: Address, x: Address, y_desc: Address, y: Address,
    reserve: Address, reserve_bytes: int,
) -> None:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnDropoutForward")
    found = was_set(state, descriptor, DropoutDescriptor, f"{frame.name}.dropoutDesc")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(target, frame.descriptor(x_desc, "x"), "x")
    builder = frame.builder
    mask = _mask(frame, target, reserve, reserve_bytes)
    if found.dropout > 0:
        where = f"{frame.name}.dropoutDesc.states"
        seed, count = (builder.tensor(_NUMBER, address, where) for address in _states(found, where))
        kept = Rng(RngDistribution.BERNOULLI, probability=1 - found.dropout)
        builder.operations.append(RngOperation(kept, mask, seed, count))
    else:
        one = builder.constant(1.0, len(target.dims), DataType.FLOAT)
        builder.pointwise(PointwiseMode.IDENTITY, mask, one)
    output = builder.result(target, y, f"{frame.name}.y")
    builder.pointwise(PointwiseMode.MUL, output, source, mask, alphas=(found.scale,))
    frame.run_all([builder, *([_counting(frame, found)] if found.dropout > 0 else [])])


def backward(
    state: State, handle: Address, descriptor: Address, dy_desc: Address, dy: Address, dx_desc: Address, dx: Address,
    reserve: Address, reserve_bytes: int,
) -> None:  # fmt: skip
    """dx = dy * mask / (1 - dropout), with the mask of the forward call."""
    frame = Frame.of(state, handle, "cudnnDropoutBackward")
    found = was_set(state, descriptor, DropoutDescriptor, f"{frame.name}.dropoutDesc")
    gradient, target = frame.tensor(dy_desc, dy, "dy"), frame.descriptor(dx_desc, "dx")
    frame.check_dims(target, frame.descriptor(dy_desc, "dy"), "dy")
    mask = _mask(frame, target, reserve, reserve_bytes)
    output = frame.builder.result(target, dx, f"{frame.name}.dx")
    frame.builder.pointwise(PointwiseMode.MUL, output, gradient, mask, alphas=(found.scale,))
    frame.run()


def _change(
    state: State, where: str, descriptor: Address, handle: Address, dropout: float, states: Address,
    states_bytes: int, seed: int,
) -> Handle:  # fmt: skip
    def new(_: DropoutDescriptor) -> DropoutDescriptor:
        if not 0 <= dropout <= 1:
            raise BadParamError.at(f"{where}.dropout", expected="0 to 1", got=dropout)
        if states and states_bytes < _STATES_BYTES:
            expected = f"at least {_STATES_BYTES}"
            raise SizeInsufficientError.at(f"{where}.stateSizeInBytes", expected=expected, got=states_bytes)
        return DropoutDescriptor(dropout, states or 0, seed, is_set=True)

    user = state.objects.get(handle, Handle, f"{where}.handle")
    change(state, descriptor, DropoutDescriptor, f"{where}.dropoutDesc", new)
    return user


def _mask(frame: Frame, of: TensorDescriptor, reserve: Address, reserve_bytes: int) -> Tensor:
    needed = prod(of.dims)
    if reserve_bytes < needed:
        where = f"{frame.name}.reserveSpaceSizeInBytes"
        raise SizeInsufficientError.at(where, expected=f"at least {needed}", got=reserve_bytes)
    packed = TensorDescriptor(DataType.INT8, of.dims, packed_strides(TensorFormat.NCHW, of.dims))
    return frame.builder.tensor(packed, reserve, f"{frame.name}.reserveSpace")


def _states(descriptor: DropoutDescriptor, where: str) -> tuple[int, int]:
    """The device addresses of the seed and of the count of calls."""
    states = checked(descriptor.states, where)
    return states, states + 8


def _counting(frame: Frame, descriptor: DropoutDescriptor) -> Builder:
    """Adds 1 to the count of calls after the launch that reads it, so that the next call draws other numbers."""
    where = f"{frame.name}.dropoutDesc.states"
    _, address = _states(descriptor, where)
    builder = Builder()
    old, new = builder.tensor(_NUMBER, address, where), builder.result(_NUMBER, address, where)
    builder.pointwise(PointwiseMode.ADD, new, old, builder.constant(1.0, len(_NUMBER.dims), DataType.DOUBLE))
    return builder


CALLS: Mapping[str, Call] = {
    **life_of(DropoutDescriptor, "Dropout", "dropoutDesc"),
    "cudnnDropoutGetStatesSize": states_size,
    "cudnnDropoutGetReserveSpaceSize": reserve_space_size,
    "cudnnSetDropoutDescriptor": set_descriptor,
    "cudnnRestoreDropoutDescriptor": restore_descriptor,
    "cudnnGetDropoutDescriptor": get_descriptor,
    "cudnnDropoutForward": forward,
    "cudnnDropoutBackward": backward,
}

"""Normalisation over neighbours, across channels (LRN) and within each channel (divisive): calls and descriptor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import change, life_of, member, was_set
from lowdnn.capi.classic_enums import DivNormMode, LRNMode
from lowdnn.capi.descriptors import LrnDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched
from lowdnn.capi.memory import Address, checked, write_outputs
from lowdnn.capi.state import State
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.lrn import LrnBackward, LrnForward
from lowdnn.ops.tensor import Tensor


def set_descriptor(state: State, descriptor: Address, n: int, alpha: float, beta: float, k: float) -> None:
    where = "cudnnSetLRNDescriptor"

    def new(_: LrnDescriptor) -> LrnDescriptor:
        changed = LrnDescriptor(n, alpha, beta, k)
        changed.check(where)
        return changed

    change(state, descriptor, LrnDescriptor, f"{where}.normDesc", new)


def get_descriptor(state: State, descriptor: Address, n: Address, alpha: Address, beta: Address, k: Address) -> None:
    where = "cudnnGetLRNDescriptor"
    found = was_set(state, descriptor, LrnDescriptor, f"{where}.normDesc")
    write_outputs(
        (n, "I", found.lrn_n, f"{where}.lrnN"),
        (alpha, "d", found.lrn_alpha, f"{where}.lrnAlpha"),
        (beta, "d", found.lrn_beta, f"{where}.lrnBeta"),
        (k, "d", found.lrn_k, f"{where}.lrnK"),
    )


def forward(
    state: State, handle: Address, descriptor: Address, mode: int, alpha: Address, x_desc: Address, x: Address,
    beta: Address, y_desc: Address, y: Address,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnLRNCrossChannelForward")
    found = was_set(state, descriptor, LrnDescriptor, f"{frame.name}.normDesc")
    member(LRNMode, mode, f"{frame.name}.lrnMode")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(target, frame.descriptor(x_desc, "x"), "x")

    def write(result: Tensor) -> None:
        frame.builder.operations.append(LrnForward(source, result, **asdict(found)))

    frame.builder.store(write, target, y, frame.scales(alpha, beta, target), f"{frame.name}.y")
    return frame.run()


def backward(
    state: State, handle: Address, descriptor: Address, mode: int, alpha: Address, y_desc: Address, y: Address,
    dy_desc: Address, dy: Address, x_desc: Address, x: Address, beta: Address, dx_desc: Address, dx: Address,
) -> Launched:  # fmt: skip
    """y is not needed."""
    frame = Frame.of(state, handle, "cudnnLRNCrossChannelBackward")
    found = was_set(state, descriptor, LrnDescriptor, f"{frame.name}.normDesc")
    member(LRNMode, mode, f"{frame.name}.lrnMode")
    target = frame.descriptor(dx_desc, "dx")
    for argument, address in (("y", y_desc), ("dy", dy_desc), ("x", x_desc)):
        frame.check_dims(target, frame.descriptor(address, argument), argument)
    frame.tensor(y_desc, y, "y")
    source, gradient = frame.tensor(x_desc, x, "x"), frame.tensor(dy_desc, dy, "dy")

    def write(result: Tensor) -> None:
        frame.builder.operations.append(LrnBackward(source, gradient, result, **asdict(found)))

    frame.builder.store(write, target, dx, frame.scales(alpha, beta, target), f"{frame.name}.dx")
    return frame.run()


def divisive_forward(
    state: State, handle: Address, descriptor: Address, mode: int, alpha: Address, x_desc: Address, x: Address,
    means: Address, temp: Address, temp2: Address, beta: Address, y_desc: Address, y: Address,
) -> Launched:  # fmt: skip
    """The means, which may be NULL for 0, lie as x does; temp and temp2 are not needed."""
    frame = Frame.of(state, handle, "cudnnDivisiveNormalizationForward")
    parameters = _divisive(frame, descriptor, mode, (temp, temp2))
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(target, frame.descriptor(x_desc, "x"), "x")
    given = frame.tensor(x_desc, means, "means") if means else None

    def write(result: Tensor) -> None:
        frame.builder.operations.append(DivisiveNormalizationForward(source, result, given, **parameters))

    frame.builder.store(write, target, y, frame.scales(alpha, beta, target), f"{frame.name}.y")
    return frame.run()


def divisive_backward(
    state: State, handle: Address, descriptor: Address, mode: int, alpha: Address, x_desc: Address, x: Address,
    means: Address, dy: Address, temp: Address, temp2: Address, beta: Address, gradients_desc: Address, dx: Address,
    dmeans: Address,
) -> Launched:  # fmt: skip
    """means and dy lie as x does, dmeans, which may be NULL, as dx does; alpha and beta are those of both gradients."""
    frame = Frame.of(state, handle, "cudnnDivisiveNormalizationBackward")
    parameters = _divisive(frame, descriptor, mode, (temp, temp2))
    source, gradient = frame.tensor(x_desc, x, "x"), frame.tensor(x_desc, dy, "dy")
    target = frame.descriptor(gradients_desc, "dXdMeans")
    frame.check_dims(target, frame.descriptor(x_desc, "x"), "x")
    given = frame.tensor(x_desc, means, "means") if means else None
    scales = frame.scales(alpha, beta, target)
    ports: dict[str, Any] = {"means": given}
    for port, address in (("dx", dx), ("dmeans", dmeans)):
        if address or port == "dx":
            frame.builder.store(partial(ports.__setitem__, port), target, address, scales, f"{frame.name}.{port}")
    frame.builder.operations.append(DivisiveNormalizationBackward(source, gradient, **ports, **parameters))
    return frame.run()


def _divisive(frame: Frame, descriptor: Address, mode: int, temporary: tuple[Address, Address]) -> dict[str, Any]:
    """The parameters of the operation; checks the arguments that need no tensors."""
    found = was_set(frame.state, descriptor, LrnDescriptor, f"{frame.name}.normDesc")
    member(DivNormMode, mode, f"{frame.name}.mode")
    for address, argument in zip(temporary, ("temp", "temp2"), strict=True):
        checked(address, f"{frame.name}.{argument}")
    return asdict(found)


CALLS: Mapping[str, Call] = {
    **life_of(LrnDescriptor, "LRN", "normDesc"),
    "cudnnSetLRNDescriptor": set_descriptor,
    "cudnnGetLRNDescriptor": get_descriptor,
    "cudnnLRNCrossChannelForward": forward,
    "cudnnLRNCrossChannelBackward": backward,
    "cudnnDivisiveNormalizationForward": divisive_forward,
    "cudnnDivisiveNormalizationBackward": divisive_backward,
}

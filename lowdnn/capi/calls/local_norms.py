"""Local response normalisation across channels: its descriptor, the forward call and the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import change, life_of, member, was_set
from lowdnn.capi.classic_enums import LRNMode
from lowdnn.capi.descriptors import LrnDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
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
) -> None:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnLRNCrossChannelForward")
    found = was_set(state, descriptor, LrnDescriptor, f"{frame.name}.normDesc")
    member(LRNMode, mode, f"{frame.name}.lrnMode")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(target, frame.descriptor(x_desc, "x"), "x")

    def write(result: Tensor) -> None:
        frame.builder.operations.append(LrnForward(source, result, **asdict(found)))

    frame.builder.store(write, target, y, frame.scales(alpha, beta, target), f"{frame.name}.y")
    frame.run()


def backward(
    state: State, handle: Address, descriptor: Address, mode: int, alpha: Address, y_desc: Address, y: Address,
    dy_desc: Address, dy: Address, x_desc: Address, x: Address, beta: Address, dx_desc: Address, dx: Address,
) -> None:  # fmt: skip
    """y is not needed."""
    frame = Frame.of(state, handle, "cudnnLRNCrossChannelBackward")
    found = was_set(state, descriptor, LrnDescriptor, f"{frame.name}.normDesc")
    member(LRNMode, mode, f"{frame.name}.lrnMode")
    target = frame.descriptor(dx_desc, "dx")
    for argument, address in (("y", y_desc), ("dy", dy_desc), ("x", x_desc)):
        frame.check_dims(target, frame.descriptor(address, argument), argument)
    source, gradient = frame.tensor(x_desc, x, "x"), frame.tensor(dy_desc, dy, "dy")

    def write(result: Tensor) -> None:
        frame.builder.operations.append(LrnBackward(source, gradient, result, **asdict(found)))

    frame.builder.store(write, target, dx, frame.scales(alpha, beta, target), f"{frame.name}.dx")
    frame.run()


CALLS: Mapping[str, Call] = {
    **life_of(LrnDescriptor, "LRN", "normDesc"),
    "cudnnSetLRNDescriptor": set_descriptor,
    "cudnnGetLRNDescriptor": get_descriptor,
    "cudnnLRNCrossChannelForward": forward,
    "cudnnLRNCrossChannelBackward": backward,
}

"""Transforms that pad, cut and fold tensors and filters, with their descriptor."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeVar

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import change, life_of, member, was_set
from lowdnn.capi.calls.window_copies import copy_windows
from lowdnn.capi.classic_enums import FoldingDirection
from lowdnn.capi.descriptors import (
    FilterDescriptor,
    TensorDescriptor,
    TensorTransformDescriptor,
    check_vectors,
    packed_strides,
)
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, read_array, write_array, write_outputs
from lowdnn.capi.state import State
from lowdnn.capi.windows import Axis
from lowdnn.enums import DIM_MAX, TensorFormat
from lowdnn.status import NotSupportedError, ShapeMismatchError

Described = TensorDescriptor | FilterDescriptor
D = TypeVar("D", TensorDescriptor, FilterDescriptor)


def set_descriptor(
    state: State, descriptor: Address, count: int, layout: int, before: Address, after: Address, folds: Address,
    direction: int,
) -> None:  # fmt: skip
    """Arrays that are NULL stand for no padding and folds of 1."""
    where = "cudnnSetTensorTransformDescriptor"

    def array(address: Address, element: str, length: int, name: str, default: int) -> tuple[int, ...]:
        return read_array(address, element, length, f"{where}.{name}") if address else (default,) * length

    def new(_: TensorTransformDescriptor) -> TensorTransformDescriptor:
        if count > DIM_MAX:
            raise NotSupportedError.at(f"{where}.nbDims", expected=f"3 to {DIM_MAX}", got=count)
        changed = TensorTransformDescriptor(
            member(TensorFormat, layout, f"{where}.destFormat"),
            array(before, "i", count, "padBeforeA", 0),
            array(after, "i", count, "padAfterA", 0),
            array(folds, "I", max(count - 2, 0), "foldA", 1),
            member(FoldingDirection, direction, f"{where}.direction"),
        )
        changed.check(where)
        return changed

    change(state, descriptor, TensorTransformDescriptor, f"{where}.transformDesc", new)


def get_descriptor(
    state: State, descriptor: Address, requested: int, layout: Address, before: Address, after: Address,
    folds: Address, direction: Address,
) -> None:  # fmt: skip
    """The first ``requested`` elements of each array, two fewer of the folds."""
    where = "cudnnGetTensorTransformDescriptor"
    found = was_set(state, descriptor, TensorTransformDescriptor, f"{where}.transformDesc")
    arrays = (
        (before, "i", found.before[:requested], f"{where}.padBeforeA"),
        (after, "i", found.after[:requested], f"{where}.padAfterA"),
        (folds, "I", found.folds[: max(requested - 2, 0)], f"{where}.foldA"),
    )
    for address, _, values, name in arrays:
        if values:
            checked(address, name)
    write_outputs(
        (layout, "i", found.layout, f"{where}.destFormat"), (direction, "i", found.direction, f"{where}.direction")
    )
    for array in arrays:
        write_array(*array)


def init_destination(state: State, descriptor: Address, source: Address, destination: Address, size: Address) -> None:
    """The descriptor of what the transform makes of a tensor, packed in the transform's format, and its bytes."""
    where = "cudnnInitTransformDest"
    transform = was_set(state, descriptor, TensorTransformDescriptor, f"{where}.transformDesc")
    of = was_set(state, source, TensorDescriptor, f"{where}.srcDesc")
    dims = transform.output_dims(f"{where}.srcDesc", of.dims)
    check_vectors(f"{where}.srcDesc", of.data_type, dims, transform.layout)
    made = TensorDescriptor.of(f"{where}.destDesc", of.data_type, dims, packed_strides(transform.layout, dims))
    checked(size, f"{where}.destSizeInBytes")
    change(state, destination, TensorDescriptor, f"{where}.destDesc", lambda _: made)
    write_outputs((size, "Q", made.size_bytes, f"{where}.destSizeInBytes"))


def _transform(kind: type[D], name: str) -> Call:
    """The call of a kind of descriptors: destination = alpha * transform(source) + beta * destination."""

    def transform(
        state: State, handle: Address, descriptor: Address, alpha: Address, source_desc: Address, source: Address,
        beta: Address, target_desc: Address, target: Address,
    ) -> None:  # fmt: skip
        frame = Frame.of(state, handle, name)
        found = was_set(state, descriptor, TensorTransformDescriptor, f"{name}.transDesc")
        given: Described = was_set(state, source_desc, kind, f"{name}.srcDesc")
        made: Described = was_set(state, target_desc, kind, f"{name}.destDesc")
        expected = found.output_dims(f"{name}.srcDesc", given.dims)
        if made.dims != expected:
            raise ShapeMismatchError.at(f"{name}.destDesc.dims", expected=list(expected), got=list(made.dims))
        scales = frame.scale(alpha, made.data_type, "alpha"), frame.scale(beta, made.data_type, "beta")
        copy_windows(frame, (given, source, "srcData"), (made, target, "destData"), scales, *_axes(found, given, made))

    return transform


def _axes(transform: TensorTransformDescriptor, source: Described, target: Described) -> tuple[tuple[Axis, ...], bool]:
    """The axes as windows, and whether the target is the tensor of windows, as it is where the transform folds."""
    is_fold = transform.direction is FoldingDirection.FOLD
    whole, folded = (source, target) if is_fold else (target, source)
    folds, channel_stride = transform.folds_of_all, folded.strides[1]
    counts = (folded.dims[0], folded.dims[1] // prod(folds), *folded.dims[2:])
    strides = (folded.strides[0], channel_stride * prod(folds), *folded.strides[2:])
    axes = (
        Axis(
            extent=whole.dims[axis],
            count=counts[axis],
            place_stride=whole.strides[axis],
            window_stride=strides[axis],
            taps=fold,
            tap_stride=channel_stride * prod(folds[axis + 1 :]),
            stride=fold,
            padding=transform.before[axis] if is_fold else -transform.before[axis],
        )
        for axis, fold in enumerate(folds)
    )
    return tuple(axes), is_fold


CALLS: Mapping[str, Call] = {
    **life_of(TensorTransformDescriptor, "TensorTransform", "transformDesc"),
    "cudnnSetTensorTransformDescriptor": set_descriptor,
    "cudnnGetTensorTransformDescriptor": get_descriptor,
    "cudnnInitTransformDest": init_destination,
    "cudnnTransformTensorEx": _transform(TensorDescriptor, "cudnnTransformTensorEx"),
    "cudnnTransformFilter": _transform(FilterDescriptor, "cudnnTransformFilter"),
}

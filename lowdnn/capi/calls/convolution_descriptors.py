"""Descriptors of convolutions, and the extents of what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lowdnn.capi.calls.shared import change, integers, life_of, member, was_set, write_integers
from lowdnn.capi.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import ConvolutionMode, CudnnEnum, DataType, MathType, ReorderType
from lowdnn.status import BadParamError, NotSupportedError


def set_2d(
    state: State, descriptor: Address, pad_h: int, pad_w: int, u: int, v: int, dilation_h: int, dilation_w: int,
    mode: int, compute_type: int,
) -> None:  # fmt: skip
    _set(
        state, descriptor, "cudnnSetConvolution2dDescriptor", mode, compute_type,
        paddings=(pad_h, pad_w), strides=(u, v), dilations=(dilation_h, dilation_w),
    )  # fmt: skip


def set_nd(
    state: State, descriptor: Address, count: int, pads: Address, strides: Address, dilations: Address, mode: int,
    compute_type: int,
) -> None:  # fmt: skip
    where = "cudnnSetConvolutionNdDescriptor"
    _set(
        state, descriptor, where, mode, compute_type,
        paddings=integers(pads, count, f"{where}.padA"),
        strides=integers(strides, count, f"{where}.filterStrideA"),
        dilations=integers(dilations, count, f"{where}.dilationA"),
    )  # fmt: skip


def get_2d(
    state: State, descriptor: Address, pad_h: Address, pad_w: Address, u: Address, v: Address, dilation_h: Address,
    dilation_w: Address, mode: Address, compute_type: Address,
) -> None:  # fmt: skip
    where = "cudnnGetConvolution2dDescriptor"
    found = was_set(state, descriptor, ConvolutionDescriptor, f"{where}.convDesc")
    if len(found.paddings) != 2:
        raise NotSupportedError.at(f"{where}.convDesc", expected="2 spatial dimensions", got=len(found.paddings))
    names = ("pad_h", "pad_w", "u", "v", "dilation_h", "dilation_w", "mode", "computeType")
    addresses = (pad_h, pad_w, u, v, dilation_h, dilation_w, mode, compute_type)
    values = (*found.paddings, *found.strides, *found.dilations, found.mode, found.compute_type)
    outputs = zip(addresses, values, names, strict=True)
    write_outputs(*((address, "i", value, f"{where}.{name}") for address, value, name in outputs))


def get_nd(
    state: State, descriptor: Address, requested: int, count: Address, pads: Address, strides: Address,
    dilations: Address, mode: Address, compute_type: Address,
) -> None:  # fmt: skip
    where = "cudnnGetConvolutionNdDescriptor"
    found = was_set(state, descriptor, ConvolutionDescriptor, f"{where}.convDesc")
    write_integers(
        requested,
        (pads, found.paddings, f"{where}.padA"),
        (strides, found.strides, f"{where}.strideA"),
        (dilations, found.dilations, f"{where}.dilationA"),
    )
    write_outputs(
        (count, "i", len(found.paddings), f"{where}.arrayLength"),
        (mode, "i", found.mode, f"{where}.mode"),
        (compute_type, "i", found.compute_type, f"{where}.computeType"),
    )


def output_2d(
    state: State, descriptor: Address, image: Address, filters: Address, n: Address, c: Address, h: Address, w: Address
) -> None:
    where = "cudnnGetConvolution2dForwardOutputDim"
    dims = _output_dims(state, where, descriptor, image, filters)
    if len(dims) != 4:
        raise NotSupportedError.at(f"{where}.convDesc", expected="2 spatial dimensions", got=len(dims) - 2)
    outputs = zip((n, c, h, w), dims, "nchw", strict=True)
    write_outputs(*((address, "i", value, f"{where}.{name}") for address, value, name in outputs))


def output_nd(state: State, descriptor: Address, image: Address, filters: Address, count: int, output: Address) -> None:
    where = "cudnnGetConvolutionNdForwardOutputDim"
    dims = _output_dims(state, where, descriptor, image, filters)
    if count != len(dims):
        raise BadParamError.at(f"{where}.nbDims", expected=len(dims), got=count)
    write_integers(count, (output, dims, f"{where}.tensorOuputDimA"))


def _set(state: State, descriptor: Address, where: str, mode: int, compute_type: int, **geometry: Any) -> None:
    """Sets paddings, strides, dilations, mode and compute type; keeps the group count, math type and reorder type."""

    def new(old: ConvolutionDescriptor) -> ConvolutionDescriptor:
        changed = replace(
            old,
            **geometry,
            mode=member(ConvolutionMode, mode, f"{where}.mode"),
            compute_type=member(DataType, compute_type, f"{where}.computeType"),
        )
        changed.check(where)
        return changed

    change(state, descriptor, ConvolutionDescriptor, f"{where}.convDesc", new)


def _output_dims(state: State, where: str, descriptor: Address, image: Address, filters: Address) -> tuple[int, ...]:
    return was_set(state, descriptor, ConvolutionDescriptor, f"{where}.convDesc").output_dims(
        where,
        was_set(state, image, TensorDescriptor, f"{where}.inputTensorDesc"),
        was_set(state, filters, FilterDescriptor, f"{where}.filterDesc"),
    )


def _field(name: str, argument: str, field: str, convert: Callable[[int, str], int]) -> dict[str, Call]:
    """Returns cudnnSetConvolution<name> and cudnnGetConvolution<name> for one field, which may be set before or after
    the geometry."""
    set_name, get_name = f"cudnnSetConvolution{name}", f"cudnnGetConvolution{name}"

    def set_field(state: State, descriptor: Address, value: int) -> None:
        def new(old: ConvolutionDescriptor) -> ConvolutionDescriptor:
            changed: Any = {field: convert(value, f"{set_name}.{argument}")}
            return replace(old, **changed)

        change(state, descriptor, ConvolutionDescriptor, f"{set_name}.convDesc", new)

    def get_field(state: State, descriptor: Address, value: Address) -> None:
        found = state.objects.get(descriptor, ConvolutionDescriptor, f"{get_name}.convDesc")
        write_outputs((value, "i", getattr(found, field), f"{get_name}.{argument}"))

    return {set_name: set_field, get_name: get_field}


def _member_of(kind: type[CudnnEnum]) -> Callable[[int, str], int]:
    return lambda number, where: member(kind, number, where)


def _group_count(value: int, where: str) -> int:
    if value < 1:
        raise BadParamError.at(where, expected="1 or more", got=value)
    return value


CALLS: Mapping[str, Call] = {
    **life_of(ConvolutionDescriptor, "Convolution", "convDesc"),
    **_field("MathType", "mathType", "math_type", _member_of(MathType)),
    **_field("GroupCount", "groupCount", "group_count", _group_count),
    **_field("ReorderType", "reorderType", "reorder_type", _member_of(ReorderType)),
    "cudnnSetConvolution2dDescriptor": set_2d,
    "cudnnSetConvolutionNdDescriptor": set_nd,
    "cudnnGetConvolution2dDescriptor": get_2d,
    "cudnnGetConvolutionNdDescriptor": get_nd,
    "cudnnGetConvolution2dForwardOutputDim": output_2d,
    "cudnnGetConvolutionNdForwardOutputDim": output_nd,
}

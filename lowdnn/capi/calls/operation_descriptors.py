"""Descriptors of activations, pooling, binary operations and reductions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lowdnn.capi.calls.shared import change, integers, life_of, member, was_set, write_integers
from lowdnn.capi.classic_enums import IndicesType, OpTensorOp, PoolingMode, ReduceTensorIndices
from lowdnn.capi.descriptors import (
    ActivationDescriptor,
    OpTensorDescriptor,
    PoolingDescriptor,
    ReduceTensorDescriptor,
    TensorDescriptor,
)
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import ActivationMode, DataType, NanPropagation, ReduceTensorOp
from lowdnn.status import BadParamError, NotSupportedError


def set_activation(state: State, descriptor: Address, mode: int, nan: int, coefficient: float) -> None:
    where = "cudnnSetActivationDescriptor"

    def new(old: ActivationDescriptor) -> ActivationDescriptor:
        return replace(
            old,
            mode=member(ActivationMode, mode, f"{where}.mode"),
            nan_propagation=member(NanPropagation, nan, f"{where}.reluNanOpt"),
            coefficient=coefficient,
            is_set=True,
        )

    change(state, descriptor, ActivationDescriptor, f"{where}.activationDesc", new)


def get_activation(state: State, descriptor: Address, mode: Address, nan: Address, coefficient: Address) -> None:
    where = "cudnnGetActivationDescriptor"
    found = was_set(state, descriptor, ActivationDescriptor, f"{where}.activationDesc")
    write_outputs(
        (mode, "i", found.mode, f"{where}.mode"),
        (nan, "i", found.nan_propagation, f"{where}.reluNanOpt"),
        (coefficient, "d", found.coefficient, f"{where}.coef"),
    )


def set_swish_beta(state: State, descriptor: Address, beta: float) -> None:
    where = "cudnnSetActivationDescriptorSwishBeta.activationDesc"
    change(state, descriptor, ActivationDescriptor, where, lambda old: replace(old, swish_beta=beta))


def get_swish_beta(state: State, descriptor: Address, beta: Address) -> None:
    where = "cudnnGetActivationDescriptorSwishBeta"
    found = state.objects.get(descriptor, ActivationDescriptor, f"{where}.activationDesc")
    write_outputs((beta, "d", found.swish_beta, f"{where}.swish_beta"))


def set_pooling_2d(
    state: State, descriptor: Address, mode: int, nan: int, window_h: int, window_w: int, pad_h: int, pad_w: int,
    stride_h: int, stride_w: int,
) -> None:  # fmt: skip
    where = "cudnnSetPooling2dDescriptor"
    _set_pooling(state, descriptor, where, mode, nan, (window_h, window_w), (pad_h, pad_w), (stride_h, stride_w))


def set_pooling_nd(
    state: State, descriptor: Address, mode: int, nan: int, count: int, window: Address, pads: Address,
    strides: Address,
) -> None:  # fmt: skip
    where = "cudnnSetPoolingNdDescriptor"
    arrays = ((window, "windowDimA"), (pads, "paddingA"), (strides, "strideA"))
    _set_pooling(
        state, descriptor, where, mode, nan, *(integers(array, count, f"{where}.{name}") for array, name in arrays)
    )


def get_pooling_2d(
    state: State, descriptor: Address, mode: Address, nan: Address, window_h: Address, window_w: Address,
    pad_h: Address, pad_w: Address, stride_h: Address, stride_w: Address,
) -> None:  # fmt: skip
    where = "cudnnGetPooling2dDescriptor"
    found = was_set(state, descriptor, PoolingDescriptor, f"{where}.poolingDesc")
    if len(found.window) != 2:
        raise NotSupportedError.at(f"{where}.poolingDesc", expected="2 spatial dimensions", got=len(found.window))
    names = (
        "windowHeight",
        "windowWidth",
        "verticalPadding",
        "horizontalPadding",
        "verticalStride",
        "horizontalStride",
    )
    addresses = (window_h, window_w, pad_h, pad_w, stride_h, stride_w)
    outputs = zip(addresses, (*found.window, *found.paddings, *found.strides), names, strict=True)
    write_outputs(
        (mode, "i", found.mode, f"{where}.mode"),
        (nan, "i", found.nan_propagation, f"{where}.maxpoolingNanOpt"),
        *((address, "i", value, f"{where}.{name}") for address, value, name in outputs),
    )


def get_pooling_nd(
    state: State, descriptor: Address, requested: int, mode: Address, nan: Address, count: Address, window: Address,
    pads: Address, strides: Address,
) -> None:  # fmt: skip
    where = "cudnnGetPoolingNdDescriptor"
    found = was_set(state, descriptor, PoolingDescriptor, f"{where}.poolingDesc")
    write_integers(
        requested,
        (window, found.window, f"{where}.windowDimA"),
        (pads, found.paddings, f"{where}.paddingA"),
        (strides, found.strides, f"{where}.strideA"),
    )
    write_outputs(
        (mode, "i", found.mode, f"{where}.mode"),
        (nan, "i", found.nan_propagation, f"{where}.maxpoolingNanOpt"),
        (count, "i", len(found.window), f"{where}.nbDims"),
    )


def pooling_output_2d(
    state: State, descriptor: Address, image: Address, n: Address, c: Address, h: Address, w: Address
) -> None:
    where = "cudnnGetPooling2dForwardOutputDim"
    dims = _pooling_output(state, where, descriptor, image)
    if len(dims) != 4:
        raise NotSupportedError.at(f"{where}.poolingDesc", expected="2 spatial dimensions", got=len(dims) - 2)
    outputs = zip((n, c, h, w), dims, "nchw", strict=True)
    write_outputs(*((address, "i", value, f"{where}.{name}") for address, value, name in outputs))


def pooling_output_nd(state: State, descriptor: Address, image: Address, count: int, output: Address) -> None:
    where = "cudnnGetPoolingNdForwardOutputDim"
    dims = _pooling_output(state, where, descriptor, image)
    if count != len(dims):
        raise BadParamError.at(f"{where}.nbDims", expected=len(dims), got=count)
    write_integers(count, (output, dims, f"{where}.outputTensorDimA"))


def set_op_tensor(state: State, descriptor: Address, operation: int, compute_type: int, nan: int) -> None:
    where = "cudnnSetOpTensorDescriptor"

    def new(_: OpTensorDescriptor) -> OpTensorDescriptor:
        return OpTensorDescriptor(
            member(OpTensorOp, operation, f"{where}.opTensorOp"),
            member(DataType, compute_type, f"{where}.opTensorCompType"),
            member(NanPropagation, nan, f"{where}.opTensorNanOpt"),
            is_set=True,
        )

    change(state, descriptor, OpTensorDescriptor, f"{where}.opTensorDesc", new)


def get_op_tensor(state: State, descriptor: Address, operation: Address, compute_type: Address, nan: Address) -> None:
    where = "cudnnGetOpTensorDescriptor"
    found = was_set(state, descriptor, OpTensorDescriptor, f"{where}.opTensorDesc")
    write_outputs(
        (operation, "i", found.operation, f"{where}.opTensorOp"),
        (compute_type, "i", found.compute_type, f"{where}.opTensorCompType"),
        (nan, "i", found.nan_propagation, f"{where}.opTensorNanOpt"),
    )


def set_reduction(
    state: State, descriptor: Address, operation: int, compute_type: int, nan: int, indices: int, indices_type: int
) -> None:
    where = "cudnnSetReduceTensorDescriptor"

    def new(_: ReduceTensorDescriptor) -> ReduceTensorDescriptor:
        return ReduceTensorDescriptor(
            member(ReduceTensorOp, operation, f"{where}.reduceTensorOp"),
            member(DataType, compute_type, f"{where}.reduceTensorCompType"),
            member(NanPropagation, nan, f"{where}.reduceTensorNanOpt"),
            member(ReduceTensorIndices, indices, f"{where}.reduceTensorIndices"),
            member(IndicesType, indices_type, f"{where}.reduceTensorIndicesType"),
            is_set=True,
        )

    change(state, descriptor, ReduceTensorDescriptor, f"{where}.reduceTensorDesc", new)


def get_reduction(
    state: State, descriptor: Address, operation: Address, compute_type: Address, nan: Address, indices: Address,
    indices_type: Address,
) -> None:  # fmt: skip
    where = "cudnnGetReduceTensorDescriptor"
    found = was_set(state, descriptor, ReduceTensorDescriptor, f"{where}.reduceTensorDesc")
    write_outputs(
        (operation, "i", found.operation, f"{where}.reduceTensorOp"),
        (compute_type, "i", found.compute_type, f"{where}.reduceTensorCompType"),
        (nan, "i", found.nan_propagation, f"{where}.reduceTensorNanOpt"),
        (indices, "i", found.indices, f"{where}.reduceTensorIndices"),
        (indices_type, "i", found.indices_type, f"{where}.reduceTensorIndicesType"),
    )


def _set_pooling(
    state: State, descriptor: Address, where: str, mode: int, nan: int, window: tuple[int, ...],
    paddings: tuple[int, ...], strides: tuple[int, ...],
) -> None:  # fmt: skip
    def new(_: PoolingDescriptor) -> PoolingDescriptor:
        changed = PoolingDescriptor(
            member(PoolingMode, mode, f"{where}.mode"),
            member(NanPropagation, nan, f"{where}.maxpoolingNanOpt"),
            window,
            paddings,
            strides,
        )
        changed.check(where)
        return changed

    change(state, descriptor, PoolingDescriptor, f"{where}.poolingDesc", new)


def _pooling_output(state: State, where: str, descriptor: Address, image: Address) -> tuple[int, ...]:
    return was_set(state, descriptor, PoolingDescriptor, f"{where}.poolingDesc").output_dims(
        where, was_set(state, image, TensorDescriptor, f"{where}.inputTensorDesc")
    )


CALLS: Mapping[str, Call] = {
    **life_of(ActivationDescriptor, "Activation", "activationDesc"),
    **life_of(PoolingDescriptor, "Pooling", "poolingDesc"),
    **life_of(OpTensorDescriptor, "OpTensor", "opTensorDesc"),
    **life_of(ReduceTensorDescriptor, "ReduceTensor", "reduceTensorDesc"),
    "cudnnSetActivationDescriptor": set_activation,
    "cudnnGetActivationDescriptor": get_activation,
    "cudnnSetActivationDescriptorSwishBeta": set_swish_beta,
    "cudnnGetActivationDescriptorSwishBeta": get_swish_beta,
    "cudnnSetPooling2dDescriptor": set_pooling_2d,
    "cudnnSetPoolingNdDescriptor": set_pooling_nd,
    "cudnnGetPooling2dDescriptor": get_pooling_2d,
    "cudnnGetPoolingNdDescriptor": get_pooling_nd,
    "cudnnGetPooling2dForwardOutputDim": pooling_output_2d,
    "cudnnGetPoolingNdForwardOutputDim": pooling_output_nd,
    "cudnnSetOpTensorDescriptor": set_op_tensor,
    "cudnnGetOpTensorDescriptor": get_op_tensor,
    "cudnnSetReduceTensorDescriptor": set_reduction,
    "cudnnGetReduceTensorDescriptor": get_reduction,
}

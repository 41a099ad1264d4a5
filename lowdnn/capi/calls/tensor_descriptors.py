"""Descriptors of tensors and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from lowdnn.capi.calls.shared import change, integers, life_of, member, was_set, write_integers
from lowdnn.capi.descriptors import FilterDescriptor, TensorDescriptor, check_vectors, packed_strides
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import DataType, TensorFormat
from lowdnn.status import NotSupportedError


def set_tensor_4d(
    state: State, descriptor: Address, layout: int, data_type: int, n: int, c: int, h: int, w: int
) -> None:
    where = "cudnnSetTensor4dDescriptor"
    _set_packed(state, descriptor, where, layout, data_type, (n, c, h, w))


def set_tensor_4d_ex(
    state: State, descriptor: Address, data_type: int, n: int, c: int, h: int, w: int,
    n_stride: int, c_stride: int, h_stride: int, w_stride: int,
) -> None:  # fmt: skip
    strides = (n_stride, c_stride, h_stride, w_stride)
    _set_tensor(state, descriptor, "cudnnSetTensor4dDescriptorEx", data_type, (n, c, h, w), strides)


def set_tensor_nd(
    state: State, descriptor: Address, data_type: int, count: int, dims: Address, strides: Address
) -> None:
    where = "cudnnSetTensorNdDescriptor"
    given = [integers(array, count, f"{where}.{name}") for array, name in ((dims, "dimA"), (strides, "strideA"))]
    _set_tensor(state, descriptor, where, data_type, *given)


def set_tensor_nd_ex(state: State, descriptor: Address, layout: int, data_type: int, count: int, dims: Address) -> None:
    where = "cudnnSetTensorNdDescriptorEx"
    _set_packed(state, descriptor, where, layout, data_type, integers(dims, count, f"{where}.dimA"))


def get_tensor_4d(
    state: State, descriptor: Address, data_type: Address, n: Address, c: Address, h: Address, w: Address,
    n_stride: Address, c_stride: Address, h_stride: Address, w_stride: Address,
) -> None:  # fmt: skip
    where = "cudnnGetTensor4dDescriptor"
    found = was_set(state, descriptor, TensorDescriptor, f"{where}.tensorDesc")
    _check_four(where, found.dims)
    names = ("n", "c", "h", "w", "nStride", "cStride", "hStride", "wStride")
    addresses = (n, c, h, w, n_stride, c_stride, h_stride, w_stride)
    values = zip(addresses, (*found.dims, *found.strides), names, strict=True)
    write_outputs(
        (data_type, "i", found.data_type, f"{where}.dataType"),
        *((address, "i", value, f"{where}.{name}") for address, value, name in values),
    )


def get_tensor_nd(
    state: State, descriptor: Address, requested: int, data_type: Address, count: Address, dims: Address,
    strides: Address,
) -> None:  # fmt: skip
    where = "cudnnGetTensorNdDescriptor"
    found = was_set(state, descriptor, TensorDescriptor, f"{where}.tensorDesc")
    write_integers(requested, (dims, found.dims, f"{where}.dimA"), (strides, found.strides, f"{where}.strideA"))
    write_outputs(
        (data_type, "i", found.data_type, f"{where}.dataType"), (count, "i", len(found.dims), f"{where}.nbDims")
    )


def tensor_size(state: State, descriptor: Address, size: Address) -> None:
    where = "cudnnGetTensorSizeInBytes"
    found = was_set(state, descriptor, TensorDescriptor, f"{where}.tensorDesc")
    write_outputs((size, "Q", found.size_bytes, f"{where}.size"))


def set_filter_4d(
    state: State, descriptor: Address, data_type: int, layout: int, k: int, c: int, h: int, w: int
) -> None:
    _set_filter(state, descriptor, "cudnnSetFilter4dDescriptor", data_type, layout, (k, c, h, w))


def set_filter_nd(state: State, descriptor: Address, data_type: int, layout: int, count: int, dims: Address) -> None:
    where = "cudnnSetFilterNdDescriptor"
    _set_filter(state, descriptor, where, data_type, layout, integers(dims, count, f"{where}.filterDimA"))


def get_filter_4d(
    state: State, descriptor: Address, data_type: Address, layout: Address, k: Address, c: Address, h: Address,
    w: Address,
) -> None:  # fmt: skip
    where = "cudnnGetFilter4dDescriptor"
    found = was_set(state, descriptor, FilterDescriptor, f"{where}.filterDesc")
    _check_four(where, found.dims)
    values = zip((k, c, h, w), found.dims, "kchw", strict=True)
    write_outputs(
        (data_type, "i", found.data_type, f"{where}.dataType"),
        (layout, "i", found.format, f"{where}.format"),
        *((address, "i", value, f"{where}.{name}") for address, value, name in values),
    )


def get_filter_nd(
    state: State, descriptor: Address, requested: int, data_type: Address, layout: Address, count: Address,
    dims: Address,
) -> None:  # fmt: skip
    where = "cudnnGetFilterNdDescriptor"
    found = was_set(state, descriptor, FilterDescriptor, f"{where}.filterDesc")
    write_integers(requested, (dims, found.dims, f"{where}.filterDimA"))
    write_outputs(
        (data_type, "i", found.data_type, f"{where}.dataType"),
        (layout, "i", found.format, f"{where}.format"),
        (count, "i", len(found.dims), f"{where}.nbDims"),
    )


def filter_size(state: State, descriptor: Address, size: Address) -> None:
    where = "cudnnGetFilterSizeInBytes"
    found = was_set(state, descriptor, FilterDescriptor, f"{where}.filterDesc")
    write_outputs((size, "Q", found.size_bytes, f"{where}.size"))


def _set_tensor(
    state: State, descriptor: Address, where: str, data_type: int, dims: Sequence[int], strides: Sequence[int]
) -> None:
    def new(_: TensorDescriptor) -> TensorDescriptor:
        return _described(where, data_type, tuple(dims), tuple(strides))

    change(state, descriptor, TensorDescriptor, f"{where}.tensorDesc", new)


@lru_cache(maxsize=1024)
def _described(where: str, data_type: int, dims: tuple[int, ...], strides: tuple[int, ...]) -> TensorDescriptor:
    """Frameworks describe the same tensors again and again."""
    return TensorDescriptor.of(where, member(DataType, data_type, f"{where}.dataType"), dims, strides)


def _set_packed(
    state: State, descriptor: Address, where: str, layout: int, data_type: int, dims: Sequence[int]
) -> None:
    def new(_: TensorDescriptor) -> TensorDescriptor:
        kind, chosen = member(DataType, data_type, f"{where}.dataType"), member(TensorFormat, layout, f"{where}.format")
        check_vectors(where, kind, dims, chosen)
        return TensorDescriptor.of(where, kind, dims, packed_strides(chosen, dims, kind))

    change(state, descriptor, TensorDescriptor, f"{where}.tensorDesc", new)


def _set_filter(
    state: State, descriptor: Address, where: str, data_type: int, layout: int, dims: Sequence[int]
) -> None:
    def new(_: FilterDescriptor) -> FilterDescriptor:
        kind = member(DataType, data_type, f"{where}.dataType")
        return FilterDescriptor.of(where, kind, member(TensorFormat, layout, f"{where}.format"), dims)

    change(state, descriptor, FilterDescriptor, f"{where}.filterDesc", new)


def _check_four(where: str, dims: Sequence[int]) -> None:
    if len(dims) != 4:
        raise NotSupportedError.at(f"{where}.nbDims", expected="4 dimensions", got=len(dims))


CALLS: Mapping[str, Call] = {
    **life_of(TensorDescriptor, "Tensor", "tensorDesc"),
    **life_of(FilterDescriptor, "Filter", "filterDesc"),
    "cudnnSetTensor4dDescriptor": set_tensor_4d,
    "cudnnSetTensor4dDescriptorEx": set_tensor_4d_ex,
    "cudnnSetTensorNdDescriptor": set_tensor_nd,
    "cudnnSetTensorNdDescriptorEx": set_tensor_nd_ex,
    "cudnnGetTensor4dDescriptor": get_tensor_4d,
    "cudnnGetTensorNdDescriptor": get_tensor_nd,
    "cudnnGetTensorSizeInBytes": tensor_size,
    "cudnnSetFilter4dDescriptor": set_filter_4d,
    "cudnnSetFilterNdDescriptor": set_filter_nd,
    "cudnnGetFilter4dDescriptor": get_filter_4d,
    "cudnnGetFilterNdDescriptor": get_filter_nd,
    "cudnnGetFilterSizeInBytes": filter_size,
}

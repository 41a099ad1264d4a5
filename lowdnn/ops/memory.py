"""Conversion between logical arrays and their form in device memory, a flat array that spans a tensor's strides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.ops.tensor import Tensor, memory_layout, span_elements
from lowdnn.status import BadParamError, ShapeMismatchError


def to_memory(values: NDArray[Any], tensor: Tensor, background: NDArray[Any] | None = None) -> NDArray[Any]:
    """The flat storage of ``values`` (storage type, logical dims) in ``tensor``'s strides.

    Elements between those of the tensor keep ``background``'s (default: zeros). Along a stride of 0 all values must be
    equal; the last one is stored. Raises ShapeMismatchError, BadParamError.
    """
    check_storage(values, tensor)
    count = span_elements(tensor.dims, tensor.strides)
    memory = np.zeros(count, values.dtype) if background is None else background.copy()
    if memory.size:
        dims, strides = _layout(tensor, memory)
        np.lib.stride_tricks.as_strided(memory, dims, strides)[...] = values.reshape(dims)
    return memory


def from_memory(memory: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """The logical array (storage type) that lies in ``memory``, the flat storage of ``tensor``."""
    if tensor.element_count == 0:
        return np.zeros(tensor.dims, memory.dtype)
    dims, strides = _layout(tensor, memory)
    return np.lib.stride_tricks.as_strided(memory, dims, strides, writeable=False).reshape(tensor.dims).copy()


def viewed(
    values: NDArray[Any], strides: tuple[int, ...], dims: tuple[int, ...], view_strides: tuple[int, ...]
) -> NDArray[Any]:
    """The view with ``dims`` and ``view_strides`` of memory in which ``values`` lie with ``strides``, in elements.

    Elements of the view that are none of ``values`` are zeros.
    """
    count = max(span_elements(values.shape, strides), span_elements(dims, view_strides))
    memory = np.zeros(count, values.dtype)
    if not values.size:
        return memory.reshape(dims)
    whole = np.lib.stride_tricks.as_strided
    whole(memory, values.shape, tuple(stride * memory.itemsize for stride in strides))[...] = values
    return whole(memory, dims, tuple(stride * memory.itemsize for stride in view_strides)).copy()


def check_storage(values: NDArray[Any], tensor: Tensor) -> None:
    """Checks that ``values`` has the tensor's storage type and dims."""
    storage = dtypes.info(tensor.data_type).storage
    if values.dtype != storage:
        raise BadParamError.at(f"{tensor.label}.values.dtype", expected=storage, got=values.dtype)
    if values.shape != tensor.dims:
        raise ShapeMismatchError.at(f"{tensor.label}.values.shape", expected=list(tensor.dims), got=list(values.shape))


def _layout(tensor: Tensor, memory: NDArray[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims, and strides in bytes, of the tensor's elements in memory."""
    dims, strides = memory_layout(tensor)
    return dims, tuple(stride * memory.itemsize for stride in strides)

"""New arrays for the outputs of a graph, made by the library whose arrays are its inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from lowdnn.backend.handle import Handle
from lowdnn.frontend.data_types import name_of, to_backend
from lowdnn.frontend.device_tensor import DeviceTensor
from lowdnn.frontend.graph_tensor import Tensor


def torch_among(arrays: Iterable[object]) -> Any | None:
    """The first of ``arrays`` that is a PyTorch tensor on a GPU."""
    on_gpu = (array for array in arrays if getattr(array, "is_cuda", False))
    return next((array for array in on_gpu if hasattr(array, "new_empty_strided")), None)


def library_of(array: object) -> Any:
    """The package that defines the array's type, such as torch."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def output_array(tensor: Tensor, like: Any | None, handle: Handle) -> Any:
    """Memory for ``tensor``, not filled: PyTorch's where ``like`` is a tensor of it, otherwise a DeviceTensor.

    Raises UnsupportedDataTypeError, DeviceAllocationFailedError.
    """
    if like is None:
        stored_type = to_backend(tensor.get_data_type(), f"{tensor.label}.data_type")
        return DeviceTensor(handle, tuple(tensor.get_dim()), tuple(tensor.get_stride()), stored_type)
    dtype = getattr(library_of(like), name_of(tensor.get_data_type()))
    return like.new_empty_strided(tensor.get_dim(), tensor.get_stride(), dtype=dtype)

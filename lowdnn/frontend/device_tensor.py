"""Device tensors made from NumPy arrays, on whichever device a handle has."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowdnn import dtypes
from lowdnn.backend.handle import Handle
from lowdnn.checks import instance, integer, integers
from lowdnn.enums import DataType
from lowdnn.frontend.data_types import DataTypeLike, as_data_type, data_type, to_backend
from lowdnn.frontend.tensor_views import permuted, reshaped, sliced
from lowdnn.ops.tensor import has_overlap, packed_strides, span_elements
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.status import AttributeTypeError, BadParamError, ShapeMismatchError, UnsupportedDataTypeError

#: ml_dtypes' names of the types that NumPy lacks.
_ML_DTYPES = {
    DataType.BFLOAT16: "bfloat16",
    DataType.FP8_E4M3: "float8_e4m3fn",
    DataType.FP8_E5M2: "float8_e5m2",
    DataType.FP8_E8M0: "float8_e8m0fnu",
}


def from_numpy(
    array: NDArray[Any],
    handle: Handle,
    data_type: DataTypeLike = None,
    strides: tuple[int, ...] | list[int] | None = None,
) -> DeviceTensor:
    """A device tensor with the shape and the values of ``array``.

    data_type: the device tensor's; by default the array's own. Values are converted by the rules of ``dtypes``
    (round to nearest even; integers and fp8 saturate). Arrays of ml_dtypes types, and unsigned integers for a type that
    is stored as bits (bf16, fp8), are taken bit by bit.
    strides: in elements, one for each dimension, such as NHWC strides for an NCHW shape; by default C order.
    Raises UnsupportedDataTypeError, BadParamError (also for strides that give elements with different values one
    place), DeviceAllocationFailedError. Waits for the copy.
    """
    _check_array(array, "from_numpy.array")
    instance(handle, Handle, "from_numpy.handle")
    chosen = _data_type_for(array, data_type)
    chosen_strides = packed_strides(array.shape) if strides is None else integers(strides, "from_numpy.strides")
    if len(chosen_strides) != array.ndim or any(stride < 0 for stride in chosen_strides):
        raise BadParamError.at("from_numpy.strides", expected=f"{array.ndim} strides >= 0", got=list(chosen_strides))
    tensor = DeviceTensor(handle, array.shape, chosen_strides, chosen)
    tensor.copy_from(array)
    return tensor


def empty(
    shape: Sequence[int],
    handle: Handle,
    data_type: DataTypeLike = data_type.FLOAT,
    strides: Sequence[int] | None = None,
) -> DeviceTensor:
    """A device tensor whose memory is not written.

    shape, strides: in elements; strides are those of C order by default, ``channels_last_strides`` gives others.
    Raises BadParamError, UnsupportedDataTypeError, DeviceAllocationFailedError.
    """
    return _allocated("empty", shape, handle, data_type, strides)


def zeros(
    shape: Sequence[int],
    handle: Handle,
    data_type: DataTypeLike = data_type.FLOAT,
    strides: Sequence[int] | None = None,
) -> DeviceTensor:
    """A device tensor of zeros, which are written in the handle's stream. Arguments and errors are those of
    ``empty``."""
    tensor = _allocated("zeros", shape, handle, data_type, strides)
    if tensor.size_bytes:
        tensor.buffer.fill_bytes(0, handle.borrowed_stream())
    return tensor


class DeviceTensor(ProcessBound):
    """Memory of a handle's device with shape, strides (in elements) and data type; accepted by ``execute``.

    ``size_bytes`` spans the first to the end of the last element. ``dtype`` and ``data_type`` are the frontend's,
    ``stored_type`` is the backend's. Copies are ordered in the handle's stream and wait for it, also those that
    ``numpy.asarray`` makes. Close with ``close`` or ``with``.
    """

    def __init__(
        self,
        handle: Handle,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        data_type: DataType,
        *,
        buffer: DeviceBuffer | None = None,
    ) -> None:
        """buffer: the memory; new memory by default."""
        self.size_bytes = span_elements(shape, strides) * dtypes.info(data_type).size_bytes
        self.shape = shape
        self.strides = strides
        self.handle = handle
        self.stored_type = data_type
        self.buffer = buffer or DeviceBuffer.allocate(
            handle.runtime.context, self.size_bytes, data_type=data_type, shape=shape, strides=strides, label="tensor"
        )

    @property
    def ptr(self) -> int:
        """The device address; raises NotInitializedError once closed."""
        return self.buffer.address

    @property
    def dtype(self) -> data_type:
        return as_data_type(self.stored_type, "tensor.data_type")

    data_type = dtype

    def numpy(self) -> NDArray[Any]:
        """A packed copy in the logical shape.

        bf16 and fp8 come as arrays of ml_dtypes where it is installed, otherwise as fp32, which holds them exactly.
        """
        stored = self.buffer.to_host(self.handle.borrowed_stream())
        name = _ML_DTYPES.get(self.stored_type)
        if name is None:
            return stored
        try:
            return stored.view(getattr(import_module("ml_dtypes"), name))
        except ImportError:
            return dtypes.to_float64(stored, self.stored_type).astype(np.float32)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """``numpy()``, in ``dtype`` if that is given; raises BadParamError where no copy may be made."""
        if copy is False:
            raise BadParamError.at(
                "tensor.__array__.copy", expected="None or True", got=copy, hint="it lies on a device"
            )
        found = self.numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __bool__(self) -> bool:
        raise AttributeTypeError.at(
            "tensor", expected="a truth value on the host", got=repr(self), hint="numpy() copies its values"
        )

    def copy_from(self, array: NDArray[Any]) -> None:
        """Overwrites the elements with those of an array of the same shape, converted as in ``from_numpy``."""
        _check_array(array, "tensor.copy_from.array")
        if array.shape != self.shape:
            raise ShapeMismatchError.at("tensor.copy_from.array", expected=list(self.shape), got=list(array.shape))
        stored = _stored(array, self.stored_type)
        if has_overlap(self.shape, self.strides):
            _check_repeats(array, self.strides)
        memory = self._memory_to_fill(stored)
        if memory.size:
            byte_strides = tuple(stride * stored.itemsize for stride in self.strides)
            np.lib.stride_tricks.as_strided(memory, self.shape, byte_strides)[...] = stored
            self.buffer.copy_from_host(memory, self.handle.borrowed_stream())

    def _memory_to_fill(self, stored: NDArray[Any]) -> NDArray[Any]:
        """The span of this tensor's elements on the host; a view's holds what lies between them."""
        elements = span_elements(self.shape, self.strides)
        if elements == stored.size or not self.buffer.is_borrowed:
            return np.zeros(elements, stored.dtype)
        return self.buffer.view(0, self.size_bytes).to_host(self.handle.borrowed_stream()).view(stored.dtype)

    def view(self, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> DeviceTensor:
        """A view of this memory with another shape.

        strides: in elements; those of C order by default.  offset: elements from this tensor's first one to the view's.
        A view keeps the memory from being collected; once its tensor is closed, a view has no address.
        Raises BadParamError for negative numbers, SizeInsufficientError for elements outside of this tensor.
        """
        dims, steps = _layout("tensor.view", shape, strides)
        element_bytes = dtypes.info(self.stored_type).size_bytes
        offset_bytes = integer(offset, "tensor.view.offset", 0) * element_bytes
        size_bytes = span_elements(dims, steps) * element_bytes
        buffer = self.buffer.view(offset_bytes, size_bytes, data_type=self.stored_type, shape=dims, strides=steps)
        return DeviceTensor(self.handle, dims, steps, self.stored_type, buffer=buffer)

    def reshape(self, shape: Sequence[int]) -> DeviceTensor:
        """A view with another shape and the elements in the same row-major order; one extent may be -1.

        Raises ShapeMismatchError for another number of elements, BadParamError unless this tensor is packed.
        """
        return self.view(reshaped(self.shape, self.strides, shape))

    def permute(self, axes: Sequence[int]) -> DeviceTensor:
        """A view whose axis i is this tensor's axis ``axes[i]``.

        Raises BadParamError unless each axis occurs once.
        """
        chosen = permuted(len(self.shape), axes)
        return self.view([self.shape[axis] for axis in chosen], [self.strides[axis] for axis in chosen])

    #: A loop over elements would copy each by itself.
    __iter__: ClassVar[None] = None

    def __getitem__(self, index: object) -> DeviceTensor:
        """A view of the elements that integers, slices with positive steps and an ellipsis choose, as in NumPy.

        Raises IndexError for an index out of range or too many of them, BadParamError for anything else.
        """
        return self.view(*sliced(self.shape, self.strides, index))

    def close(self) -> None:
        """Frees the memory; a view frees nothing. Closing twice does nothing."""
        self.buffer.close()

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return self.buffer.__cuda_array_interface__

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        return self.buffer.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DeviceTensor {list(self.shape)}, strides {list(self.strides)}, {self.stored_type.name}>"


def _allocated(
    method: str, shape: Sequence[int], handle: Handle, kind: DataTypeLike, strides: Sequence[int] | None
) -> DeviceTensor:
    instance(handle, Handle, f"{method}.handle")
    dims, steps = _layout(method, shape, strides)
    where = f"{method}.data_type"
    return DeviceTensor(handle, dims, steps, to_backend(as_data_type(kind, where), where))


def _layout(
    method: str, shape: Sequence[int], strides: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides as tuples.

    Raises OutOfBoundError for a negative one, BadParamError where there are not as many strides as extents.
    """
    dims = integers(shape, f"{method}.shape", 0)
    steps = packed_strides(dims) if strides is None else integers(strides, f"{method}.strides", 0)
    if len(steps) != len(dims):
        raise BadParamError.at(f"{method}.strides", expected=f"{len(dims)} strides", got=list(steps))
    return dims, steps


def _check_array(array: object, where: str) -> None:
    if not isinstance(array, (np.ndarray, np.generic)):
        raise AttributeTypeError.at(where, expected="a NumPy array", got=f"{type(array).__name__} {array!r}"[:200])


def _check_repeats(array: NDArray[Any], strides: tuple[int, ...]) -> None:
    """Raises BadParamError where elements that share a place differ."""
    memory = np.zeros(span_elements(array.shape, strides), array.dtype)
    view = np.lib.stride_tricks.as_strided(memory, array.shape, [stride * array.itemsize for stride in strides])
    view[...] = array
    if view.tobytes() != array.tobytes():
        raise BadParamError.at(
            "tensor.strides", expected="a place of its own for each different element", got=list(strides)
        )


def _data_type_for(array: NDArray[Any], wanted: DataTypeLike) -> DataType:
    where = "from_numpy.data_type"
    return to_backend(as_data_type(array.dtype if wanted is None else wanted, where), where)


def _stored(array: NDArray[Any], target: DataType) -> NDArray[Any]:
    """``array`` in the storage of ``target``."""
    facts = dtypes.info(target)
    if facts.is_bit_pattern and array.dtype == facts.storage:
        return array
    if array.dtype.kind == "V" or array.dtype.name in _ML_DTYPES.values():
        source = next((known for known, name in _ML_DTYPES.items() if name == array.dtype.name), None)
        if source is None:
            raise UnsupportedDataTypeError.at("array.dtype", expected="a type of dtypes", got=array.dtype.name)
        bits = array.view(dtypes.info(source).storage)
        return bits if source is target else dtypes.from_float64(dtypes.to_float64(bits, source), target)
    return array if array.dtype == facts.storage else dtypes.from_float64(array, target)

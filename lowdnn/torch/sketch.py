"""From a call's tensors to the graphs that compute it: places of memory, tensors of graphs over them, and the steps.

A place is a number: of an argument, in the order of the call's tensors, or of a new tensor behind them. Several tensors
of graphs may lie at one place, each with dims and strides of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import outputs_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides

Dims = tuple[int, ...]

#: The largest alignment in bytes that an engine needs; torch allocates at larger ones.
MAX_ALIGNMENT = 16

#: The types that lowdnn's kernels and torch share.
DATA_TYPES: dict[Any, DataType] = {
    torch.float64: DataType.DOUBLE,
    torch.float32: DataType.FLOAT,
    torch.float16: DataType.HALF,
    torch.bfloat16: DataType.BFLOAT16,
    torch.int64: DataType.INT64,
    torch.int32: DataType.INT32,
    torch.uint8: DataType.UINT8,
    torch.int8: DataType.INT8,
    torch.bool: DataType.BOOLEAN,
    torch.float8_e4m3fn: DataType.FP8_E4M3,
    torch.float8_e5m2: DataType.FP8_E5M2,
    torch.float8_e8m0fnu: DataType.FP8_E8M0,
}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


#: Places of parts are numbered from here on while a call is sketched.
_FIRST_PART = 1 << 20


class Declined(Exception):
    """The call is not for lowdnn; the message says why, in the words of ``explain``."""


@dataclass(frozen=True)
class New:
    """A tensor as it lies in memory; those that the call returns are allocated by torch."""

    shape: Dims
    strides: Dims
    dtype: Any


@dataclass(frozen=True)
class Step:
    """One graph, and the place of each of its tensors in memory, by uid; that of the first value is -1."""

    graph: OperationGraph
    places: dict[int, int]


class Sketch:
    """The graphs of one call.

    tensors: the call's own, ABSENT where there is none.  new: the tensors that it returns.  steps: see ``end_step``.
    parts: see ``part``.
    values: numbers on the host that travel with the launches.  given: the places among them of those that each call has
    anew (``Overload.given``).
    is_deterministic: whether each run has to give the same bits.
    allows_tf32: whether products may round fp32 operands to TF32.
    """

    def __init__(
        self, tensors: Sequence[Any], alignment: int, *, is_deterministic: bool = False, allows_tf32: bool = False
    ) -> None:
        """alignment: a power of two that divides the addresses of all tensors."""
        self.tensors = tensors
        self.is_deterministic, self.allows_tf32 = is_deterministic, allows_tf32
        self.new: list[New] = []
        self.parts: list[tuple[int, int]] = []
        self.given: list[int] = []
        self.steps: list[Step] = []
        self.values: list[Any] = []
        self._alignment = alignment
        self._operations: list[Any] = []
        self._places: dict[int, int] = {}
        self._kinds: list[New] = []
        self._uid = 0

    def allocate(self, shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None) -> int:
        """The place of a new tensor, by default a contiguous one."""
        dims = tuple(shape)
        self.new.append(New(dims, packed_strides(dims) if strides is None else tuple(strides), dtype))
        return len(self.tensors) + len(self.new) - 1

    def part(self, place: int, offset_bytes: int, shape: Sequence[int], dtype: Any) -> int:
        """The place of a contiguous tensor that lies within another one; no two parts overlap."""
        dims = tuple(shape)
        self.parts.append((place, offset_bytes))
        self._kinds.append(New(dims, packed_strides(dims), dtype))
        return _FIRST_PART + len(self.parts) - 1

    def at(self, place: int, dims: Sequence[int] | None = None, strides: Sequence[int] | None = None) -> Tensor:
        """A tensor of the graph that lies there, by default with the dims and strides of the place.

        ``dims`` alone are those of a contiguous tensor.
        """
        own = self._lying_at(place)
        if dims is None:
            dims, strides = own.shape, own.strides
        elif strides is None:
            if not _is_packed(own.shape, own.strides):
                raise Declined(f"strides {list(own.strides)} of {list(own.shape)}, where contiguous ones are expected")
            strides = packed_strides(tuple(dims))
        data_type = data_type_of(own.dtype)
        size_bytes = dtypes.info(data_type).size_bytes
        alignment = self._alignment_at(place)
        if alignment < size_bytes:
            raise Declined(f"an address that is no multiple of {size_bytes} bytes")
        tensor = Tensor(self._next(), data_type, tuple(dims), tuple(strides), alignment)
        self._places[tensor.uid] = place
        return tensor

    def virtual(self, dims: Sequence[int], data_type: DataType) -> Tensor:
        """A tensor between two operations."""
        shape = tuple(dims)
        return Tensor(self._next(), data_type, shape, packed_strides(shape), MAX_ALIGNMENT, is_virtual=True)

    def constant(self, value: float, rank: int, data_type: DataType) -> Tensor:
        """A number that is part of the graph."""
        ones = (1,) * rank
        return Tensor(self._next(), data_type, ones, ones, MAX_ALIGNMENT, constant_value=value)

    def value(self, value: float, rank: int, data_type: DataType) -> Tensor:
        """A number of type FLOAT or DOUBLE that travels with the launch."""
        ones = (1,) * rank
        tensor = Tensor(self._next(), data_type, ones, ones, MAX_ALIGNMENT, is_by_value=True)
        self.values.append(ctypes.c_double(value) if data_type is DataType.DOUBLE else ctypes.c_float(value))
        self._places[tensor.uid] = -len(self.values)
        return tensor

    def given_value(self, rank: int, data_type: DataType) -> Tensor:
        """The number that each call has anew, as ``value`` has one."""
        self.given.append(len(self.values))
        return self.value(0.0, rank, data_type)

    def add(self, operation: Any) -> None:
        self._operations.append(operation)

    def pointwise(
        self, mode: PointwiseMode, y: Tensor, *inputs: Tensor, alphas: tuple[float, ...] = (), axis: int = -1
    ) -> Tensor:
        """Adds y = mode(alphas[0] * inputs[0], ...), computed in the wider of the types; returns y."""
        compute = compute_type_of(y.data_type, *(tensor.data_type for tensor in inputs))
        ports: dict[str, Any] = dict(zip(("x", "b", "t"), inputs, strict=False))
        scales: dict[str, Any] = dict(zip(("alpha1", "alpha2"), alphas, strict=False))
        self.add(PointwiseOperation(Pointwise(mode, compute, axis=axis), y=y, **ports, **scales))
        return y

    def reduced(self, x: Tensor, y: Tensor, operator: ReduceTensorOp = ReduceTensorOp.ADD) -> Tensor:
        """Adds y = operator over the axes of x along which y has extent 1; returns y."""
        compute = compute_type_of(x.data_type, y.data_type)
        self.add(ReductionOperation(Reduction(operator, compute), x, y))
        return y

    def is_new(self, place: int) -> bool:
        """Whether the call allocates what lies there."""
        return self._whole(place) >= len(self.tensors)

    def shape_at(self, place: int) -> Dims:
        """The shape of what lies there."""
        return self._lying_at(place).shape

    def strides_at(self, place: int) -> Dims:
        """The strides of what lies there."""
        return self._lying_at(place).strides

    def end_step(self) -> None:
        """Makes the operations since the last step a graph: one plan, launched behind those of the steps before."""
        self.add_step(OperationGraph(tuple(self._operations)), self._places)
        self._operations, self._places, self._uid = [], {}, 0

    def add_step(self, graph: OperationGraph, places: Mapping[int, int]) -> None:
        """Adds a graph that was made elsewhere. places: of its tensors in memory, by uid."""
        self.steps.append(Step(graph, dict(places)))

    def span_bytes(self, place: int) -> int:
        """The bytes from the first to the last element of what lies there."""
        own = self._lying_at(place)
        last = sum((extent - 1) * step for extent, step in zip(own.shape, own.strides, strict=True))
        return (last + 1) * dtypes.info(data_type_of(own.dtype)).size_bytes

    def place_of(self, place: int) -> int:
        """Where a step's tensor lies in the end: parts come behind all tensors, values behind all parts."""
        count = len(self.tensors) + len(self.new)
        if place >= _FIRST_PART:
            return count + place - _FIRST_PART
        return place if place >= 0 else count + len(self.parts) - 1 - place

    def _whole(self, place: int) -> int:
        """The place of the tensor that holds a part; other places are their own."""
        return self.parts[place - _FIRST_PART][0] if place >= _FIRST_PART else place

    def _alignment_at(self, place: int) -> int:
        """A power of two in bytes that divides the address of what lies there."""
        offset_bytes = self.parts[place - _FIRST_PART][1] if place >= _FIRST_PART else 0
        alignment = MAX_ALIGNMENT if self.is_new(place) else self._alignment
        return min(alignment, offset_bytes & -offset_bytes) if offset_bytes else alignment

    def _lying_at(self, place: int) -> New:
        """Shape, strides and type of a place."""
        if place >= _FIRST_PART:
            return self._kinds[place - _FIRST_PART]
        if self.is_new(place):
            return self.new[place - len(self.tensors)]
        tensor = self.tensors[place]
        return New(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    def _next(self) -> int:
        self._uid += 1
        return self._uid


def written_uids(graph: OperationGraph) -> set[int]:
    """The uids of the tensors that a graph writes to memory."""
    tensors = (tensor for operation in graph.operations for tensor in outputs_of(operation).values())
    return {tensor.uid for tensor in tensors if not tensor.is_virtual}


def data_type_of(dtype: Any) -> DataType:
    found = DATA_TYPES.get(dtype)
    if found is None:
        raise Declined(f"{name_of(dtype)}, which lowdnn's kernels do not have")
    return found


def check_floats(*tensors: Any) -> None:
    """Declines tensors that are not all of one float type."""
    dtype = tensors[0].dtype
    if dtype not in FLOATS:
        raise Declined(f"{name_of(dtype)}, where a float type of 16, 32 or 64 bits is expected")
    for tensor in tensors:
        if tensor.dtype not in (None, dtype):
            raise Declined(f"{name_of(dtype)} and {name_of(tensor.dtype)} in one call")


def compute_type_of(*data_types: DataType) -> DataType:
    """DOUBLE where FLOAT would round a value that is read or written, else FLOAT."""
    wide = (DataType.DOUBLE, DataType.INT32, DataType.INT64)
    return DataType.DOUBLE if any(data_type in wide for data_type in data_types) else DataType.FLOAT


def name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def suggested_strides(like: Sequence[Any], shape: Sequence[int]) -> Dims:
    """The strides that torch gives a result: channels last where one of ``like`` is, otherwise contiguous."""
    dims = tuple(shape)
    order = (1, *range(2, len(dims))) if any(is_channels_last(tensor) for tensor in like) else ()
    if not order or len(dims) not in (4, 5):
        return packed_strides(dims)
    moved = (dims[0], *dims[2:], dims[1])
    strides = packed_strides(moved)
    return (strides[0], strides[-1], *strides[1:-1])


def strides_like(tensor: Any) -> Dims:
    """The strides that torch gives a result which is to lie as the tensor does."""
    return tuple(torch.empty_like(tensor, device="meta").stride())


def is_channels_last(tensor: Any) -> bool:
    """Whether torch takes the tensor's strides for channels last, as ``suggest_memory_format`` does."""
    if tensor.shape is None or len(tensor.shape) not in (4, 5):
        return False
    from torch._prims_common import suggest_memory_format

    return bool(suggest_memory_format(tensor) != torch.contiguous_format)


def collapsed(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Extent and stride of neighbouring axes as one. Declines axes that are none."""
    extent, stride = 1, 1
    for own, step in zip(reversed(shape), reversed(strides), strict=True):
        if own == 1:
            continue
        if extent == 1:
            stride = step
        elif step != stride * extent:
            raise Declined(f"strides {list(strides)} of {list(shape)}, which do not make one axis")
        extent *= own
    return extent, stride


def _is_packed(shape: Dims, strides: Dims) -> bool:
    """Whether strides are those of a contiguous tensor, but for axes of extent 1."""
    expected = packed_strides(shape)
    return all(extent == 1 or own == wanted for extent, own, wanted in zip(shape, strides, expected, strict=True))

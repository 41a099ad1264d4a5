"""The arguments of collectives, checked in the same way for every communicator."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import checks, dtypes
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.dtypes import Kind
from lowdnn.enums import DataType
from lowdnn.runtime.context import Context
from lowdnn.runtime.interchange import view_of
from lowdnn.runtime.stream import Stream
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    InvalidValueError,
    ShapeMismatchError,
    StreamMismatchError,
    UnsupportedDataTypeError,
    UnsupportedLayoutError,
)

#: Types that are reduced. Sums in fp8 would keep few of their bits: convert first.
_REDUCED = (
    DataType.DOUBLE,
    DataType.FLOAT,
    DataType.HALF,
    DataType.BFLOAT16,
    DataType.INT8,
    DataType.UINT8,
    DataType.INT32,
    DataType.INT64,
)


@dataclass(frozen=True)
class Operand:
    """``count`` elements of ``data_type`` from ``address`` on, without gaps. ``owner`` keeps the memory alive."""

    address: int
    data_type: DataType
    count: int
    owner: object

    @property
    def size_bytes(self) -> int:
        return self.count * dtypes.info(self.data_type).size_bytes


@dataclass(frozen=True)
class Checks:
    """The checks of rank ``rank`` of ``size`` on the device of ``context``. Each raises BadParamError or
    NotSupportedError, in the class that fits."""

    rank: int
    size: int
    context: Context

    def all_reduce(self, source: object, target: object, op: ReduceOp, stream: Stream) -> tuple[Operand, Operand]:
        call = "all_reduce"
        given, made = self._pair(call, source, target, stream)
        _check_reduction(call, op, given.data_type)
        _check_count(call, made, given.count, f"{given.count}, as source")
        _check_overlap(call, given, made, in_place=0)
        return given, made

    def all_gather(self, source: object, target: object, stream: Stream) -> tuple[Operand, Operand]:
        call = "all_gather"
        given, made = self._pair(call, source, target, stream)
        _check_count(call, made, self.size * given.count, f"{self.size} times the {given.count} of source")
        _check_overlap(call, given, made, in_place=self.rank * given.size_bytes)
        return given, made

    def reduce_scatter(self, source: object, target: object, op: ReduceOp, stream: Stream) -> tuple[Operand, Operand]:
        call = "reduce_scatter"
        given, made = self._pair(call, source, target, stream)
        _check_reduction(call, op, given.data_type)
        if given.count != self.size * made.count:
            raise ShapeMismatchError.at(
                f"{call}.source",
                expected=f"{self.size} times the {made.count} elements of target",
                got=given.count,
            )
        _check_overlap(call, made, given, in_place=self.rank * made.size_bytes)
        return given, made

    def broadcast(self, buffer: object, root: int, stream: Stream) -> Operand:
        checks.integer(root, "broadcast.root", 0, self.size - 1)
        return self._moved("broadcast.buffer", buffer, stream)

    def moved(self, call: str, field: str, buffer: object, peer: int, stream: Stream) -> Operand:
        """The buffer of a send or a recv."""
        checks.integer(peer, f"{call}.peer", 0, self.size - 1)
        if peer == self.rank:
            raise InvalidValueError.at(
                f"{call}.peer", expected="another rank", got=peer, hint="copy the buffer instead"
            )
        return self._moved(f"{call}.{field}", buffer, stream)

    def check_stream(self, call: str, stream: object) -> None:
        if not isinstance(stream, Stream):
            raise AttributeTypeError.at(
                f"{call}.stream", expected="a Stream", got=repr(stream), hint="Stream.borrow takes any"
            )
        if not stream.context.is_of_device(self.context):
            raise StreamMismatchError.at(
                f"{call}.stream",
                expected=f"a stream of device {self.context.device}",
                got=f"one of device {stream.context.device}",
            )

    def _pair(self, call: str, source: object, target: object, stream: Stream) -> tuple[Operand, Operand]:
        given, made = self._moved(f"{call}.source", source, stream), self._moved(f"{call}.target", target, stream)
        if given.data_type is not made.data_type:
            raise UnsupportedDataTypeError.at(
                f"{call}.target", expected=f"{given.data_type.name}, as source", got=made.data_type.name
            )
        return given, made

    def _moved(self, where: str, buffer: object, stream: Stream) -> Operand:
        self.check_stream(where.partition(".")[0], stream)
        if isinstance(buffer, int):
            raise AttributeTypeError.at(where, expected="a buffer with a data type and a shape", got="an address")
        found = view_of(buffer, self.context, stream.handle, where)
        if found.data_type is None or found.shape is None:
            raise UnsupportedDataTypeError.at(where, expected="a data type and a shape", got="raw bytes")
        if not _is_dense(found.shape, found.strides):
            raise UnsupportedLayoutError.at(
                where, expected="elements without gaps or overlap", got=f"dims {found.shape}, strides {found.strides}"
            )
        return Operand(found.address, found.data_type, prod(found.shape), found)


def _is_dense(dims: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether each element has a place of its own and no place is left out."""
    if strides is None or 0 in dims:
        return True
    expected = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(strides, dims, strict=True) if extent > 1):
        if stride != expected:
            return False
        expected *= extent
    return True


def _check_reduction(call: str, op: object, data_type: DataType) -> None:
    if not isinstance(op, ReduceOp):
        raise AttributeTypeError.at(f"{call}.op", expected="a ReduceOp", got=repr(op))
    if data_type not in _REDUCED:
        names = ", ".join(one.name for one in _REDUCED)
        raise UnsupportedDataTypeError.at(f"{call}.source", expected=f"one of {names}", got=data_type.name)
    if op is ReduceOp.AVG and dtypes.info(data_type).kind is not Kind.FLOAT:
        raise UnsupportedDataTypeError.at(f"{call}.source", expected="a float type, for AVG", got=data_type.name)


def _check_count(call: str, target: Operand, count: int, rule: str) -> None:
    if target.count != count:
        raise ShapeMismatchError.at(f"{call}.target", expected=f"elements: {rule}", got=target.count)


def _check_overlap(call: str, inner: Operand, outer: Operand, *, in_place: int) -> None:
    """``inner`` may lie ``in_place`` bytes behind the start of ``outer``, or outside of it."""
    offset = inner.address - outer.address
    overlaps = -inner.size_bytes < offset < outer.size_bytes and inner.count and outer.count
    if overlaps and offset != in_place:
        raise BadParamError.at(
            f"{call}.target",
            expected=f"memory apart from source, or in place: {in_place} bytes apart",
            got=f"{offset} bytes apart",
        )

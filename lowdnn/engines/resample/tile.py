"""What both directions share: a thread's work, the launch with its arguments, parts of kernel names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.engines.launch import bytes_of, ceil_div, divider, fma_unit, i64, moved_bytes
from lowdnn.engines.resample.axes import axis_struct
from lowdnn.engines.resample.problem import Problem, strides
from lowdnn.enums import DataType
from lowdnn.plan import Argument, Launch, Scalar, ScalarType, Struct, TensorPointer, Work

CHANNELS = (1, 2, 4, 8)
TILES = (1, 2, 4, 8, 16)
BLOCK_SIZES = (64, 128, 256)

_SCALARS = {DataType.FLOAT: ScalarType.F32, DataType.DOUBLE: ScalarType.F64, DataType.INT32: ScalarType.I32}


@dataclass(frozen=True)
class Tile:
    """A thread's work: neighbouring channels, neighbouring elements of the target along the columns.

    threads: of a block.
    """

    channels: int
    columns: int
    threads: int

    def index_type(self, problem: Problem) -> str:
        """The type of the number of a thread's group."""
        return "u32" if prod(problem.radices(self.channels, self.columns)) < 2**31 else "i64"


def launch(problem: Problem, tile: Tile) -> Launch:
    """Each byte that is read counts once."""
    radices = problem.radices(tile.channels, tile.columns)
    beside_dag = [tensor for tensor in (problem.source, problem.index, problem.searched) if tensor is not None]
    return Launch(
        kernel=0,
        grid=(ceil_div(prod(radices), tile.threads), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(Struct(tuple(_fields(problem, radices))),),
        work=Work(
            flops=problem.operation.flops,
            bytes=bytes_of(beside_dag) + moved_bytes(problem.dag),
            unit=fma_unit(problem.resample.compute_type),
        ),
    )


def rules_name(problem: Problem) -> str:
    """What is computed, for kernel names: types, mode, padding, divisor."""
    mode = "max" if problem.is_maximum else "linear" if problem.is_linear else "sum"
    types = [problem.source.data_type, *([problem.searched.data_type] if problem.searched else ())]
    names = [dtypes.info(t).short_name for t in types] + [dtypes.info(problem.resample.compute_type).c_type]
    words = [*names, mode, problem.padding.lower(), problem.divisor.lower()]
    return "_".join([*words, "nan"] if problem.nan_wins else words)


def places_name(problem: Problem, width: int) -> str:
    """The index in kernel names: its type, elements of an access."""
    return "" if problem.index is None else f"_{dtypes.info(problem.index.data_type).c_type}x{width}"


def index_type(problem: Problem) -> str:
    """The C type of the index; that of none is not looked at."""
    return "i8" if problem.index is None else dtypes.info(problem.index.data_type).c_type


def _fields(problem: Problem, radices: tuple[int, ...]) -> Iterator[Argument]:
    """Those of the kernels' ``Params``."""
    yield from i64((prod(radices),))
    yield from (Struct(divider(radix)) for radix in (1, *radices[1:]))
    yield TensorPointer(problem.source.uid)
    yield from i64(strides(problem.source))
    yield from map(axis_struct, problem.axes)
    yield _scalar(problem, problem.tap_count if problem.divisor == "ALL" else 1)
    places = problem.index or problem.searched
    if places is not None:
        yield TensorPointer(places.uid)
        yield from i64(strides(places))
    yield problem.functor.arguments


def _scalar(problem: Problem, value: int) -> Scalar:
    """A number of the compute type."""
    kind = _SCALARS[problem.resample.compute_type]
    return Scalar(kind, value if kind is ScalarType.I32 else float(value))

"""What both directions share: a thread's work, the launch with its arguments, parts of kernel names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import bytes_of, ceil_div, divider, fma_unit, i64, moved_bytes
from lowdnn.engines.resample.axes import axis_struct
from lowdnn.engines.resample.problem import Problem, strides
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Launch, Scalar, ScalarType, Struct, TensorPointer, Work

CHANNELS = (1, 2, 4, 8)
#: Elements of a thread along rows and columns, at most.
_MAX_ROWS = 8
_MAX_COLUMNS = 16

BLOCK_SIZES = (64, 128, 256)

#: Bytes of one access.
ACCESS_BYTES = 16

#: Accesses of a thread in unrolled code, and their bytes, all of which may be in registers at a time.
_MAX_READS = 128
_MAX_READ_BYTES = 800

#: Places of a window that a ``LargestKey`` tells apart.
_MOST_KEYED_PLACES = 1 << 14

_SCALARS = {DataType.FLOAT: ScalarType.F32, DataType.DOUBLE: ScalarType.F64, DataType.INT32: ScalarType.I32}


@dataclass(frozen=True)
class Tile:
    """A thread's work: neighbouring channels, neighbouring elements of the target along rows and columns.

    threads: of a block.
    """

    channels: int
    rows: int
    columns: int
    threads: int

    def index_type(self, problem: Problem) -> str:
        """The type of the number of a thread's group."""
        return counter_type(prod(problem.radices(self.channels, self.rows, self.columns)))


def counts(problem: Problem, periods: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The choices of a thread's rows and of its columns, where what they have in common repeats after ``periods``.

    Columns that are written at once must be a power of two.
    """
    rows, columns = _counts(periods[0], _MAX_ROWS), _counts(periods[1], _MAX_COLUMNS)
    return rows, tuple(count for count in columns if problem.channels_last or count & (count - 1) == 0)


def can_unroll(tensor: Tensor, channels: int, rows: int, columns: int) -> bool:
    """Whether a thread can read so much of the tensor in unrolled code."""
    reads = rows * columns
    unpacked_bytes = max(tensor.element_bytes, 2)  # single bytes are taken apart at once
    return reads <= _MAX_READS and reads * channels * unpacked_bytes <= _MAX_READ_BYTES


def chosen_tile(
    problem: Problem, channels: int, choices: Iterable[tuple[int, int]], most: tuple[int, int], arch: ArchSpec
) -> tuple[int, int]:
    """The largest of the tiles (rows, columns) up to ``most`` that leave the device full of threads.

    What a tile has beyond the tensor's edges does not count; of equal ones, the squarest, then the widest. Columns that
    are written at once divide the tensor's where any do: threads at its edge write element by element, and those beside
    them wait.
    """
    rows_extent, columns_extent = problem.space.extents[3:]
    is_whole = not problem.channels_last and columns_extent % 2 == 0

    def used(tile: tuple[int, int]) -> Fraction:
        down, along = ceil_div(rows_extent, tile[0]), ceil_div(columns_extent, tile[1])
        return Fraction(rows_extent * columns_extent, down * along) if down * along else Fraction(0)

    wanted = arch.sm_count * arch.threads_per_sm // 4
    full = [
        tile
        for tile in choices
        if tile[0] <= most[0]
        and tile[1] <= most[1]
        and not (is_whole and columns_extent % tile[1])
        and prod(problem.radices(channels, *tile)) >= wanted
    ]
    return max(full, key=lambda tile: (used(tile), -prod(tile), min(tile), tile[1]), default=(1, 1))


def launch(problem: Problem, tile: Tile) -> Launch:
    """Each byte that is read counts once."""
    radices = problem.radices(tile.channels, tile.rows, tile.columns)
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


def rules_name(problem: Problem, padding: str) -> str:
    """What is computed, for kernel names: types, mode, padding, divisor."""
    mode = "max" if problem.is_maximum else "linear" if problem.is_linear else "sum"
    types = [problem.source.data_type, *([problem.searched.data_type] if problem.searched else ())]
    names = [dtypes.info(t).short_name for t in types] + [dtypes.info(problem.resample.compute_type).c_type]
    words = [*names, mode, padding.lower(), problem.divisor.lower()]
    return "_".join([*words, "nan"] if problem.nan_wins else words)


def result_type(problem: Problem, channels: int, *, has_place: bool) -> str:
    """The C++ type of what becomes of a window's values (``window_results.cuh``)."""
    compute_type = dtypes.info(problem.resample.compute_type).c_type
    if not problem.is_maximum:
        return f"Sum<{compute_type},{channels}>"
    image = problem.searched or problem.source
    stored, nan = dtypes.info(image.data_type).c_type, "true" if problem.nan_wins else "false"
    if has_place:
        has_key = problem.looks_for_halves and prod(axis.span for axis in problem.axes) <= _MOST_KEYED_PLACES
        name, kind = ("LargestKey", stored) if has_key else ("LargestPlace", compute_type)
    else:
        name, kind = ("LargestPair", stored) if problem.looks_for_halves and channels > 1 else ("Largest", compute_type)
    return f"{name}<{kind},{channels},{nan}>"


def places_name(problem: Problem, width: int) -> str:
    """The index in kernel names: its type, elements of an access."""
    return "" if problem.index is None else f"_{dtypes.info(problem.index.data_type).c_type}x{width}"


def index_type(problem: Problem) -> str:
    """The C type of the index; that of none is not looked at."""
    return "i8" if problem.index is None else dtypes.info(problem.index.data_type).c_type


def _counts(period: int, most: int) -> tuple[int, ...]:
    return tuple(sorted({1, *(period << power for power in range(most.bit_length()) if period << power <= most)}))


def _fields(problem: Problem, radices: tuple[int, ...]) -> Iterator[Argument]:
    """The fields of the kernels' ``Params``."""
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

"""A thread's work in both directions, the launch with its arguments, and parts of kernel names."""

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

#: Values of the knob LOAD_SIZE: channels of a thread.
CHANNELS = (1, 2, 4, 8)
#: Rows of a thread at most.
_MAX_ROWS = 8
#: Columns of a thread at most.
_MAX_COLUMNS = 16

#: Values of the knob BLOCK_SIZE: threads of a block.
BLOCK_SIZES = (64, 128, 256)

#: Bytes of one access.
ACCESS_BYTES = 16

#: Accesses of a thread at most in unrolled code, all of which may be in registers at once.
_MAX_READS = 128
#: Bytes of these accesses at most.
_MAX_READ_BYTES = 800

#: Taps of a window at most that a ``LargestKey`` distinguishes.
_MOST_KEYED_TAPS = 1 << 14

_SCALARS = {DataType.FLOAT: ScalarType.F32, DataType.DOUBLE: ScalarType.F64, DataType.INT32: ScalarType.I32}


@dataclass(frozen=True)
class Tile:
    """A thread's work: neighbouring channels, and neighbouring elements of the target along rows and columns.

    threads: threads of a block.
    """

    channels: int
    rows: int
    columns: int
    threads: int

    def index_type(self, problem: Problem) -> str:
        """The C++ type of the number of a thread's group."""
        return counter_type(prod(problem.radices(self.channels, self.rows, self.columns)))


def counts(problem: Problem, periods: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The possible numbers of a thread's rows, and of its columns: multiples of ``periods`` by powers of two, and 1.

    Columns that are written at once must be a power of two.
    """
    rows, columns = _counts(periods[0], _MAX_ROWS), _counts(periods[1], _MAX_COLUMNS)
    return rows, tuple(count for count in columns if problem.channels_last or count & (count - 1) == 0)


def can_unroll(tensor: Tensor, channels: int, rows: int, columns: int) -> bool:
    """Whether a thread can read ``rows`` x ``columns`` positions of ``channels`` channels in unrolled code."""
    reads = rows * columns
    unpacked_bytes = max(tensor.element_bytes, 2)  # single bytes are unpacked at once
    return reads <= _MAX_READS and reads * channels * unpacked_bytes <= _MAX_READ_BYTES


def chosen_tile(
    problem: Problem, channels: int, choices: Iterable[tuple[int, int]], most: tuple[int, int], arch: ArchSpec
) -> tuple[int, int]:
    """The largest of the tiles (rows, columns) up to ``most`` that leave enough threads for the device.

    Elements beyond the tensor's edges do not count. Among equal tiles the squarest wins, then the widest. Columns that
    are written at once divide the tensor's if any do: threads at the edge would write element by element, and the
    others of their warp would wait.
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
    """The launch; its work counts each byte that is read once."""
    radices = problem.radices(tile.channels, tile.rows, tile.columns)
    read = [tensor for tensor in (problem.source, problem.index, problem.searched) if tensor is not None]
    return Launch(
        kernel=0,
        grid=(ceil_div(prod(radices), tile.threads), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(Struct(tuple(_fields(problem, radices))),),
        work=Work(
            flops=problem.operation.flops,
            bytes=bytes_of(read) + moved_bytes(problem.dag),
            unit=fma_unit(problem.resample.compute_type),
        ),
    )


def rules_name(problem: Problem, padding: str) -> str:
    """The part of kernel names for types, mode, padding and divisor."""
    mode = "max" if problem.is_maximum else "linear" if problem.is_linear else "sum"
    types = [problem.source.data_type, *([problem.searched.data_type] if problem.searched else ())]
    names = [dtypes.info(t).short_name for t in types] + [dtypes.info(problem.resample.compute_type).c_type]
    words = [*names, mode, padding.lower(), problem.divisor.lower()]
    return "_".join([*words, "nan"] if problem.nan_wins else words)


def result_type(problem: Problem, channels: int, *, has_argmax: bool) -> str:
    """The C++ type that reduces a window's values (``window_results.cuh``)."""
    compute_type = dtypes.info(problem.resample.compute_type).c_type
    if not problem.is_maximum:
        return f"Sum<{compute_type},{channels}>"
    image = problem.searched or problem.source
    stored, nan = dtypes.info(image.data_type).c_type, "true" if problem.nan_wins else "false"
    if has_argmax:
        has_key = problem.has_half_maxima and prod(axis.span for axis in problem.axes) <= _MOST_KEYED_TAPS
        name, kind = ("LargestKey", stored) if has_key else ("LargestArgmax", compute_type)
    else:
        name, kind = ("LargestPair", stored) if problem.has_half_maxima and channels > 1 else ("Largest", compute_type)
    return f"{name}<{kind},{channels},{nan}>"


def index_name(problem: Problem, width: int) -> str:
    """The part of kernel names for the index: its type, and the elements of an access."""
    place = "_image" if problem.index_in_image else ""
    return "" if problem.index is None else f"{place}_{dtypes.info(problem.index.data_type).c_type}x{width}"


def index_type(problem: Problem) -> str:
    """The C++ type of the index; arbitrary if there is none."""
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
    index = problem.index or problem.searched
    if index is not None:
        yield TensorPointer(index.uid)
        yield from i64(strides(index))
    yield problem.functor.arguments


def _scalar(problem: Problem, value: int) -> Scalar:
    """A number of the compute type, as an argument."""
    kind = _SCALARS[problem.resample.compute_type]
    return Scalar(kind, value if kind is ScalarType.I32 else float(value))

"""The plan of ``resample_backward.cu``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import bytes_of, ceil_div, divider, i64, macros, moved_bytes
from lowdnn.engines.resample.axes import axis_struct
from lowdnn.engines.resample.problem import Problem, strides
from lowdnn.engines.resample.tile import TILES, Tile, compute_unit, scalar
from lowdnn.plan import Argument, KernelRef, Launch, Struct, TensorPointer, Work

#: What a thread's sums and the outputs that it reads may take.
_MAX_REGISTERS = 112

#: Outputs that a thread reads at a time where the stride is known at run time only.
_MAX_READERS = 4


@dataclass(frozen=True)
class Params:
    """The macros of ``resample_backward.cu``, described there."""

    DY_TYPE: str
    X_TYPE: str
    INDEX_TYPE: str
    COMPUTE: str
    MAXIMUM: int
    LINEAR: int
    HAS_INDEX: int
    INDEX_WIDTH: int
    PADDING: str
    DIVISOR: str
    NAN_WINS: int
    REPEATS: int
    CHANNELS_LAST: int
    CONTIGUOUS: int
    CHANNELS: int
    TILE: int
    WINDOW: int
    STRIDE: int
    PHASE: int
    READERS: int
    INDEX: str
    THREADS: int


def tiles(problem: Problem, channels: int) -> tuple[int, ...]:
    """The choices of positions of a thread."""
    return tuple(tile for tile in _candidates(problem) if tile == 1 or _fits(problem, channels, tile))


def default_tile(problem: Problem, channels: int, arch: ArchSpec) -> int:
    """As many positions as share the outputs that they read, while all multiprocessors have threads."""
    step = problem.axes[2].step
    most = max(step, 4 if problem.channels_last else 32 // problem.target.element_bytes)
    wanted = arch.sm_count * arch.threads_per_sm // 2
    choices = [tile for tile in tiles(problem, channels) if tile <= most]
    return max((t for t in choices if t <= step or prod(problem.radices(channels, t)) >= wanted), default=1)


def kernel(problem: Problem, tile: Tile) -> KernelRef:
    index, searched, columns = problem.index, problem.searched, problem.axes[2]
    stride = _stride(problem, tile.columns)
    params = Params(
        DY_TYPE=dtypes.info(problem.source.data_type).c_type,
        X_TYPE=dtypes.info(problem.source.data_type if searched is None else searched.data_type).c_type,
        INDEX_TYPE="i8" if index is None else dtypes.info(index.data_type).c_type,
        COMPUTE=dtypes.info(problem.resample.compute_type).c_type,
        MAXIMUM=int(problem.is_maximum),
        LINEAR=int(problem.is_linear),
        HAS_INDEX=int(index is not None),
        INDEX_WIDTH=problem.index_width(tile.channels, tile.columns),
        PADDING=problem.padding,
        DIVISOR=problem.divisor,
        NAN_WINS=int(searched is not None and problem.nan_wins),
        REPEATS=int(problem.resample.is_pooling and not problem.is_maximum and problem.padding == "CLAMP"),
        CHANNELS_LAST=int(problem.channels_last),
        CONTIGUOUS=int(problem.has_neighbouring_columns),
        CHANNELS=tile.channels,
        TILE=tile.columns,
        WINDOW=problem.window if stride else 0,
        STRIDE=stride,
        PHASE=columns.offset % stride if stride else 0,
        READERS=_readers(problem, tile.columns),
        INDEX=tile.index_type(problem),
        THREADS=tile.threads,
    )
    mode = "max" if problem.is_maximum else "linear" if problem.is_linear else "sum"
    rules = f"{mode}_{params.PADDING}_{params.DIVISOR}".lower() + ("_nan" if params.NAN_WINS else "")
    places = f"_{params.INDEX_TYPE}x{params.INDEX_WIDTH}" if index is not None else ""
    places += f"_of_{dtypes.info(searched.data_type).short_name}" if searched is not None else ""
    walk = f"w{params.WINDOW}s{stride}p{params.PHASE}r{params.READERS}" + ("m" if params.REPEATS else "")
    shape = f"{problem.order}{params.CHANNELS}t{params.TILE}_{params.INDEX}b{tile.threads}"
    types = f"{dtypes.info(problem.source.data_type).short_name}_{params.COMPUTE}"
    return KernelRef(
        name=f"resample_backward_{types}_{rules}{places}_{walk}_{shape}_sm80_{problem.functor.digest}",
        source="resample/resample_backward.cu",
        target="sm_80",
        parameters=macros(params),
        generated=problem.functor.text,
    )


def launch(problem: Problem, tile: Tile) -> Launch:
    radices = problem.radices(tile.channels, tile.columns)
    read = [tensor for tensor in (problem.source, problem.index, problem.searched) if tensor is not None]
    return Launch(
        kernel=0,
        grid=(ceil_div(prod(radices), tile.threads), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(Struct(tuple(_fields(problem, radices))),),
        work=Work(
            flops=problem.operation.flops,
            bytes=bytes_of(read) + moved_bytes(problem.dag),
            unit=compute_unit(problem),
        ),
    )


def _fields(problem: Problem, radices: tuple[int, ...]) -> Iterator[Argument]:
    yield from i64((prod(radices),))
    yield from (Struct(divider(radix)) for radix in (1, *radices[1:]))
    yield TensorPointer(problem.source.uid)
    yield from i64(strides(problem.source))
    yield from map(axis_struct, problem.axes)
    yield scalar(problem, problem.tap_count if problem.divisor == "ALL" else 1)
    places = problem.index or problem.searched
    if places is not None:
        yield TensorPointer(places.uid)
        yield from i64(strides(places))
    yield problem.functor.arguments


def _candidates(problem: Problem) -> tuple[int, ...]:
    """1, and multiples of the stride; along the columns, of which results are written at once, powers of two."""
    columns = problem.axes[2]
    if not problem.window or columns.unit > 1 or not problem.resample.is_pooling or problem.padding == "CLAMP":
        return (1,)
    if not problem.channels_last:
        return tuple(tile for tile in TILES if tile == 1 or tile % columns.step == 0)
    return tuple(sorted({1, *(tile for tile in range(columns.step, TILES[-1] + 1, columns.step))}))


def _stride(problem: Problem, tile: int) -> int:
    """Columns between neighbouring outputs where a tile's readers are known at compile time, otherwise 0."""
    step = problem.axes[2].step
    return step if tile in _candidates(problem) and (tile > 1 or (step == 1 and len(_candidates(problem)) > 1)) else 0


def _readers(problem: Problem, tile: int) -> int:
    """Outputs along the columns that are read together: all that read the tile, unless those are many."""
    columns, stride = problem.axes[2], _stride(problem, tile)
    if not stride:
        return min(ceil_div(columns.reach, columns.step), _MAX_READERS)
    phase = columns.offset % stride
    first, last = -((problem.window - 1 - phase) // stride), (phase + tile - 1) // stride
    return last - first + 1


def _fits(problem: Problem, channels: int, tile: int) -> bool:
    words = dtypes.info(problem.resample.compute_type).size_bytes // 4
    held = (
        _readers(problem, tile) * (2 if problem.is_maximum else 1) + tile + (3 if problem.searched is not None else 0)
    )
    return held * channels * words <= _MAX_REGISTERS

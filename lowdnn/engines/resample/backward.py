"""The plan of ``resample_backward.cu``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div, macros
from lowdnn.engines.resample.problem import Problem
from lowdnn.engines.resample.tile import TILES, Tile, index_type, places_name, rules_name
from lowdnn.plan import KernelRef

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
    searched, columns = problem.searched, problem.axes[2]
    stride = _stride(problem, tile.columns)
    params = Params(
        DY_TYPE=dtypes.info(problem.source.data_type).c_type,
        X_TYPE=dtypes.info(problem.source.data_type if searched is None else searched.data_type).c_type,
        INDEX_TYPE=index_type(problem),
        COMPUTE=dtypes.info(problem.resample.compute_type).c_type,
        MAXIMUM=int(problem.is_maximum),
        LINEAR=int(problem.is_linear),
        HAS_INDEX=int(problem.index is not None),
        INDEX_WIDTH=problem.index_width(tile.channels, tile.columns),
        PADDING=problem.padding,
        DIVISOR=problem.divisor,
        NAN_WINS=int(problem.nan_wins),
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
    places = places_name(problem, params.INDEX_WIDTH)
    walk = f"w{params.WINDOW}s{stride}p{params.PHASE}r{params.READERS}" + ("m" if params.REPEATS else "")
    shape = f"{problem.order}{params.CHANNELS}t{params.TILE}_{params.INDEX}b{tile.threads}"
    return KernelRef(
        name=f"resample_backward_{rules_name(problem)}{places}_{walk}_{shape}_sm80_{problem.functor.digest}",
        source="resample/resample_backward.cu",
        target="sm_80",
        parameters=macros(params),
        generated=problem.functor.text,
    )


def _candidates(problem: Problem) -> tuple[int, ...]:
    """1, and multiples of the stride; along the columns, of which results are written at once, powers of two."""
    step = problem.axes[2].step
    if not _knows_readers(problem):
        return (1,)
    if not problem.channels_last:
        return tuple(tile for tile in TILES if tile == 1 or tile % step == 0)
    return tuple(sorted({1, *range(step, TILES[-1] + 1, step)}))


def _knows_readers(problem: Problem) -> bool:
    """Whether it is known at compile time which taps of which outputs read a tile."""
    return (
        problem.resample.is_pooling and problem.window > 0 and problem.axes[2].unit == 1 and problem.padding != "CLAMP"
    )


def _stride(problem: Problem, tile: int) -> int:
    """Columns between neighbouring outputs where a tile's readers are known at compile time, otherwise 0."""
    step = problem.axes[2].step
    return step if _knows_readers(problem) and tile % step == 0 else 0


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
    read = _readers(problem, tile) * (2 if problem.is_maximum else 1)
    held = read + tile + (3 if problem.searched is not None else 0)
    return held * channels * words <= _MAX_REGISTERS

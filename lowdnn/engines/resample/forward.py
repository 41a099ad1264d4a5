"""The choices for ``resample_forward.cu``: tiles, accesses, macros and names."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from lowdnn import dtypes
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.launch import macros
from lowdnn.engines.resample.axes import (
    Pattern,
    has_inside_taps,
    leaves_image,
    shares_taps,
    window_pattern,
    window_period,
)
from lowdnn.engines.resample.problem import Problem, neighbours
from lowdnn.engines.resample.tile import (
    ACCESS_BYTES,
    Tile,
    can_unroll,
    index_name,
    index_type,
    result_type,
    rules_name,
)
from lowdnn.plan import KernelRef

#: Registers at most for a thread's results and the values of a row, so that several blocks share a multiprocessor.
_MAX_REGISTERS = 160


@dataclass(frozen=True)
class Params:
    """The macros of ``resample_forward.cu``, which its head describes."""

    X_TYPE: str
    COMPUTE: str
    RESULT: str
    LINEAR: int
    PADDING: str
    HAS_PLANES: int
    DIVISOR: str
    HAS_INDEX: int
    IMAGE_INDEX: int
    INDEX_TYPE: str
    INDEX_WIDTH: int
    CHANNELS_LAST: int
    CONTIGUOUS: int
    CHANNELS: int
    IS_TILED: int
    ROW_WINDOWS: str
    COLUMN_WINDOWS: str
    ACCESS: int
    SHIFT: int
    INDEX: str
    THREADS: int


def periods(problem: Problem) -> tuple[int, int]:
    """The periods after which the taps of a thread's rows, and of its columns, repeat."""
    down, along = map(window_period, problem.axes[1:])
    return down, along


def most(problem: Problem) -> tuple[int, int, int]:
    """The most (channels, rows, columns) of a thread by default. Many outputs share what they read.

    Along contiguous columns a thread writes with one access, so that neighbouring threads write whole sectors at once;
    if windows share no positions, it reads with one access.
    """
    if problem.channels_last:
        if problem.is_linear and problem.has_patterns:
            return 4, 8, 2
        return (8, 4, 2) if problem.axes[1].step <= problem.axes[1].unit else (8, 2, 2)
    columns = ACCESS_BYTES // problem.target.element_bytes
    if not any(map(shares_taps, problem.axes[1:])):
        return 2, 1, max(2, columns * problem.axes[2].unit // problem.axes[2].step)
    return 2, 2 if problem.is_maximum else 8, max(2, columns)


def kernel(problem: Problem, tile: Tile) -> KernelRef:
    is_tiled = can_tile(problem, tile.channels, tile.rows, tile.columns)
    down, along = _patterns(problem) if is_tiled else (Pattern(1, 1, 1, 0),) * 2
    access, shift = _access(problem, tile.columns) if is_tiled else (1, 0)
    padding = "CLAMP" if _may_clamp(problem) else problem.padding
    params = Params(
        X_TYPE=dtypes.info(problem.source.data_type).c_type,
        COMPUTE=dtypes.info(problem.resample.compute_type).c_type,
        RESULT=result_type(problem, tile.channels, has_argmax=problem.index is not None),
        LINEAR=int(problem.is_linear),
        PADDING=padding,
        HAS_PLANES=int(problem.has_planes),
        DIVISOR=problem.divisor,
        HAS_INDEX=int(problem.index is not None),
        IMAGE_INDEX=int(problem.index_in_image),
        INDEX_TYPE=index_type(problem),
        INDEX_WIDTH=problem.index_width(tile.channels, tile.columns),
        CHANNELS_LAST=int(problem.channels_last),
        CONTIGUOUS=int(problem.has_neighbouring_columns),
        CHANNELS=tile.channels,
        IS_TILED=int(is_tiled),
        ROW_WINDOWS=down.windows(tile.rows),
        COLUMN_WINDOWS=along.windows(tile.columns),
        ACCESS=access,
        SHIFT=shift,
        INDEX=tile.index_type(problem),
        THREADS=tile.threads,
    )
    index = index_name(problem, params.INDEX_WIDTH)
    walk = f"{down.name}x{along.name}" if is_tiled else "walk"
    shape = f"{problem.order}{tile.channels}t{tile.rows}x{tile.columns}v{access}o{shift}_{params.INDEX}b{tile.threads}"
    return KernelRef(
        name=f"resample_forward_{rules_name(problem, padding)}{index}_{walk}_{shape}_sm80_{problem.functor.digest}",
        source="resample/resample_forward.cu",
        target=BASE_TARGET,
        parameters=macros(params),
        generated=problem.functor.text,
    )


def _may_clamp(problem: Problem) -> bool:
    """Whether positions outside the image may be read as the nearest ones inside: a maximum holds these anyway, or no
    window has any."""
    is_unread = not any(map(leaves_image, problem.axes))
    is_repeated = problem.padding == "SKIP" and problem.is_maximum and all(map(has_inside_taps, problem.axes))
    return problem.channels_last and problem.index is None and (is_unread or is_repeated)


def _patterns(problem: Problem) -> tuple[Pattern, Pattern]:
    """The patterns of rows and columns."""
    down, along = map(window_pattern, problem.axes[1:])
    return down, along


def can_walk(problem: Problem, rows: int, columns: int) -> bool:
    """Whether the kernel can have such a tile and loop over its taps."""
    return rows == columns == 1


def can_tile(problem: Problem, channels: int, rows: int, columns: int) -> bool:
    """Whether the kernel can know the taps of such a tile at compile time."""
    if not problem.has_patterns or any(
        count % window_period(axis) for count, axis in zip((rows, columns), problem.axes[1:], strict=True)
    ):
        return False
    down, along = _patterns(problem)
    read_rows, read_columns = down.positions(rows), along.positions(columns)
    if not can_unroll(problem.source, channels, read_rows, read_columns):
        return False
    words = dtypes.info(problem.resample.compute_type).size_bytes / 4
    if problem.has_half_maxima and problem.index is None and channels > 1:
        words /= 2
    words_each = 2 if problem.index is not None and not problem.has_half_maxima else 1
    registers = rows * columns * words_each + read_columns
    return rows * columns == 1 or registers * channels * words <= _MAX_REGISTERS


def _access(problem: Problem, columns: int) -> tuple[int, int]:
    """(elements of an access along a row, elements that the first access reads before the first tap)."""
    axis = problem.axes[2]
    if problem.channels_last or (problem.padding == "CLAMP" and not has_inside_taps(axis)):
        return 1, 0
    width = gcd(max(1, neighbours(problem.source, problem.source.rank - 1)), columns * axis.step // axis.unit)
    return width, (-axis.offset // axis.unit) % width

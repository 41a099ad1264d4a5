"""The choices for ``resample_backward.cu``: tiles, accesses, macros and names."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.launch import macros
from lowdnn.engines.resample.axes import Readers, has_inside_taps, reader_period, readers, shares_taps
from lowdnn.engines.resample.problem import Problem, neighbours
from lowdnn.engines.resample.tile import (
    ACCESS_BYTES,
    Tile,
    can_unroll,
    counts,
    index_name,
    index_type,
    result_type,
    rules_name,
)
from lowdnn.plan import KernelRef

#: Registers at most for a thread's sums and the outputs that it reads.
_MAX_REGISTERS = 220
#: Channels of a thread that writes a whole image: few, and many if enough threads are left.
IMAGE_CHANNELS = (2, 4)
#: The share of the device's threads, 1 / 16, that suffices for whole images. With fewer the device idles: 100 thousand
#: elements took 2.6 us (with ``resample_reduction`` 2.0 us), 3 million took 3.6 us (4.5 us).
_ENOUGH_THREADS = 16


@dataclass(frozen=True)
class Params:
    """The macros of ``resample_backward.cu``, which its head describes."""

    DY_TYPE: str
    X_TYPE: str
    INDEX_TYPE: str
    COMPUTE: str
    MAXIMUM: int
    LINEAR: int
    HAS_INDEX: int
    INDEX_WIDTH: int
    RESULT: str
    PADDING: str
    HAS_PLANES: int
    DIVISOR: str
    REPEATS: int
    CHANNELS_LAST: int
    CONTIGUOUS: int
    CHANNELS: int
    ACCESS: int
    SHIFT: int
    X_ACCESS: int
    X_SHIFT: int
    IS_TILED: int
    ROW_READERS: str
    COLUMN_READERS: str
    INDEX: str
    THREADS: int


def periods(problem: Problem) -> tuple[int, int]:
    """The periods after which the readers of a thread's rows, and of its columns, repeat."""
    down, along = map(reader_period, problem.axes[1:])
    return down, 1 if _walks_columns(problem) else along


def most(problem: Problem) -> tuple[int, int, int]:
    """The most (channels, rows, columns) of a thread by default.

    With many positions, a thread shares the outputs that they read, above all if it searches for maxima again: windows
    then cost more than another channel would share. Along contiguous columns a thread has one access, so that
    neighbouring threads write whole sectors at once; if positions share no outputs, half an access is faster.
    """
    if _walks_columns(problem):
        return 8, 1, 16
    shares = any(map(shares_taps, problem.axes[1:]))
    if problem.searched is not None and problem.channels_last:
        return 2 if problem.has_patterns else 4, 8, 4
    if problem.channels_last:
        return (8, 4, 4) if shares else (8, 2, 2)
    columns = ACCESS_BYTES // problem.target.element_bytes
    return (1, 8, max(2, columns)) if shares else (1, 2, max(2, columns // 2))


def holds_image(problem: Problem) -> bool:
    """Whether a thread reads the one average of a channels-last image and writes it to the whole image."""
    is_average = not (problem.is_maximum or problem.is_linear or problem.has_planes)
    is_last = problem.channels_last and problem.target.strides[1] == 1
    if not (is_average and is_last and all(axis.outputs == 1 for axis in problem.axes)):
        return False
    rows, columns = counts(problem, periods(problem))
    down, along = image(problem)
    return down in rows and along in columns and can_tile(problem, problem.most_channels, down, along)


def image(problem: Problem) -> tuple[int, int]:
    """The rows and columns of dx."""
    rows, columns = (axis.inputs for axis in problem.axes[1:])
    return rows, columns


def fills_device(problem: Problem, channels: int, arch: ArchSpec) -> bool:
    """Whether threads that write images of up to ``channels`` channels are enough for the device."""
    threads = prod(problem.radices(min(channels, problem.most_channels), *image(problem)))
    return threads * _ENOUGH_THREADS >= arch.sm_count * arch.threads_per_sm


def kernel(problem: Problem, tile: Tile) -> KernelRef:
    searched = problem.searched
    is_tiled = can_tile(problem, tile.channels, tile.rows, tile.columns)
    down, along = (
        _readers(problem, tile.rows, tile.columns)
        if is_tiled
        else (Readers(1, 1, 1, 1, 0), Readers(tile.columns, 1, 1, 1, 0))
    )
    access, shift = _access(problem, along) if is_tiled else (1, 0)
    x_access, x_shift = _x_access(problem, along) if is_tiled else (1, 0)
    params = Params(
        DY_TYPE=dtypes.info(problem.source.data_type).c_type,
        X_TYPE=dtypes.info(problem.source.data_type if searched is None else searched.data_type).c_type,
        INDEX_TYPE=index_type(problem),
        COMPUTE=dtypes.info(problem.resample.compute_type).c_type,
        MAXIMUM=int(problem.is_maximum),
        LINEAR=int(problem.is_linear),
        HAS_INDEX=int(problem.index is not None),
        INDEX_WIDTH=problem.index_width(tile.channels, tile.columns),
        RESULT=result_type(problem, tile.channels, has_argmax=searched is not None),
        PADDING=problem.padding,
        HAS_PLANES=int(problem.has_planes),
        DIVISOR=problem.divisor,
        REPEATS=int(problem.resample.is_pooling and not problem.is_maximum and problem.padding == "CLAMP"),
        CHANNELS_LAST=int(problem.channels_last),
        CONTIGUOUS=int(problem.has_neighbouring_columns),
        CHANNELS=tile.channels,
        ACCESS=access,
        SHIFT=shift,
        X_ACCESS=x_access,
        X_SHIFT=x_shift,
        IS_TILED=int(is_tiled),
        ROW_READERS=down.c_type,
        COLUMN_READERS=along.c_type,
        INDEX=tile.index_type(problem),
        THREADS=tile.threads,
    )
    index = index_name(problem, params.INDEX_WIDTH)
    walk = f"{down.name}x{along.name}" if is_tiled else "walk" + ("m" if params.REPEATS else "")
    access_name = f"v{access}o{shift}" + (f"x{x_access}o{x_shift}" if searched is not None else "")
    shape = f"{problem.order}{tile.channels}t{tile.rows}x{tile.columns}{access_name}_{params.INDEX}b{tile.threads}"
    return KernelRef(
        name=f"resample_backward_{rules_name(problem, problem.padding)}{index}_{walk}_{shape}_sm80_"
        f"{problem.functor.digest}",
        source="resample/resample_backward.cu",
        target=BASE_TARGET,
        parameters=macros(params),
        generated=problem.functor.text,
    )


def _readers(problem: Problem, rows: int, columns: int) -> tuple[Readers, Readers]:
    return readers(problem.axes[1], rows), readers(problem.axes[2], columns)


def can_walk(problem: Problem, rows: int, columns: int) -> bool:
    """Whether the kernel can have such a tile and loop over the outputs that read it."""
    return rows == 1 and (columns == 1 or _walks_columns(problem))


def _walks_columns(problem: Problem) -> bool:
    """Whether a thread loops over columns, which share averages if the same outputs read them."""
    is_average = not (problem.is_maximum or problem.is_linear or problem.padding == "CLAMP")
    return problem.channels_last and is_average and not problem.has_patterns


def can_tile(problem: Problem, channels: int, rows: int, columns: int) -> bool:
    """Whether the kernel can know the readers of such a tile at compile time."""
    axes = problem.axes[1:]
    if not problem.has_patterns or any(
        count % reader_period(axis) for count, axis in zip((rows, columns), axes, strict=True)
    ):
        return False
    if problem.padding == "CLAMP" and not (problem.is_linear and all(map(has_inside_taps, axes))):
        return False
    down, along = _readers(problem, rows, columns)
    if not can_unroll(problem.source, channels, down.outputs, along.outputs):
        return False
    has_own_sums = problem.is_maximum or problem.is_linear or any(axis.reach > axis.step for axis in axes)
    sums = rows * columns if has_own_sums else down.outputs * along.outputs
    registers = sums + along.outputs * (1 + problem.is_maximum)
    if problem.searched is not None:
        read_rows, read_columns = down.windows.positions(down.outputs), along.windows.positions(along.outputs)
        if not can_unroll(problem.searched, channels, read_rows, read_columns):
            return False
        registers += down.outputs * along.outputs * (1 if problem.has_half_maxima else 2)
    words = dtypes.info(problem.resample.compute_type).size_bytes // 4
    return rows * columns == 1 or registers * channels * words <= _MAX_REGISTERS


def _access(problem: Problem, along: Readers) -> tuple[int, int]:
    """(elements of an access along a row of dy and index, elements that the first reads before the first output)."""
    if problem.channels_last:
        return 1, 0
    read = [tensor for tensor in (problem.source, problem.index) if tensor is not None]
    step = along.positions * along.unit // along.step
    width = gcd(step, *(max(1, neighbours(tensor, tensor.rank - 1)) for tensor in read))
    return width, ((problem.axes[2].offset - along.phase) // along.step + along.first) % width


def _x_access(problem: Problem, along: Readers) -> tuple[int, int]:
    """(elements of an access along a row of x, elements that the first one reads before the first position needed)."""
    if problem.channels_last or problem.searched is None:
        return 1, 0
    width = gcd(along.positions, max(1, neighbours(problem.searched, problem.searched.rank - 1)))
    return width, along.origin % width

"""The plan of ``resample_forward.cu``."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_power, macros
from lowdnn.engines.resample.problem import Problem, neighbours
from lowdnn.engines.resample.tile import TILES, Tile, index_type, places_name, rules_name
from lowdnn.enums import DataType
from lowdnn.plan import KernelRef

#: What a thread's values and results may take, so that several blocks share a multiprocessor.
_MAX_REGISTERS = 96


@dataclass(frozen=True)
class Params:
    """The macros of ``resample_forward.cu``, described there."""

    X_TYPE: str
    COMPUTE: str
    MAXIMUM: int
    LINEAR: int
    PADDING: str
    DIVISOR: str
    NAN_WINS: int
    HAS_INDEX: int
    INDEX_TYPE: str
    INDEX_WIDTH: int
    PAIRS: int
    CHANNELS_LAST: int
    CONTIGUOUS: int
    CHANNELS: int
    TILE: int
    WINDOW: int
    STRIDE: int
    COLUMNS: int
    SHIFT: int
    INDEX: str
    THREADS: int


def tiles(problem: Problem, channels: int) -> tuple[int, ...]:
    """The choices of outputs of a thread."""
    return tuple(tile for tile in TILES if tile == 1 or (problem.window and _fits(problem, channels, tile)))


def default_tile(problem: Problem, channels: int, arch: ArchSpec) -> int:
    """As many outputs as share what is read or fill an access, while all multiprocessors have threads."""
    columns = problem.axes[2]
    if not problem.channels_last:
        most = max(2, 32 // (problem.target.element_bytes * channels))
    else:
        most = 4 if columns.step == 1 or not problem.resample.is_pooling else 2
    most = min(most, ceil_power(columns.outputs))
    wanted = arch.sm_count * arch.threads_per_sm // 2
    choices = [tile for tile in tiles(problem, channels) if tile <= most]
    return max((t for t in choices if prod(problem.radices(channels, t)) >= wanted), default=1)


def kernel(problem: Problem, tile: Tile) -> KernelRef:
    columns, shift = _access(problem, tile.columns)
    params = Params(
        X_TYPE=dtypes.info(problem.source.data_type).c_type,
        COMPUTE=dtypes.info(problem.resample.compute_type).c_type,
        MAXIMUM=int(problem.is_maximum),
        LINEAR=int(problem.is_linear),
        PADDING=problem.padding,
        DIVISOR=problem.divisor,
        NAN_WINS=int(problem.nan_wins),
        HAS_INDEX=int(problem.index is not None),
        INDEX_TYPE=index_type(problem),
        INDEX_WIDTH=problem.index_width(tile.channels, tile.columns),
        PAIRS=int(_takes_pairs(problem, tile.channels)),
        CHANNELS_LAST=int(problem.channels_last),
        CONTIGUOUS=int(problem.has_neighbouring_columns),
        CHANNELS=tile.channels,
        TILE=tile.columns,
        WINDOW=problem.window,
        STRIDE=_stride(problem, tile.columns),
        COLUMNS=columns,
        SHIFT=shift,
        INDEX=tile.index_type(problem),
        THREADS=tile.threads,
    )
    places = places_name(problem, params.INDEX_WIDTH)
    walk = f"w{params.WINDOW}s{params.STRIDE}_{problem.order}{params.CHANNELS}t{params.TILE}"
    access = f"v{columns}o{shift}_{params.INDEX}b{tile.threads}"
    return KernelRef(
        name=f"resample_forward_{rules_name(problem)}{places}_{walk}{access}_sm80_{problem.functor.digest}",
        source="resample/resample_forward.cu",
        target="sm_80",
        parameters=macros(params),
        generated=problem.functor.text,
    )


def _stride(problem: Problem, tile: int) -> int:
    """Columns between neighbouring outputs where their windows are one run of positions, otherwise 0."""
    columns = problem.axes[2]
    is_run = tile > 1 and problem.window and columns.unit == 1 and columns.step <= problem.window
    return columns.step if is_run else 0


def _positions(problem: Problem, tile: int) -> int:
    stride = _stride(problem, tile)
    return (tile - 1) * stride + problem.window if stride else tile * max(problem.window, 1)


def _fits(problem: Problem, channels: int, tile: int) -> bool:
    words = dtypes.info(problem.resample.compute_type).size_bytes / (8 if _takes_pairs(problem, channels) else 4)
    results = tile * (2 if problem.index is not None else 1)
    return (_positions(problem, tile) + results) * channels * words <= _MAX_REGISTERS


def _takes_pairs(problem: Problem, channels: int) -> bool:
    """Whether maxima are those of pairs of channels as they are stored: half the arithmetic, and no conversions."""
    is_half = problem.source.data_type in (DataType.HALF, DataType.BFLOAT16)
    return problem.is_maximum and problem.index is None and is_half and channels > 1


def _access(problem: Problem, tile: int) -> tuple[int, int]:
    """(elements of an access along a row, those of the first one that lie before the first tap)."""
    columns, stride = problem.axes[2], _stride(problem, tile)
    if problem.channels_last or not stride or problem.padding == "CLAMP":
        return 1, 0
    width = gcd(max(1, neighbours(problem.source, problem.source.rank - 1)), tile * stride)
    return width, -columns.offset % width

"""The plan of ``conv_direct.cu``: any convolution as an implicit matrix product on register-blocked tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.conv.direct_geometry import DirectGeometry
from lowdnn.engines.gemm.simt_tile import SimtTile
from lowdnn.engines.launch import ceil_div, i32, i64, macros
from lowdnn.enums import DataType
from lowdnn.plan import KernelRef, Launch, Struct

#: Filters of one tile; fp64 accumulators of the largest tile would not fit the registers.
_FILTER_TILES = (8, 16, 32, 64, 128)

#: What fetching one element of x costs, in multiply-adds.
_FETCH_COST = 16


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_direct.cu``, described there."""

    X_TYPE: str
    W_TYPE: str
    SPATIAL: int
    TILE_ROWS: int
    TILE_COLUMNS: int
    TILE_DEPTH: int
    PIXELS_ARE_COLUMNS: int
    RUN: int
    CHANNELS_FASTEST: int
    X_ALONG_DEPTH: int
    W_ALONG_DEPTH: int


def filter_tiles(geometry: DirectGeometry) -> tuple[int, ...]:
    """The values of TILE_N."""
    return _FILTER_TILES[:-1] if geometry.accumulator is DataType.DOUBLE else _FILTER_TILES


def best_filter_tile(geometry: DirectGeometry, arch: ArchSpec) -> int:
    """The TILE_N with the least work on the busiest multiprocessor; the largest one where they tie."""

    def cost(filters: int) -> float:
        tile = _tile(geometry, filters)
        per_pixel = filters / tile.efficiency + _FETCH_COST
        return ceil_div(block_count(geometry, filters), arch.sm_count) * _pixel_tile(filters) * per_pixel

    return min(reversed(filter_tiles(geometry)), key=cost)


def block_count(geometry: DirectGeometry, filters: int) -> int:
    """Blocks of the launch at TILE_N = ``filters``."""
    return prod(_tile_counts(geometry, filters)) * geometry.operation.groups


def pixel_count(geometry: DirectGeometry) -> int:
    """Pixels (n, o) with image rows rounded up to whole runs."""
    run = 1 if geometry.is_channels_last else _run(geometry)
    *outer, last = geometry.outputs
    return geometry.images * prod(outer) * ceil_div(last, run) * run


def kernel(geometry: DirectGeometry, filters: int, functor: Functor) -> KernelRef:
    tile = _tile(geometry, filters)
    params = _params(geometry, tile)
    layout = ("fp" if params.PIXELS_ARE_COLUMNS else "pf") + str(params.RUN)
    walk = "tc"[params.CHANNELS_FASTEST] + "pk"[params.X_ALONG_DEPTH] + "fk"[params.W_ALONG_DEPTH]
    size = f"{tile.rows}x{tile.columns}x{tile.depth}"
    return KernelRef(
        name=f"conv_direct_{geometry.types}_{params.SPATIAL}d_{size}_{layout}_{walk}_sm80_{functor.digest}",
        source="conv/conv_direct.cu",
        target="sm_80",
        parameters=macros(params),
        generated=functor.text,
    )


def launch(geometry: DirectGeometry, filters: int, functor: Functor) -> Launch:
    tile = _tile(geometry, filters)
    blocks = block_count(geometry, filters)
    depth = geometry.group_channels * geometry.tap_count
    counts = (
        geometry.group_channels,
        geometry.group_filters,
        geometry.tap_count,
        depth,
        pixel_count(geometry),
        *_tile_counts(geometry, filters),
    )
    arguments = Struct(
        (
            *geometry.pointers(),
            *i64(geometry.operation.x.strides),
            *i64(geometry.w_strides),
            *geometry.extents(),
            *i32(counts),
            functor.arguments,
        )
    )
    products = blocks * tile.rows * tile.columns * ceil_div(depth, tile.depth) * tile.depth
    return Launch(0, (blocks, 1, 1), (tile.threads, 1, 1), (arguments,), work=geometry.work(products))


def _params(geometry: DirectGeometry, tile: SimtTile) -> Params:
    x, w = geometry.operation.x, geometry.operation.w
    channels_fastest = x.strides[1] < x.strides[-1]
    nearest_w = w.strides[1] if channels_fastest else w.strides[-1]
    return Params(
        X_TYPE=dtypes.info(x.data_type).c_type,
        W_TYPE=dtypes.info(w.data_type).c_type,
        SPATIAL=geometry.spatial,
        TILE_ROWS=tile.rows,
        TILE_COLUMNS=tile.columns,
        TILE_DEPTH=tile.depth,
        PIXELS_ARE_COLUMNS=int(not geometry.is_channels_last),
        RUN=_run(geometry),
        CHANNELS_FASTEST=int(channels_fastest),
        X_ALONG_DEPTH=int(channels_fastest),
        W_ALONG_DEPTH=int(nearest_w < w.strides[0]),
    )


def _run(geometry: DirectGeometry) -> int:
    """Elements handed to the epilogue at a time: fours must not cross groups, nor waste much of short image rows."""
    if geometry.is_channels_last:
        return 4 if geometry.operation.groups == 1 or geometry.group_filters % 4 == 0 else 1
    last = geometry.outputs[-1]
    return 4 if last % 4 == 0 or last >= 16 else 1


def _pixel_tile(filters: int) -> int:
    return 128 if filters == _FILTER_TILES[-1] else 64


def _tile(geometry: DirectGeometry, filters: int) -> SimtTile:
    pixels = _pixel_tile(filters)
    rows, columns = (pixels, filters) if geometry.is_channels_last else (filters, pixels)
    return SimtTile(rows, columns, 16 if filters in (32, 64) else 8)


def _tile_counts(geometry: DirectGeometry, filters: int) -> tuple[int, int]:
    """Tiles along the pixels, and along a group's filters."""
    return ceil_div(pixel_count(geometry), _pixel_tile(filters)), ceil_div(geometry.group_filters, filters)

"""The plan of ``conv_direct.cu``: any convolution as an implicit matrix product on register-blocked tiles.

Backward filter sums over all pixels, for few weights: its depth is cut into as many slices as fill the device, whose
partial sums a second launch adds in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.conv.direct.geometry import DirectGeometry, Direction
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, add_slice_sum, output_space
from lowdnn.engines.gemm.simt_tile import SimtTile
from lowdnn.engines.launch import ceil_div, floor_power, i32, i64, macros, moved_bytes
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.plan import KernelRef, Launch, Scalar, ScalarType, Struct, WorkspacePointer

#: Choices of the maps of a tile; fp64 accumulators of the largest tile would not fit the registers.
_MAP_TILES = (8, 16, 32, 64, 128)

#: Cost of fetching one element of the image, in multiply-adds.
_FETCH_COST = 16

#: Seconds of a block's first loads and of its stores, measured on an H200.
_START_S = 1.6e-6
#: Seconds from one term of a block's sums to the next, if nothing else delays it.
_TERM_S = 0.1e-6

#: Least depth of a slice of a split depth.
_MIN_SLICE_DEPTH = 256
_MAX_SLICES = 256
#: Most bytes of all slices.
_MAX_SLICES_BYTES = 64 << 20

#: The greatest step of a tile along the depth.
_LONGEST_STEP = 16

_NAMES = {Direction.FORWARD: "", Direction.DATA: "_dgrad", Direction.FILTER: "_wgrad"}


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_direct.cu``, described there."""

    DIRECTION: int
    ACCUMULATOR: str
    IMAGE_TYPE: str
    WEIGHTS_TYPE: str
    SPATIAL: int
    TILE_ROWS: int
    TILE_COLUMNS: int
    TILE_DEPTH: int
    PLACES_ARE_COLUMNS: int
    RUN: int
    CHANNELS_FASTEST: int
    IMAGE_ALONG_DEPTH: int
    WEIGHTS_ALONG_DEPTH: int
    SPLIT: int


def map_tiles(geometry: DirectGeometry) -> tuple[int, ...]:
    """The values of TILE_N."""
    return _MAP_TILES[:-1] if geometry.accumulator is DataType.DOUBLE else _MAP_TILES


def best_map_tile(geometry: DirectGeometry, arch: ArchSpec) -> int:
    """The TILE_N with the least work on the busiest multiprocessor; the largest one on ties."""

    def cost(maps: int) -> float:
        slices = best_slices(geometry, maps, arch)
        blocks = block_count(geometry, maps, slices)
        return _tile(geometry, maps).busiest(blocks, arch, _place_tile(maps) * _FETCH_COST) / slices

    return min(reversed(map_tiles(geometry)), key=cost)


def least_waste(operation: ConvolutionBackwardData | ConvolutionBackwardFilter) -> float:
    """A lower bound of a launch's work, as a multiple of the operation's: with full tiles of maps, and the image
    fetched for each of them.
    """
    if operation.is_over_nothing:
        return 1.0
    is_data = isinstance(operation, ConvolutionBackwardData)
    maps = operation.filter.dims[1] if is_data else operation.filter.dims[0] // operation.groups
    waste = (max(maps, _MAP_TILES[0]) + _FETCH_COST * ceil_div(maps, _MAP_TILES[-1])) / maps
    if is_data:  # each pixel of dx reads its class's taps, on padding too
        pixels, outputs = operation.image.dims[2:], operation.response.dims[2:]
        classes = map(min, operation.convolution.strides, pixels)
        waste *= prod(pixels) / (prod(outputs) * prod(classes))
    return waste


def slice_counts(geometry: DirectGeometry) -> tuple[int, ...]:
    """The values of SPLIT_K_SLC: powers of two in backward filter, 1 in the other directions."""
    if geometry.direction is not Direction.FILTER:
        return (1,)
    slice_bytes = _slices(geometry, 1).size_bytes
    limit = min(_MAX_SLICES, geometry.depth // _MIN_SLICE_DEPTH, _MAX_SLICES_BYTES // max(slice_bytes, 1))
    return tuple(1 << power for power in range(floor_power(limit).bit_length()))


def best_slices(geometry: DirectGeometry, maps: int, arch: ArchSpec) -> int:
    """The least SPLIT_K_SLC that gives every multiprocessor two blocks."""
    blocks = block_count(geometry, maps, 1)
    enough = (count for count in slice_counts(geometry) if count * blocks >= 2 * arch.sm_count)
    return next(enough, slice_counts(geometry)[-1])


def block_count(geometry: DirectGeometry, maps: int, slices: int) -> int:
    """Blocks of the launch at TILE_N = ``maps`` and SPLIT_K_SLC = ``slices``."""
    return prod(_tile_counts(geometry, maps)) * geometry.operation.groups * prod(geometry.classes()) * slices


def place_count(geometry: DirectGeometry) -> int:
    """Places (of the largest class if there are several) with the vector axis rounded up to whole runs."""
    run = _run(geometry) if _places_are_columns(geometry) else 1
    if geometry.direction is Direction.FILTER:
        outer, last = (geometry.group_channels, *geometry.taps[:-1]), geometry.taps[-1]
        if geometry.is_channels_last:
            outer, last = geometry.taps, geometry.group_channels
    else:
        pairs = zip(geometry.pixels, geometry.classes(), strict=True)
        *inner, last = (ceil_div(extent, classes) for extent, classes in pairs)
        outer = (geometry.images, *inner)
    return prod(outer) * ceil_div(last, run) * run


def add_parts(parts: PlanParts, geometry: DirectGeometry, maps: int, slices: int) -> None:
    """The launch at TILE_N = ``maps`` and SPLIT_K_SLC = ``slices``, and the one that sums the slices."""
    if slices == 1:
        functor = geometry.functor()
        kernel = parts.kernel(_kernel(geometry, maps, functor))
        parts.launches.append(_launch(kernel, geometry, maps, slices, functor.arguments, None))
        return
    partial = _slices(geometry, slices)
    offset = parts.reserve(partial.size_bytes)
    tail = Struct(
        (
            Scalar(ScalarType.I32, _slice_depth(geometry, slices)),
            *i64((partial.pitch, partial.slice_elements)),
            WorkspacePointer(offset),
        )
    )
    kernel = parts.kernel(_kernel(geometry, maps, None))
    parts.launches.append(_launch(kernel, geometry, maps, slices, tail, partial.size_bytes))
    output = _output_space(geometry)
    functor = generate(
        geometry.epilogue, accumulator=geometry.accumulator, vector_axis=output.space.rank - 1, space=output.space
    )
    stored = moved_bytes(geometry.epilogue)
    add_slice_sum(parts, output, functor, output.vector(functor), partial, offset, stored)


def kernel(geometry: DirectGeometry, maps: int) -> KernelRef:
    """The kernel of an unsplit depth at TILE_N = ``maps``."""
    return _kernel(geometry, maps, geometry.functor())


def _kernel(geometry: DirectGeometry, maps: int, functor: Functor | None) -> KernelRef:
    """The kernel; without a functor it writes slices."""
    tile = _tile(geometry, maps)
    params = _params(geometry, tile, is_split=functor is None)
    layout = ("fp" if params.PLACES_ARE_COLUMNS else "pf") + str(params.RUN)
    walk = "tc"[params.CHANNELS_FASTEST] + "pk"[params.IMAGE_ALONG_DEPTH] + "fk"[params.WEIGHTS_ALONG_DEPTH]
    size = f"{tile.rows}x{tile.columns}x{tile.depth}"
    family = f"conv_direct{_NAMES[geometry.direction]}_{geometry.types}"
    ending = (
        f"{dtypes.info(geometry.accumulator).short_name}_partial_sm80" if functor is None else f"sm80_{functor.digest}"
    )
    return KernelRef(
        name=f"{family}_{params.SPATIAL}d_{size}_{layout}_{walk}_{ending}",
        source="conv/direct/conv_direct.cu",
        target=BASE_TARGET,
        parameters=macros(params),
        generated="" if functor is None else functor.text,
    )


def _launch(
    kernel: int,
    geometry: DirectGeometry,
    maps: int,
    slices: int,
    tail: Struct,
    slice_bytes: int | None,
) -> Launch:
    """The launch.  tail: the arguments of the epilogue, or of the slices, which take ``slice_bytes``."""
    tile = _tile(geometry, maps)
    blocks = block_count(geometry, maps, slices)
    counts = (
        *geometry.periods(),
        geometry.images,
        geometry.image_channels,
        geometry.group_maps,
        geometry.operation.groups,
        *_tile_counts(geometry, maps),
    )
    numbers = Struct(
        (
            *geometry.pointers(),
            *i64(geometry.image.strides),
            *i64(geometry.weights_strides),
            *i64(geometry.group_strides),
            *geometry.extents(),
            *i32(counts),
        )
    )
    depth = ceil_div(geometry.depth, prod(geometry.classes()) * slices)
    terms = blocks * _place_tile(maps) * ceil_div(depth, tile.depth) * tile.depth
    busy_s = _START_S + depth * _TERM_S
    work = geometry.work(round(terms * _place_cost(geometry, maps)), slice_bytes, busy_s)
    return Launch(kernel, (blocks, 1, 1), (tile.threads, 1, 1), (Struct((numbers, tail)),), work=work)


def _params(geometry: DirectGeometry, tile: SimtTile, is_split: bool) -> Params:
    image, strides = geometry.image, geometry.weights_strides
    image_channels_near = image.strides[1] < image.strides[-1]
    if geometry.direction is Direction.FILTER:
        channels_fastest = geometry.is_channels_last
        image_along_depth = not (channels_fastest and image_channels_near)
        weights_along_depth = abs(strides[-1]) < strides[0]
    else:
        channels_fastest = image_along_depth = image_channels_near
        weights_along_depth = abs(strides[1] if channels_fastest else strides[-1]) < strides[0]
    return Params(
        DIRECTION=geometry.direction,
        ACCUMULATOR=dtypes.info(geometry.accumulator).c_type,
        IMAGE_TYPE=dtypes.info(image.data_type).c_type,
        WEIGHTS_TYPE=dtypes.info(geometry.weights.data_type).c_type,
        SPATIAL=geometry.spatial,
        TILE_ROWS=tile.rows,
        TILE_COLUMNS=tile.columns,
        TILE_DEPTH=tile.depth,
        PLACES_ARE_COLUMNS=int(_places_are_columns(geometry)),
        RUN=_run(geometry),
        CHANNELS_FASTEST=int(channels_fastest),
        IMAGE_ALONG_DEPTH=int(image_along_depth),
        WEIGHTS_ALONG_DEPTH=int(weights_along_depth),
        SPLIT=int(is_split),
    )


def _places_are_columns(geometry: DirectGeometry) -> bool:
    return geometry.direction is Direction.FILTER or not geometry.is_channels_last


def _run(geometry: DirectGeometry) -> int:
    """Elements handed to the epilogue at a time: fours must not cross groups, nor waste much of short axes."""
    if not _places_are_columns(geometry):
        return 4 if geometry.operation.groups == 1 or geometry.group_maps % 4 == 0 else 1
    if geometry.direction is Direction.DATA and geometry.operation.convolution.strides[-1] > 1:
        return 1  # neighbours in a class are not neighbours in dx
    last = geometry.epilogue.dims[geometry.vector_axis]
    return 4 if last % 4 == 0 or last >= 16 else 1


def _place_tile(maps: int) -> int:
    return 128 if maps == _MAP_TILES[-1] else 64


def _tile(geometry: DirectGeometry, maps: int) -> SimtTile:
    places = _place_tile(maps)
    rows, columns = (maps, places) if _places_are_columns(geometry) else (places, maps)
    return SimtTile(rows, columns, 16 if maps in (32, 64) else 8)


def _place_cost(geometry: DirectGeometry, maps: int) -> float:
    """Cost, in multiply-adds, of one place at one depth of a tile: its products, and the fetch of its element."""
    return maps / _tile(geometry, maps).efficiency + _FETCH_COST


def _tile_counts(geometry: DirectGeometry, maps: int) -> tuple[int, int]:
    """Tiles along the places, and along a group's maps."""
    return ceil_div(place_count(geometry), _place_tile(maps)), ceil_div(geometry.group_maps, maps)


def _slices(geometry: DirectGeometry, slices: int) -> Slices:
    columns = geometry.group_channels * geometry.tap_count
    return Slices(slices, geometry.filters, columns, dtypes.info(geometry.accumulator).size_bytes)


def _slice_depth(geometry: DirectGeometry, slices: int) -> int:
    """Depth of a slice: whole steps of every tile."""
    return ceil_div(ceil_div(geometry.depth, slices), _LONGEST_STEP) * _LONGEST_STEP


def _output_space(geometry: DirectGeometry) -> OutputSpace:
    """dw with filters as rows, and columns numbered as the kernel numbers places."""
    taps = tuple(range(2, 2 + geometry.spatial))
    columns = (*taps, 1) if geometry.is_channels_last else (1, *taps)
    return output_space(geometry.epilogue, row_axes=(0,), column_axes=columns, kept=(), operands={})

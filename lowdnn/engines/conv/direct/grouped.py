"""The plan of ``conv_grouped.cu``: convolutions with few channels in each group, depthwise ones above all."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import Functor
from lowdnn.engines.conv.direct.geometry import DirectGeometry, Direction
from lowdnn.engines.launch import ceil_div, ceil_power, i32, i64, macros
from lowdnn.enums import DataType
from lowdnn.plan import KernelRef, Launch, Struct

#: Values of BLOCK_SIZE.
BLOCK_SIZES = (64, 128, 256)

#: Outputs of one thread along the last axis.
_STRIP = 4
_MAX_LANES = 32
_MAX_REPEATS = 16
_SHARED_BYTES = 48 << 10

#: Most channels and filters of a group; beyond, the tiles of ``conv_direct.cu`` use every element more often.
_MAX_GROUP = 16

#: Most taps of a filter row that is unrolled over a window of registers.
_MAX_UNROLLED_TAPS = 7
#: Largest stride of such a row.
_MAX_UNROLLED_STEP = 2

#: Instructions for each multiply-add, with its share of loads, addresses and conversions; measured on an H200.
_ISSUED = 4


@dataclass(frozen=True)
class Params:
    """The macros of ``conv_grouped.cu``, described there."""

    X_TYPE: str
    W_TYPE: str
    SPATIAL: int
    CHANNELS: int
    ROWS: int
    STRIP: int
    LANES: int
    THREADS: int
    TAPS: int
    STEP: int
    SHARES_X: int
    X_WIDTH: int


def takes(geometry: DirectGeometry) -> bool:
    """Whether it is a forward pass in groups so small that a tile would be mostly empty, with weights that fit shared
    memory.
    """
    if geometry.direction is not Direction.FORWARD:
        return False
    if geometry.operation.groups == 1 or _weight_bytes(geometry, lanes=1) > _SHARED_BYTES:
        return False
    return geometry.group_channels == 1 or max(geometry.group_channels, geometry.group_filters) <= _MAX_GROUP


def patch_count(geometry: DirectGeometry) -> int:
    """Patches, one for each thread, that cover all pixels of y."""
    *outer, last = geometry.outputs
    rows = _rows(geometry)
    row_blocks = ceil_div(outer.pop(), rows) if outer else 1
    return geometry.images * prod(outer) * row_blocks * ceil_div(last, _STRIP)


def kernel(geometry: DirectGeometry, threads: int, functor: Functor) -> KernelRef:
    params = _params(geometry, threads)
    patch = f"{params.CHANNELS}x{params.ROWS}x{params.STRIP}_l{params.LANES}_b{threads}"
    walk = f"t{params.TAPS}s{params.STEP}_x{params.X_WIDTH}" + ("s" if params.SHARES_X else "")
    return KernelRef(
        name=f"conv_grouped_{geometry.types}_{params.SPATIAL}d_{patch}_{walk}_sm80_{functor.digest}",
        source="conv/direct/conv_grouped.cu",
        target=BASE_TARGET,
        parameters=macros(params),
        generated=functor.text,
    )


def launch(geometry: DirectGeometry, arch: ArchSpec, threads: int, functor: Functor) -> Launch:
    channels, lanes = _channels(geometry), _lanes(geometry, threads)
    channel_blocks = ceil_div(geometry.filters, channels * lanes)
    sets = ceil_div(patch_count(geometry), threads // lanes)
    repeats = max(1, min(_MAX_REPEATS, sets * channel_blocks // (arch.sm_count * _MAX_REPEATS)))
    blocks = ceil_div(sets, repeats) * channel_blocks
    counts = (
        geometry.filters,
        geometry.group_filters,
        geometry.group_channels,
        geometry.tap_count,
        patch_count(geometry),
        ceil_div(geometry.outputs[-1], _STRIP),
        channel_blocks,
        repeats,
    )
    arguments = Struct(
        (
            *geometry.pointers(),
            *i64(geometry.image.strides),
            *i64(geometry.weights_strides),
            *geometry.extents(),
            *i32(counts),
            functor.arguments,
        )
    )
    products = patch_count(geometry) * _rows(geometry) * _STRIP * channel_blocks * channels * lanes
    products *= geometry.group_channels * geometry.tap_count
    return Launch(
        kernel=0,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=_weight_bytes(geometry, lanes),
        work=geometry.work(_ISSUED * products),
    )


def _params(geometry: DirectGeometry, threads: int) -> Params:
    has_window = _has_window(geometry)
    return Params(
        X_TYPE=dtypes.info(geometry.image.data_type).c_type,
        W_TYPE=dtypes.info(geometry.weights.data_type).c_type,
        SPATIAL=geometry.spatial,
        CHANNELS=_channels(geometry),
        ROWS=_rows(geometry),
        STRIP=_STRIP,
        LANES=_lanes(geometry, threads),
        THREADS=threads,
        TAPS=geometry.taps[-1] if has_window else 0,
        STEP=geometry.operation.convolution.strides[-1] if has_window else 0,
        SHARES_X=int(_shares_x(geometry)),
        X_WIDTH=_x_width(geometry),
    )


def _shares_x(geometry: DirectGeometry) -> bool:
    """Whether the channels of one thread are filters of one group."""
    return geometry.group_filters % _channels(geometry) == 0


def _has_window(geometry: DirectGeometry) -> bool:
    """Whether a row of x fits in a window of registers: few taps, close together."""
    convolution, taps = geometry.operation.convolution, geometry.taps[-1]
    is_dense = convolution.dilations[-1] == 1 or taps == 1
    return is_dense and taps <= _MAX_UNROLLED_TAPS and convolution.strides[-1] <= _MAX_UNROLLED_STEP


def _rows(geometry: DirectGeometry) -> int:
    """Rows of outputs of one thread; several if neighbouring ones read the same rows of x."""
    convolution = geometry.operation.convolution
    if geometry.spatial == 1 or not _has_window(geometry) or convolution.dilations[-2] != 1:
        return 1
    if geometry.taps[-2] <= convolution.strides[-2]:
        return 1
    return 2 if geometry.is_channels_last else 4


def _channels(geometry: DirectGeometry) -> int:
    """Channels of one thread: 16 bytes of accumulators if channels are contiguous."""
    if not geometry.is_channels_last:
        return 1
    return 2 if geometry.accumulator is DataType.DOUBLE else 4


def _lanes(geometry: DirectGeometry, threads: int) -> int:
    """Channel groups side by side in a block, a power of two."""
    wanted = ceil_power(ceil_div(geometry.filters, _channels(geometry)))
    if not geometry.is_channels_last:
        wanted = min(wanted, threads // min(threads, ceil_power(patch_count(geometry))))
    lanes = min(wanted, _MAX_LANES)
    while _weight_bytes(geometry, lanes) > _SHARED_BYTES:
        lanes //= 2
    return lanes


def _x_width(geometry: DirectGeometry) -> int:
    """Channels of x that one access reads: the most that alignment and strides allow; 0 if none are contiguous."""
    x = geometry.image
    is_depthwise = geometry.group_channels == geometry.group_filters == 1
    if x.strides[1] != 1 or not is_depthwise or _channels(geometry) == 1:
        return 0
    steps = [stride for axis, stride in enumerate(x.strides) if axis != 1 and x.dims[axis] != 1]
    width = _channels(geometry)
    while any(step % width for step in steps) or x.alignment_bytes % (width * x.element_bytes):
        width //= 2
    return width


def _weight_bytes(geometry: DirectGeometry, lanes: int) -> int:
    element_bytes = dtypes.info(geometry.accumulator).size_bytes
    return geometry.group_channels * geometry.tap_count * lanes * _channels(geometry) * element_bytes

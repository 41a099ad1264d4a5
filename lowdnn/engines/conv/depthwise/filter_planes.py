"""The plan of ``conv_depthwise_filter_planes.cu``: filter gradients that read each plane of x and dy once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.conv.depthwise.plane_axes import (
    StagedTensor,
    Staging,
    WindowAxis,
    has_words,
    lane_choices,
    refuse_walk,
    word_channels,
)
from lowdnn.engines.conv.depthwise.plane_search import (
    DEFAULT_STAGES,
    MAX_REGISTERS,
    STAGES,
    BlockWork,
    Units,
    WalkParams,
    block_radices,
    chosen_units,
    thread_positions,
    thread_products,
    unfit,
    unit_knobs,
    units_of,
)
from lowdnn.engines.indices import INT32_MAX
from lowdnn.engines.launch import bytes_of, ceil_div, divider, i32, i64, macros, target_label
from lowdnn.enums import KnobType
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work, WorkspacePointer

#: Instructions for one sum at a block's end, in the estimate.
_SUM = 6
#: Registers for the addresses of two rings of planes and of the images.
_ADDRESSES = 4


@dataclass(frozen=True)
class Params:
    """The other macros of ``conv_depthwise_filter_planes.cu``, described there."""

    X_TYPE: str
    DY_TYPE: str
    X_COPIES: int
    X_COPY_BYTES: int
    X_IS_DENSE: int
    DY_COPIES: int
    DY_COPY_BYTES: int
    DY_IS_DENSE: int


@dataclass(frozen=True)
class FilterPlanesTile:
    """A block's work: its threads, the number of shares of the images, planes of x and of dy in shared memory."""

    units: Units
    shares: int
    stages: int


@dataclass(frozen=True)
class PlaneFilterGradient:
    """The gradient dw from x and dy by a walk along the planes; a line is a row of one plane."""

    geometry: DepthwiseGeometry

    @cached_property
    def axes(self) -> tuple[WindowAxis, WindowAxis, WindowAxis]:
        planes, rows, columns = map(WindowAxis.forward, self.geometry.axes)
        return planes, rows, columns

    @property
    def image(self) -> Tensor:
        return self.geometry.operation.image

    @property
    def response(self) -> Tensor:
        return self.geometry.operation.response

    @cached_property
    def channels(self) -> int:
        """Channels of a thread, those of a word."""
        return word_channels(self.image)

    @property
    def elements(self) -> int:
        return self.geometry.operation.filter.element_count

    @cached_property
    def steps(self) -> int:
        """Steps of the walk along an image."""
        planes = self.axes[0]
        return min(planes.sources + planes.padding, planes.targets + planes.taps - 1)

    @cached_property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.geometry.tap_count * self.channels

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        geometry, image, response = self.geometry, self.image, self.response
        reason = refuse_walk(geometry)
        if reason:
            return reason
        if image.data_type != response.data_type:
            return "expected x and dy of one type"
        if not (has_words(geometry, image) and has_words(geometry, response)):
            return "expected channels in words"
        if self._registers(1, 1) > MAX_REGISTERS:
            return "expected sums that fit registers"
        for tensor, extents in ((image, [a.sources for a in self.axes]), (response, [a.targets for a in self.axes])):
            strides = geometry.spatial_strides(tensor)[1:]
            if max(abs(s) * e for s, e in zip(strides, extents[1:], strict=True)) > INT32_MAX // 8:
                return "expected planes of less than 2^28 elements"
        return ""

    @cached_property
    def staged(self) -> tuple[StagedTensor, StagedTensor]:
        """x and dy as staged tensors."""
        return StagedTensor.of(self.geometry, self.image), StagedTensor.of(self.geometry, self.response)

    @cached_property
    def moved_bytes(self) -> int:
        return bytes_of((self.image, self.response))

    def staging(self, units: Units) -> tuple[Staging, Staging]:
        """The copies of planes of x and dy in a block."""
        x, dy = self.staged
        return x.staging(units.box(self.axes), units.lanes, units.threads), dy.staging(
            units.shape, units.lanes, units.threads
        )

    def digits(self, tile: FilterPlanesTile) -> tuple[int, ...]:
        """The radices of a block's number, the fastest first."""
        return *self._blocks_of_share(tile.units), tile.shares

    def slice_count(self, tile: FilterPlanesTile) -> int:
        return prod(self.digits(tile)[1:])

    def work(self, tile: FilterPlanesTile) -> BlockWork:
        """The cost of a block's work."""
        return self._in_shares(self._work_of_image(tile.units, tile.stages), tile.shares)

    def tiles(self, arch: ArchSpec) -> Iterator[tuple[FilterPlanesTile, BlockWork]]:
        """Candidates that fit, each with as many shares as fill the device once, and their work."""
        lanes = lane_choices(self.geometry.channels, self.image)
        for units in units_of(lanes, self.axes, self.channels, MAX_REGISTERS - self.sums):
            work = self._work_of_image(units, DEFAULT_STAGES)
            if work.is_worth_a_look(arch):
                shares = self._shares(work.resident(arch) * arch.sm_count // work.blocks)
                yield FilterPlanesTile(units, shares, DEFAULT_STAGES), self._in_shares(work, shares)

    def _blocks_of_share(self, units: Units) -> tuple[int, int, int]:
        """Numbers of a share's blocks along channels, columns and rows."""
        return block_radices(units, self.axes, ceil_div(self.geometry.channels, self.channels))

    def _work_of_image(self, units: Units, stages: int) -> BlockWork:
        """The work of a share's blocks for one image; threads keep sums, planes of dy and a row of their windows."""
        staging = self.staging(units)
        positions = thread_positions(self.axes, units.rows, units.columns) + units.rows * units.columns
        products = thread_products(self.axes, units.rows, units.columns, self.channels)
        return BlockWork(
            blocks=prod(self._blocks_of_share(units)),
            threads=units.threads,
            steps=self.steps,
            instructions=products + positions * (1 + self.channels),
            outside_steps=_SUM * self.sums,
            registers=self._registers(units.rows, units.columns) + sum(one.copies for one in staging),
            shared_bytes=max(
                stages * sum(one.stage_bytes for one in staging), self.sums * (units.count // 2) * units.lanes * 4
            ),
            staged=staging,
        )

    def _in_shares(self, of_image: BlockWork, shares: int) -> BlockWork:
        steps = ceil_div(self.geometry.images, shares) * of_image.steps
        return replace(of_image, blocks=of_image.blocks * shares, steps=steps)

    def _registers(self, rows: int, columns: int) -> int:
        met = self.axes[0].taps * rows * columns
        return self.sums + (met + self.axes[2].window(columns)) * self.channels + _ADDRESSES

    def _shares(self, most: int) -> int:
        """At most ``most`` shares, at least one, with numbers of images as even as possible."""
        images = self.geometry.images
        return ceil_div(images, ceil_div(images, min(images, max(1, most))))


def filter_kernel(gradient: PlaneFilterGradient, tile: FilterPlanesTile, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    planes, rows, columns = gradient.axes
    x, dy = gradient.staging(tile.units)
    walk_params = WalkParams.of(gradient.axes, tile.units, tile.stages)
    params = Params(
        X_TYPE=dtypes.info(gradient.image.data_type).c_type,
        DY_TYPE=dtypes.info(gradient.response.data_type).c_type,
        X_COPIES=x.copies,
        X_COPY_BYTES=x.copy_bytes,
        X_IS_DENSE=int(x.is_dense),
        DY_COPIES=dy.copies,
        DY_COPY_BYTES=dy.copy_bytes,
        DY_IS_DENSE=int(dy.is_dense),
    )
    data_type = dtypes.info(gradient.image.data_type).short_name
    walk = f"{planes.taps}x{rows.taps}x{columns.taps}_s{rows.step}x{columns.step}{walk_params.window_label}"
    shape = tile.units.label + "".join(f"_{s.copies}x{s.copy_bytes}{'d' if s.is_dense else ''}" for s in (x, dy))
    return KernelRef(
        name=f"conv_depthwise_filter_planes_{data_type}_{walk}_{shape}s{tile.stages}_{target_label(target)}",
        source="conv/depthwise/conv_depthwise_filter_planes.cu",
        target=target,
        parameters=(*macros(walk_params), *macros(params)),
    )


def filter_launch(gradient: PlaneFilterGradient, tile: FilterPlanesTile, offset_bytes: int) -> Launch:
    """The launch that writes the slices at ``offset_bytes`` of the workspace."""
    geometry, x, dy = gradient.geometry, gradient.image, gradient.response
    planes, rows, columns = gradient.axes
    block_rows, block_columns = tile.units.shape
    x_staging, dy_staging = gradient.staging(tile.units)
    x_strides, dy_strides = geometry.spatial_strides(x), geometry.spatial_strides(dy)
    digits = gradient.digits(tile)
    arguments = Struct(
        (
            TensorPointer(x.uid),
            TensorPointer(dy.uid),
            WorkspacePointer(offset_bytes),
            *i64((x.strides[0], x_strides[0], dy.strides[0], dy_strides[0])),
            *i32((planes.sources, planes.targets, planes.padding, gradient.steps)),
            *i32(axis.first for axis in tile.units.thread_axes(gradient.axes)),
            *i32((rows.moved(block_rows), columns.moved(block_columns))),
            x_staging.box(x_strides[1:], (rows.sources, columns.sources), geometry.channels),
            dy_staging.box(dy_strides[1:], (rows.targets, columns.targets), geometry.channels),
            *i32(axis.taps - 1 if axis.is_reversed else 0 for axis in gradient.axes),
            *i32(-1 if axis.is_reversed else 1 for axis in gradient.axes),
            Struct(divider(tile.units.unit_columns)),
            *i32((tile.units.count, geometry.images, tile.shares)),
            *(Struct(divider(radix)) for radix in digits),
        )
    )
    products = 2 * dy.element_count * geometry.tap_count
    return Launch(
        kernel=0,
        grid=(prod(digits), 1, 1),
        block=(tile.units.threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=gradient.work(tile).shared_bytes,
        work=Work(products, bytes_of((x, dy)), MathUnit.FMA_F32),  # the slices stay in the L2 cache
    )


def slice_count(gradient: PlaneFilterGradient, tile: FilterPlanesTile) -> int:
    """Slices of dw in the workspace."""
    return gradient.slice_count(tile)


def knobs(gradient: PlaneFilterGradient, arch: ArchSpec) -> tuple[Knob, ...]:
    best = best_tile(gradient, arch)
    shares = tuple(sorted({best.shares, *range(1, min(gradient.geometry.images, 64) + 1)}))
    return (
        *unit_knobs(best.units, lane_choices(gradient.geometry.channels, gradient.image)),
        Knob("shares", KnobType.SPLIT_K_SLC, shares, best.shares, "blocks that share the images"),
        Knob("stages", KnobType.STAGES, STAGES, best.stages, "planes of x and dy in shared memory"),
    )


def tile_of(gradient: PlaneFilterGradient, chosen: Choices) -> FilterPlanesTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = FilterPlanesTile(chosen_units(chosen), shares=chosen[KnobType.SPLIT_K_SLC], stages=chosen[KnobType.STAGES])
    return unfit(tile.units, gradient.axes, gradient.work(tile)) or tile


@lru_cache(maxsize=128)
def best_tile(gradient: PlaneFilterGradient, arch: ArchSpec) -> FilterPlanesTile:
    """The fastest tile by the estimate of its work."""

    lanes = lane_choices(gradient.geometry.channels, gradient.image)[-1]
    least = FilterPlanesTile(Units(lanes, 1, 1, 1, 1), 1, DEFAULT_STAGES)
    best, _ = min(
        gradient.tiles(arch), key=lambda found: _seconds(gradient, found[0], found[1], arch), default=(least, None)
    )
    return best


def estimated_s(gradient: PlaneFilterGradient, tile: FilterPlanesTile, arch: ArchSpec) -> float:
    """Estimated seconds, including the sum of the slices."""
    return _seconds(gradient, tile, gradient.work(tile), arch)


def _seconds(gradient: PlaneFilterGradient, tile: FilterPlanesTile, work: BlockWork, arch: ArchSpec) -> float:
    return work.seconds(gradient.moved_bytes + 8 * gradient.slice_count(tile) * gradient.elements, arch)

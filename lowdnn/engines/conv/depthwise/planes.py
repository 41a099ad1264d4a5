"""The plan of ``conv_depthwise_planes.cu``: forward pass and data gradient that read each plane of the source once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import SECTOR_BYTES
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, space_of, with_axis
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.depthwise.geometry import DataPass
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
    epilogue_instructions,
    thread_positions,
    thread_products,
    unfit,
    unit_knobs,
    units_of,
)
from lowdnn.engines.indices import INT32_MAX
from lowdnn.engines.launch import bytes_of, ceil_div, divider, i32, i64, macros, target_label
from lowdnn.enums import DataType, KnobType
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work

#: Choices of the number of blocks that share the planes of targets.
PARTS = (1, 2, 3, 4, 6, 8, 16, 32, 64)

#: Blocks on each multiprocessor from which on blocks do not divide the planes further.
_ENOUGH_BLOCKS = 3


@dataclass(frozen=True)
class Params:
    """The other macros of ``conv_depthwise_planes.cu``, described there."""

    X_TYPE: str
    W_TYPE: str
    IMAGES_AS_PLANES: int
    ROW_UP: int
    COLUMN_UP: int
    COPIES: int
    COPY_BYTES: int
    IS_DENSE: int


@dataclass(frozen=True)
class PlanesTile:
    """A block's work: its threads, the parts of the planes of targets, planes in shared memory."""

    units: Units
    parts: int
    stages: int


@dataclass(frozen=True)
class PlaneCorrelation(DataPass):
    """The walk along the planes."""

    @cached_property
    def axes(self) -> tuple[WindowAxis, WindowAxis, WindowAxis]:
        made = WindowAxis.backward if self.is_backward else WindowAxis.forward
        planes, rows, columns = map(made, self.geometry.axes)
        images = self.geometry.images
        return replace(planes, sources=images, targets=images) if self.images_as_planes else planes, rows, columns

    @property
    def images_as_planes(self) -> bool:
        """Whether the walk is along the images of tensors without planes."""
        return self.geometry.placed[0] is None

    @cached_property
    def image_strides(self) -> tuple[int, int]:
        """Strides of images and planes of the source."""
        image, plane = self.source.strides[0], self.geometry.spatial_strides(self.source)[0]
        return (0, image) if self.images_as_planes else (image, plane)

    @cached_property
    def space(self) -> IndexSpace:
        """The targets' index space: n, c, planes, rows, columns."""
        space = space_of(self.geometry.dag)
        for position, axis in enumerate(self.geometry.placed, 2):
            space = with_axis(space, position) if axis is None else space
        return space

    @cached_property
    def channels(self) -> int:
        """Channels of a thread: the channels that one word holds."""
        return word_channels(self.source)

    @cached_property
    def weights(self) -> int:
        """Weights of a thread."""
        return self.geometry.tap_count * self.channels

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """Choices of a block's words of channels. With strides each source has many targets, so blocks write whole
        memory sectors.
        """
        choices = lane_choices(self.geometry.channels, self.source)
        if all(axis.up == 1 for axis in self.axes):
            return choices
        word_bytes = self.channels * self.target.element_bytes
        is_cut = self.geometry.channels * self.target.element_bytes % SECTOR_BYTES > 0
        whole = tuple(n for n in choices if not is_cut and n * word_bytes % SECTOR_BYTES == 0)
        return whole or choices

    @property
    def least_registers(self) -> int:
        """Registers for a thread's own values, with the fewest targets."""
        planes, row_axis, column_axis = self.axes
        sums = planes.taps * row_axis.up * column_axis.up
        return (sums + column_axis.window(column_axis.up)) * self.channels + self.weights

    def refuse(self) -> str:
        """Why the kernel cannot take the shape, or an empty string."""
        geometry = self.geometry
        reason = refuse_walk(geometry)
        if reason:
            return reason
        if not has_words(geometry, self.source):
            return "expected channels in words"
        if self.least_registers > MAX_REGISTERS:
            return "expected weights and sums that fit registers"
        extents = zip(geometry.spatial_strides(self.source), self.axes, strict=True)
        if max(abs(stride) * axis.sources for stride, axis in extents) > INT32_MAX // 4:
            return "expected planes of less than 2^29 elements"
        return ""

    @cached_property
    def staged(self) -> StagedTensor:
        """The source as a staged tensor."""
        return StagedTensor.of(self.geometry, self.source)

    @cached_property
    def moved_bytes(self) -> int:
        return bytes_of((self.source, *self.geometry.dag.loads, *self.geometry.dag.stores))

    def staging(self, units: Units) -> Staging:
        """The copies of the source's planes in a block."""
        return self.staged.staging(units.box(self.axes), units.lanes, units.threads)

    def segment(self, tile: PlanesTile) -> int:
        """Planes of targets of a block."""
        return ceil_div(self.axes[0].targets, tile.parts)

    def digits(self, tile: PlanesTile) -> tuple[int, ...]:
        """The radices of a block's number, the fastest first."""
        of_plane = block_radices(tile.units, self.axes, ceil_div(self.geometry.channels, self.channels))
        images = 1 if self.images_as_planes else self.geometry.images
        return *of_plane, ceil_div(self.axes[0].targets, self.segment(tile)), images

    def work(self, tile: PlanesTile) -> BlockWork:
        """The cost of a block's work; its threads keep sums, weights and a row of their windows."""
        units, planes, segment = tile.units, self.axes[0], self.segment(tile)
        targets, staging = units.rows * units.columns, self.staging(units)
        products = thread_products(self.axes, units.rows, units.columns, self.channels)
        positions = thread_positions(self.axes, units.rows, units.columns)
        window = self.axes[2].window(units.columns)
        return BlockWork(
            blocks=prod(self.digits(tile)),
            threads=units.threads,
            steps=min(segment + planes.taps - 1, planes.sources),
            instructions=products + positions * (1 + self.channels),
            outside_steps=segment * epilogue_instructions(targets) + 2 * self.weights,
            registers=(planes.taps * targets + window) * self.channels + self.weights + staging.copies,
            shared_bytes=tile.stages * staging.stage_bytes + units.lanes * (self.weights | 1) * 4,
            staged=(staging,),
        )

    def tiles(self, arch: ArchSpec) -> Iterator[tuple[PlanesTile, BlockWork]]:
        """Candidates that fit, and their work."""
        for units in units_of(self.lanes, self.axes, self.channels, MAX_REGISTERS - self.weights):
            tile = PlanesTile(units, 1, DEFAULT_STAGES)
            if self.images_as_planes:
                tile = replace(tile, parts=self._least_parts(prod(self.digits(tile)[:3]), arch))
            work = self.work(tile)
            if work.is_worth_a_look(arch):
                yield tile, work

    def _least_parts(self, blocks: int, arch: ArchSpec) -> int:
        """The fewest parts of the planes that give every multiprocessor ``_ENOUGH_BLOCKS`` blocks; each part has
        ``blocks`` blocks."""
        enough = (p for p in PARTS if p * blocks >= _ENOUGH_BLOCKS * arch.sm_count or p >= self.axes[0].targets)
        return next(enough, PARTS[-1])


def kernel(correlation: PlaneCorrelation, tile: PlanesTile, functor: Functor, target: str) -> KernelRef:
    """The kernel for ``target`` (``dependent_target``)."""
    planes, rows, columns = correlation.axes
    walk_params = WalkParams.of(correlation.axes, tile.units, tile.stages)
    w, staging = correlation.geometry.operation.filter, correlation.staging(tile.units)
    params = Params(
        X_TYPE=dtypes.info(correlation.source.data_type).c_type,
        W_TYPE=dtypes.info(w.data_type).c_type,
        IMAGES_AS_PLANES=int(correlation.images_as_planes),
        ROW_UP=rows.up,
        COLUMN_UP=columns.up,
        COPIES=staging.copies,
        COPY_BYTES=staging.copy_bytes,
        IS_DENSE=int(staging.is_dense),
    )
    types = "_".join(dtypes.info(t.data_type).short_name for t in (correlation.source, w))
    walk = f"{planes.taps}x{rows.taps}x{columns.taps}_s{rows.step}x{columns.step}u{rows.up}x{columns.up}"
    walk += walk_params.window_label
    walk += "i" if correlation.images_as_planes else ""
    shape = f"{tile.units.label}_c{staging.copies}x{staging.copy_bytes}{'d' if staging.is_dense else ''}"
    label = target_label(target)
    return KernelRef(
        name=f"conv_depthwise_planes_{types}_{walk}_{shape}s{tile.stages}_{label}_{functor.digest}",
        source="conv/depthwise/conv_depthwise_planes.cu",
        target=target,
        parameters=(*macros(walk_params), *macros(params)),
        generated=functor.text,
    )


def launch(correlation: PlaneCorrelation, tile: PlanesTile, functor: Functor) -> Launch:
    geometry, source, w = correlation.geometry, correlation.source, correlation.geometry.operation.filter
    planes, rows, columns = correlation.axes
    block_rows, block_columns = tile.units.shape
    source_strides, digits = geometry.spatial_strides(source), correlation.digits(tile)
    w_first, w_strides = _weights_places(correlation)
    arguments = Struct(
        (
            TensorPointer(source.uid),
            TensorPointer(w.uid),
            *i64(correlation.image_strides),
            *i32((planes.sources, planes.first, *(axis.first for axis in tile.units.thread_axes(correlation.axes)))),
            *i32((rows.moved(block_rows), columns.moved(block_columns))),
            correlation.staging(tile.units).box(source_strides[1:], (rows.sources, columns.sources), geometry.channels),
            *i64((w_first, w.strides[0], *w_strides)),
            *i32(axis.targets for axis in correlation.axes),
            Struct(divider(tile.units.unit_columns)),
            *i32((tile.units.unit_rows, correlation.segment(tile))),
            *(Struct(divider(radix)) for radix in digits),
            functor.arguments,
        )
    )
    work = Work(
        flops=2 * geometry.operation.response.element_count * geometry.tap_count,
        bytes=bytes_of((source, w, *geometry.dag.loads, *geometry.dag.stores)),
        unit=MathUnit.FMA_F32,
    )
    return Launch(
        kernel=0,
        grid=(prod(digits), 1, 1),
        block=(tile.units.threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=correlation.work(tile).shared_bytes,
        work=work,
    )


def functor_of(correlation: PlaneCorrelation, _: PlanesTile) -> Functor:
    """The epilogue's functor, along the channels, whatever the tile."""
    return generate(
        replace(correlation.geometry.dag, result=None),
        accumulator=DataType.FLOAT,
        vector_axis=1,
        space=correlation.space,
    )


def knobs(correlation: PlaneCorrelation, arch: ArchSpec) -> tuple[Knob, ...]:
    best = best_tile(correlation, arch)
    return (
        *unit_knobs(best.units, correlation.lanes),
        Knob("parts", KnobType.SPLIT_P_SLC, PARTS, best.parts, "blocks that share the planes of targets"),
        Knob("stages", KnobType.STAGES, STAGES, best.stages, "planes of the source in shared memory"),
    )


def tile_of(correlation: PlaneCorrelation, chosen: Choices) -> PlanesTile | str:
    """The tile of resolved knobs, or why there is none."""
    tile = PlanesTile(chosen_units(chosen), parts=chosen[KnobType.SPLIT_P_SLC], stages=chosen[KnobType.STAGES])
    return unfit(tile.units, correlation.axes, correlation.work(tile)) or tile


def crowds(correlation: PlaneCorrelation, chosen: Choices, arch: ArchSpec) -> bool:
    """``BlockWork.crowds`` of resolved knobs; short walks along images gain from an early start even so (measured)."""
    tile = tile_of(correlation, chosen)
    return not isinstance(tile, str) and not correlation.images_as_planes and correlation.work(tile).crowds(arch)


@lru_cache(maxsize=128)
def best_tile(correlation: PlaneCorrelation, arch: ArchSpec) -> PlanesTile:
    """The fastest tile by the estimate of its work."""

    _, row_axis, column_axis = correlation.axes
    lanes = correlation.lanes[-1]
    least = PlanesTile(Units(lanes, row_axis.up, column_axis.up, 1, 1), 1, DEFAULT_STAGES)
    moved = correlation.moved_bytes
    best, _ = min(correlation.tiles(arch), key=lambda found: found[1].seconds(moved, arch), default=(least, None))
    variants = (replace(best, parts=parts) for parts in PARTS if parts <= correlation.axes[0].targets)
    return min(variants, key=lambda tile: estimated_s(correlation, tile, arch))


def estimated_s(correlation: PlaneCorrelation, tile: PlanesTile, arch: ArchSpec) -> float:
    return correlation.work(tile).seconds(correlation.moved_bytes, arch)


def _weights_places(correlation: PlaneCorrelation) -> tuple[int, list[int]]:
    """Offset of the first filter's tap 0, and the strides of taps along planes, rows and columns."""
    strides = correlation.geometry.spatial_strides(correlation.geometry.operation.filter)
    pairs = list(zip(correlation.axes, strides, strict=True))
    first = sum((axis.taps - 1) * stride for axis, stride in pairs if axis.is_reversed)
    return first, [-stride if axis.is_reversed else stride for axis, stride in pairs]

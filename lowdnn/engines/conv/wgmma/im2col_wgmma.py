"""Common parts of the engines that compute a convolution with ``conv_im2col_wgmma.cu``: forward, and backward data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.codegen.functor import generate
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.conv.wgmma.im2col_choice import Im2colChoice
from lowdnn.engines.conv.wgmma.im2col_product import LEAST_PADDING, Im2colProduct
from lowdnn.engines.conv.wgmma.pixel_output import line_map, part_arguments
from lowdnn.engines.conv.wgmma.spatial_axes import with_fewest_axes, with_taps_last
from lowdnn.engines.conv.wgmma.valid_pixels import valid_share
from lowdnn.engines.floor import Contraction, Floor, Floored, Modelled, Multipliers
from lowdnn.engines.gemm import wgmma_model
from lowdnn.engines.gemm.epilogue_reductions import EpilogueReductions
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType, wgmma_type
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, add_slice_sum, full_loads
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.gemm.wgmma_cut import WgmmaCut
from lowdnn.engines.gemm.wgmma_model import SMALLEST_COLUMNS
from lowdnn.engines.gemm.wgmma_output import (
    OutputStore,
    handing_back,
    pixel_layout,
    slice_argument,
    slice_macros,
)
from lowdnn.engines.gemm.wgmma_tiles import ClassSchedule, TileStore
from lowdnn.engines.launch import ceil_div, i32, macros, moved_bytes
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Pointer,
    Struct,
    TensorMap,
    TensorPointer,
    Work,
    WorkspacePointer,
)
from lowdnn.status import BadParamError, Status


class Im2colWgmma(ProblemEngine[Im2colChoice], Floored, Modelled):
    """An engine; a subclass chooses the operation."""

    name: str
    index: int
    anchors: Anchors
    limits = reduced(ConvolutionOperation)
    target = WGMMA_TARGET
    terms: ClassVar[int] = 1
    numerical_notes: tuple[NumericalNote, ...] = (
        NumericalNote.TENSOR_CORE,
        NumericalNote.TF32_INPUTS,
        NumericalNote.REDUCED_PRECISION_REDUCTION,
    )

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> Im2colChoice | Refusal:
        """Refuses other architectures, types without wgmma, geometry beyond tensor maps, slow reductions."""
        product = self._matched(graph)
        if isinstance(product, Refusal):
            return product
        choice = Im2colChoice(product, arch)
        slow = choice.slowness
        return Refusal(self.name, slow) if slow else choice

    def floor(self, contraction: Contraction) -> Floor:
        """Summed channels fill at least half rows of a stage, the output's channels the smallest tile; padding may be
        skipped.
        """
        if not isinstance(contraction, ConvolutionOperation) or 0 in contraction.filter.dims:
            return Floor(Multipliers.FASTEST)
        filters, channels = contraction.filter.dims[0] // contraction.groups, contraction.filter.dims[1]
        lines, depth = (channels, filters) if contraction.output is contraction.image else (filters, channels)
        half_row = STAGE_ROW_BYTES // 2 // contraction.filter.element_bytes
        share = valid_share(contraction)
        multiplied = share if share <= 1 - LEAST_PADDING else 1.0
        waste = self.terms * _padding(depth, half_row) * _padding(lines, SMALLEST_COLUMNS)
        return Floor(Multipliers.fastest(self.terms), waste=waste * multiplied)

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        return wgmma_model.busy_launch(self.accepted(graph, arch).cut.tiled, arch)

    def knobs_of(self, problem: Im2colChoice, arch: ArchSpec) -> tuple[Knob, ...]:
        """Tile, ring, warps, cluster, parts of k and raster of the product as the tiles see it, and whether they are
        transposed.
        """
        return _knobs(problem)

    def parts(self, problem: Im2colChoice, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches if necessary, the product, and the sum of its slices if k is split."""
        parts = self._parts(problem.product, arch, chosen)
        parts.numerical_notes = wgmma_model.sum_notes(problem.product.operands.instruction, chosen)
        return parts

    @abstractmethod
    def product(self, graph: OperationGraph) -> Im2colProduct | Refusal:
        """The operation as a product, or why it is not one."""

    def instruction(self, label: str, image: Tensor, weights: Tensor, convolution: Convolution) -> WgmmaType | Refusal:
        """The instruction for the operands' types.  label: the operation's name in messages."""
        found = wgmma_type(image.data_type, weights.data_type, self.terms)
        if found is None:
            got = f"{image.data_type.name} and {weights.data_type.name}"
            types = "one type of wgmma (fp8 may be mixed)" if self.terms == 1 else "FLOAT"
            reason = f"{label}: expected an image and a filter of {types}, got {got}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if convolution.compute_type is DataType.DOUBLE:
            reason = "convolution.compute_type: expected FLOAT, FAST_FLOAT_FOR_FP8, HALF or INT32, got DOUBLE"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        return found

    def _matched(self, graph: OperationGraph) -> Im2colProduct | Refusal:
        over = with_fewest_axes(graph)
        product = self.product(over)
        if isinstance(product, Refusal):
            return product
        if refused := product.refuse_shape():
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        turned = with_taps_last(over)
        other = self.product(turned) if turned else None
        return replace(product, turned=other) if isinstance(other, Im2colProduct) else product

    def _parts(self, product: Im2colProduct, arch: ArchSpec, chosen: Choices) -> PlanParts:
        parts = PlanParts()
        if not product.pixels * product.operands.filter.lines:
            return parts
        is_transposed = bool(chosen[KnobType.SWAP_AB])
        split = product.with_split_edges if chosen[KnobType.EDGE] else None
        if split is not None:
            if chosen[KnobType.SPECFILT]:
                raise BadParamError.at(f"{self.name}.SPECFILT", expected="0 with EDGE", got=chosen[KnobType.SPECFILT])
            product, chosen = split, {**chosen, **wgmma_model.WHOLE_K}
        is_promoted = wgmma_model.chosen_promotion(product.operands.instruction, chosen)
        product = replace(product.with_k(chosen[KnobType.TILEK]), is_promoted=is_promoted)
        if variant := chosen[KnobType.SPECFILT]:
            if variant >= len(product.variants):
                expected = f"at most {len(product.variants) - 1} with TILEK {product.operands.stage_k}"
                raise BadParamError.at(f"{self.name}.SPECFILT", expected=expected, got=str(variant))
            product, chosen = product.variants[variant], {**chosen, **wgmma_model.WHOLE_K}
        if problem := product.swap_problem(is_transposed):
            raise BadParamError.at(f"{self.name}.SWAP_AB", expected=problem, got=int(is_transposed))
        tiling = wgmma_model.tiling_of(self.name, product.product(is_transposed), arch, chosen)
        image, weights = (
            packed_operand(parts, operand.tensor.uid, operand.packing, overlaps=True)
            for operand in (product.operands.image, product.operands.filter)
        )
        if (filter_operand := product.operands.filter).is_split:
            weights = filter_operand.split.add_to(parts, weights)
        cut = _Cut(tiling, bool(chosen[KnobType.OUTPUT_TMA_ENABLE]), product, is_transposed, image, weights)
        slices = Slices(cut.splits, product.output.rows, product.output.columns)
        slices_at = parts.reserve(slices.size_bytes if cut.splits > 1 else 0)
        left = cut.stored.reduction_slices(tiling.tile, cut.grid(arch), is_transposed=is_transposed)
        totals = cut.reductions.reserve(parts, left)
        kernel = parts.kernel(cut.kernel)
        written_bytes = slices.size_bytes if cut.splits > 1 else moved_bytes(product.dag)
        written_bytes += cut.reductions.totals_bytes(left)
        parts.launches.append(cut.launch(kernel, arch, cut.outputs(slices, slices_at, totals), written_bytes))
        cut.reductions.combine(parts, left, totals, overlaps=True)
        if cut.splits > 1:
            functor, vector, stored_bytes = cut.stored.functor, cut.stored.vector, moved_bytes(product.dag)
            add_slice_sum(parts, product.output, functor, vector, slices, slices_at, stored_bytes, overlaps=True)
        return parts


def _padding(extent: int, unit: int) -> float:
    """``extent`` rounded up to whole units, as a multiple of ``extent``."""
    return ceil_div(extent, unit) * unit / extent


def _knobs(choice: Im2colChoice) -> tuple[Knob, ...]:
    product, operands, cut = choice.product, choice.product.operands, choice.cut
    variant, is_transposed = cut.preferred
    tiling = wgmma_model.best(cut.tiled, choice.arch)
    whole_k = operands.instruction.stage_k
    is_split = operands.instruction.is_split
    is_fixed = bool(product.reductions and product.steps) or is_split
    stores = (1,) if product.reductions and product.steps else (0, 1)
    swaps = (int(is_transposed),) if is_fixed or (operands.converted and len(product.variants) == 1) else (0, 1)
    depths = (whole_k,) if operands.converted or is_split else (whole_k // 2, whole_k)
    return (
        *wgmma_model.knobs(product.product(is_transposed), tiling),
        Knob(
            "windows",
            KnobType.SPECFILT,
            tuple(range(len(product.variants))),
            variant,
            "1: taps of the last axis that has several share windows of pixels, k in one part, or a filter of one "
            "tap stays in shared memory; 2: with swap, it stays with windows",
        ),
        Knob(
            "edge",
            KnobType.EDGE,
            (0, 1) if product.with_split_edges else (0,),
            int(cut is not choice),
            "1: pixels near the edges are computed separately, without taps that read padding; k in one part, "
            "without windows",
        ),
        Knob("tile_k", KnobType.TILEK, depths, operands.stage_k, "channels of a k block"),
        Knob("swap", KnobType.SWAP_AB, swaps, int(is_transposed), "1: the tile's rows are the output's columns"),
        Knob("store", KnobType.OUTPUT_TMA_ENABLE, stores, 1, "1: store by tensor map where the output has one"),
        *wgmma_model.promotion_knobs(operands.instruction, product.compute_type),
    )


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_im2col_wgmma.cu``, in addition to those of its tile and its data types."""

    FILTER_MN_MAJOR: int
    PIXELS_ARE_ROWS: int
    TRANSPOSED: int
    SPATIAL: int
    PIXEL_CLASSES: int
    MAPS: int
    TAP_RUN: int
    LAST_RUN: int
    TAP_DISTANCE: int
    WINDOW_PIXELS: int
    RESIDENT_BLOCKS: int
    CHANNEL_BYTES: int
    CONVERTED: int
    TF32X3: int


@dataclass(frozen=True)
class _Cut(WgmmaCut):
    """A product with its tiling, store and operands.

    is_transposed: the tile's rows are the output's columns.
    """

    product: Im2colProduct
    is_transposed: bool
    image: Pointer
    weights: Pointer

    @cached_property
    def schedule(self) -> ClassSchedule:
        return self.product.schedule(self.tiling, self.is_transposed)

    @property
    def splits(self) -> int:
        return self.schedule.splits

    @property
    def reductions(self) -> EpilogueReductions:
        """The reductions of a product that has not been refused."""
        reductions = self.product.epilogue_reductions
        assert isinstance(reductions, EpilogueReductions), reductions
        return reductions

    @cached_property
    def stored(self) -> OutputStore:
        """The stored output of a product that is not split; for a split product, the store of the slice sum."""
        product = self.product
        dag, output, accumulator = product.dag, product.output, product.operands.instruction.accumulator
        by_map = self.allows_map and self.splits == 1 and not (self.is_transposed or product.pixels_are_columns)
        if by_map and product.steps and self._go_out_as_pixels:
            return OutputStore.of_pixels(dag, output, accumulator, product.rows, self.reductions)
        return OutputStore.of(
            dag,
            output,
            accumulator,
            product.rows,
            tile_columns=self.tiling.tile.stored_columns,
            by_map=by_map and not (product.steps or self.tiling.tile.window),
            reductions=self.reductions,
            operand_buffers=self.tiling.tile.operand_buffers,
        )

    @property
    def _go_out_as_pixels(self) -> bool:
        product = self.product
        pays = self.reductions.exist or not full_loads(product.dag, product.output)
        return pays and not product.pixels_problem(self.tiling.tile.n)

    @property
    def kernel(self) -> KernelRef:
        product, tile, stored = self.product, self.tiling.tile, self.stored
        operands, converted = product.operands, product.operands.converted
        instruction = product.kind(self.is_transposed)
        distance = tile.window.distance if tile.window else 0
        params = Params(
            FILTER_MN_MAJOR=int(operands.filter.is_mn_major),
            PIXELS_ARE_ROWS=int(product.pixels_are_rows(self.is_transposed)),
            TRANSPOSED=int(self.is_transposed),
            SPATIAL=len(product.filter_taps),
            PIXEL_CLASSES=len(product.classes),
            MAPS=len(operands.image.corners(product.classes)),
            TAP_RUN=tile.taps,
            LAST_RUN=(product.classes[0].axes[-1].taps - 1) % tile.taps + 1 if tile.window else 1,
            TAP_DISTANCE=distance,
            WINDOW_PIXELS=self._stage_pixels,
            RESIDENT_BLOCKS=tile.resident_blocks,
            CHANNEL_BYTES=tile.row_bytes,
            CONVERTED=int(converted is not None),
            TF32X3=int(instruction.is_split),
        )
        layout = (
            f"{params.SPATIAL}d{'fp'[params.PIXELS_ARE_ROWS]}{'km'[params.FILTER_MN_MAJOR]}{'t' * params.TRANSPOSED}"
        )
        classes = f"_x{params.PIXEL_CLASSES}m{params.MAPS}" if product.steps else ""
        if tile.window:
            classes = f"_r{params.TAP_RUN}l{params.LAST_RUN}x{params.TAP_DISTANCE}"
        space = f"{product.output.row_axes}of{product.output.space.rank}"
        ending = f"{stored.label}_v{stored.vector}_sm90a_{stored.functor.digest}"
        if self.splits > 1:
            ending = "slice_sm90a"
        texts = [] if self.splits > 1 else [stored.functor.text]
        operand: tuple[tuple[str, int | str], ...] = ()
        if converted is not None:
            texts.insert(0, converted.functor.text)
            has_tail, has_padding = operands.has_tail(product.classes), operands.has_padding(product.classes)
            operand = (*converted.macros(has_tail=has_tail), ("HAS_PADDING", int(has_padding)))
            label = converted.label(has_tail=has_tail)
            classes += f"_{label}{'z' * has_padding}_{converted.functor.digest}"
        return KernelRef(
            name=f"conv_im2col_wgmma_{instruction.label}_{tile.label}_{layout}{classes}_{space}_{ending}",
            source="conv/wgmma/conv_im2col_wgmma.cu",
            target=WGMMA_TARGET,
            parameters=(
                *instruction.macros,
                *tile.macros,
                *macros(params),
                *operand,
                *(slice_macros(product.output) if self.splits > 1 else stored.macros),
            ),
            generated="\n".join(texts),
        )

    def grid(self, arch: ArchSpec) -> int:
        """Blocks of the grid: the number of resident blocks in whole clusters, but at most one cluster for each
        item."""
        return self.schedule.grid(arch.sm_count)

    def launch(self, kernel: int, arch: ArchSpec, outputs: tuple[Argument, ...], written_bytes: int) -> Launch:
        product = self.product
        work = Work(
            flops=product.operands.instruction.terms * self.schedule.flops,
            bytes=product.operands.read_bytes + written_bytes,
            unit=product.operands.instruction.unit,
            busy_s=wgmma_model.busy_seconds(product.product(self.is_transposed), self.tiling, arch),
        )
        schedule = self.schedule.argument(arch.sm_count)
        arguments = Struct((*self._operands, *outputs, schedule, *self._geometry, *self._converted))
        store = TileStore.SLICE if self.splits > 1 else self.stored.store
        return self.tile_launch(kernel, self.grid(arch), arguments, store, work)

    @property
    def _operands(self) -> tuple[Argument, ...]:
        product, operands, tile = self.product, self.product.operands, self.tiling.tile
        if product.pixels_are_rows(self.is_transposed):
            pixels, lines, sharers = self._stage_pixels // tile.cluster_n, tile.n, tile.cluster_m
        else:
            pixels, lines, sharers = self._stage_pixels // tile.cluster_m, tile.m, tile.cluster_n
        image = (
            TensorMap(self.image, operands.image_map(pixel_class, pixels))
            for pixel_class in operands.image.corners(product.classes)
        )
        return (*image, TensorMap(self.weights, operands.filter_map(lines, sharers)))

    def outputs(self, slices: Slices, slices_at: int, totals: tuple[WorkspacePointer, ...]) -> tuple[Argument, ...]:
        """The kernel's ``Epilogue::Output``, one for each class.  totals: pointers to the totals of the reductions."""
        product = self.product
        if product.steps:
            return tuple(self._part(part, firsts, totals) for part, firsts in product.parts)
        if self.splits > 1:
            return (slice_argument(product.rows, slices, slices_at),)
        if self.tiling.tile.window:
            (windows,) = product.classes
            extents = i32((windows.pixels(product.images), product.output.columns))
            return (Struct((*extents, line_map(product.output, windows.extents[-1]), self.stored.functor.arguments)),)
        return (self.stored.argument(self.tiling.tile, totals),)

    @property
    def _stage_pixels(self) -> int:
        tile = self.tiling.tile
        return tile.a_lines if self.product.pixels_are_rows(self.is_transposed) else tile.b_lines

    def _part(self, part: OutputSpace, firsts: Mapping[int, int], totals: tuple[WorkspacePointer, ...]) -> Struct:
        product, dag = self.product, self.product.dag
        accumulator, stored = product.operands.instruction.accumulator, self.stored.stored
        maps: tuple[Argument, ...] = ()
        if stored is None:
            functor = generate(dag, accumulator=accumulator, vector_axis=part.space.rank - 1, space=part.space)
        else:
            functor = handing_back(dag, part, accumulator, self.reductions)
            target = TensorPointer(stored.uid, firsts[stored.uid] * stored.element_bytes)
            # The second map stands for an operand and is not read.
            maps = (TensorMap(target, pixel_layout(stored, part, self.tiling.tile.n)),) * 2
        extents = i32((part.rows // product.operands.groups, part.columns))
        reductions = self.reductions.arguments(totals)
        return Struct((*reductions, *maps, *extents, part.map, part_arguments(dag, functor, firsts)))

    @property
    def _geometry(self) -> tuple[Argument, ...]:
        """The kernel's classes and groups."""
        product, operands = self.product, self.product.operands
        extents = [corner.extents for corner in operands.image.corners(product.classes)]
        # Rounded up to a whole k block, since a copy's rows begin at a multiple of 16 bytes.
        channels = operands.groups * operands.image.group_channels
        channels_end = ceil_div(channels, operands.stage_k) * operands.stage_k
        return (
            *(
                pixel_class.struct(
                    product.images, extents.index(pixel_class.extents), product.filter_taps, channels_end
                )
                for pixel_class in product.classes
            ),
            *i32((operands.image.group_channels, operands.filter.group_lines, operands.filter.group_depth)),
        )

    @property
    def _converted(self) -> tuple[Argument, ...]:
        """The arguments of the converted operand, and the image's extents."""
        operands = self.product.operands
        if operands.converted is None:
            return ()
        return (operands.converted.argument, *i32(operands.image.tensor.dims[2:]))

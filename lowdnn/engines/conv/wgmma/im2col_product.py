"""A convolution as the product of pixels and columns of ``conv_im2col_wgmma.cu``: output, variants and tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lowdnn.engines.conv.wgmma.im2col import (
    PixelClass,
    forward_class,
    gradient_classes,
    image_share,
    offset_problem,
    split_edges,
)
from lowdnn.engines.conv.wgmma.im2col_operands import FilterOperand, ImageOperand
from lowdnn.engines.conv.wgmma.operand_pair import OperandPair
from lowdnn.engines.conv.wgmma.pixel_output import index_problem, line_rows, part_of, pixel_rows
from lowdnn.engines.gemm import wgmma_model
from lowdnn.engines.gemm.converted_operand import ConvertedOperand, functions_of
from lowdnn.engines.gemm.epilogue_reductions import NO_REDUCTIONS, EpilogueReductions
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WGMMA_TYPES, WgmmaType
from lowdnn.engines.gemm.output_space import OutputSpace, contiguous_stores, output_space
from lowdnn.engines.gemm.wgmma_model import WgmmaTiling
from lowdnn.engines.gemm.wgmma_output import (
    MAP_COLUMNS,
    mapped_operand,
    most_accumulators,
    pixels_problem,
    stored_reduction_problem,
)
from lowdnn.engines.gemm.wgmma_product import Conversion, WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import WARPGROUP_ROWS, ClassSchedule, TapWindow
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import ceil_div, moved_bytes
from lowdnn.enums import DataType
from lowdnn.graph.pattern import AnchoredWithReductions, PointwiseDag
from lowdnn.graph.reduction_pattern import AnyReduction
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_forward import ConvolutionForward

#: Most classes: tensor maps, schedules and taps of every class are parameters of the kernel.
_MAX_CLASSES = 64
#: Most classes with a store by tensor maps, which are parameters as well.
_MAX_MAPPED_CLASSES = 16
#: Most taps that one window has all of.
_MAX_WINDOW_TAPS = 7
#: Taps of windows that have not all of them. The more a window has, the less is loaded for each, but the longer are the
#: lines, whose tiles may take one more wave.
_RUNS = (4, 3, 2)
#: Most pixels that a window has in addition to a tile's.
_MAX_REACH = 32
#: Most bytes of a resident filter.
_MAX_RESIDENT_BYTES = 96 << 10
#: Columns of the widest tile with a resident filter.
_MAX_RESIDENT_COLUMNS = 256
#: The share of multiplications with padding from which on edges may be split off.
LEAST_PADDING = 0.1


@dataclass(frozen=True)
class Im2colProduct:
    """A convolution forward, or backward in the data.

    label: the operation's name in messages.
    classes: classes of the output's pixels, those with the most taps first. With windows, a line has more pixels than
    the output's.
    steps: from one pixel of a class to the next, if each class is stored as a part of the output; else empty.
    pixels_are_columns: the output is contiguous along its last axis, and its columns are pixels.
    reductions: reductions of the output.
    is_promoted: see ``WgmmaTile``.
    keeps_filter: a block keeps the filter in shared memory: as the rows of the tiles with windows, else as their
    columns.
    turned: the product over permuted axes, the last of which has several taps, if it has one here.
    """

    label: str
    compute_type: DataType
    operands: OperandPair
    filter_taps: tuple[int, ...]
    classes: tuple[PixelClass, ...]
    steps: tuple[int, ...]
    dag: PointwiseDag
    output: OutputSpace
    pixels_are_columns: bool
    reductions: tuple[AnyReduction, ...]
    keeps_filter: bool = False
    is_promoted: bool = False
    turned: Im2colProduct | None = None

    @classmethod
    def forward(
        cls,
        matched: AnchoredWithReductions[ConvolutionForward],
        instruction: WgmmaType,
        converted: ConvertedOperand | None = None,
        *,
        converts_image: bool = False,
    ) -> Im2colProduct:
        """converted: the operand that the prologue computes, if there is one."""
        operation = matched.anchor
        x, w, taps = operation.x, operation.w, operation.w.dims[2:]
        if converted is not None:
            x, w = (converted.raw, w) if converts_image else (x, converted.raw)
        image, weights = ImageOperand.of(x, operation.groups), FilterOperand.forward(w, operation.groups)
        operands = OperandPair.of(instruction, image, weights).with_converted(converted, converts_image)
        return cls._of(matched, operands, (forward_class(operation.convolution, taps, operation.y.dims[2:]),), ())

    @classmethod
    def gradient(
        cls,
        matched: AnchoredWithReductions[ConvolutionBackwardData],
        instruction: WgmmaType,
        converted: ConvertedOperand | None = None,
    ) -> Im2colProduct:
        """converted: dy, if the prologue computes it."""
        operation = matched.anchor
        strides, taps = operation.convolution.strides, operation.w.dims[2:]
        image = ImageOperand.of(operation.dy if converted is None else converted.raw, operation.groups)
        # After a group's filters, an MN-major operand would have those of the next group next to the image's padding.
        ends_inside_rows = operation.groups > 1 and image.packing is not None
        allows_mn_major = instruction.has_mn_major and not ends_inside_rows
        weights = FilterOperand.gradient(operation.w, operation.groups, allows_mn_major)
        return cls._of(
            matched,
            OperandPair.of(instruction, image, weights).with_converted(converted, converts_image=True),
            gradient_classes(operation.convolution, taps, operation.dx.dims[2:]),
            strides if max(strides) > 1 else (),
        )

    @classmethod
    def _of(
        cls,
        matched: AnchoredWithReductions[ConvolutionForward] | AnchoredWithReductions[ConvolutionBackwardData],
        operands: OperandPair,
        classes: tuple[PixelClass, ...],
        steps: tuple[int, ...],
    ) -> Im2colProduct:
        dag, compute_type = matched.epilogue, matched.anchor.convolution.compute_type
        pixels_are_columns = not steps and contiguous_stores(dag, len(dag.dims) - 1) > contiguous_stores(dag, 1)
        output = pixel_rows(dag, operands.groups, in_parts=bool(steps))
        if pixels_are_columns:
            output = output_space(dag, (1,), (0, *range(2, len(dag.dims))), kept=(1,), operands={})
        return cls(
            label=matched.anchor.label,
            compute_type=compute_type,
            operands=operands,
            filter_taps=matched.anchor.filter.dims[2:],
            classes=classes,
            steps=steps,
            dag=dag,
            output=output,
            pixels_are_columns=pixels_are_columns,
            reductions=matched.reductions,
            is_promoted=wgmma_model.is_promoted(operands.instruction, compute_type),
        )

    @property
    def images(self) -> int:
        return self.dag.dims[0]

    @property
    def pixels(self) -> int:
        """Pixels of the output in all classes."""
        return self.images * prod(self.dag.dims[2:])

    def with_k(self, stage_k: int) -> Im2colProduct:
        """The product with ``stage_k`` channels in a k block."""
        return replace(self, operands=self.operands.with_k(stage_k))

    @cached_property
    def walked_pixels(self) -> int:
        """Pixels of all classes, including those beyond the output."""
        return sum(pixel_class.pixels(self.images) for pixel_class in self.classes)

    @cached_property
    def variants(self) -> tuple[Im2colProduct, ...]:
        """Variants: operands read tap by tap; taps of the last axis from one window, or from windows of ``_RUNS`` taps;
        a resident filter.
        """
        operands, windows = self.operands, self._with_windows
        if operands.instruction.is_split:
            return (self,)
        if not windows:
            return (self, replace(self, keeps_filter=True)) if self._may_keep_columns else (self,)
        kept_bytes = windows[0].classes[0].taps * operands.chunks * WARPGROUP_ROWS * operands.row_bytes
        stays = operands.groups == 1 and operands.filter.lines <= WARPGROUP_ROWS and kept_bytes <= _MAX_RESIDENT_BYTES
        if len(windows) > 1 or not stays:
            return (self, *windows)
        return (self, *windows, replace(windows[0], keeps_filter=True))

    @cached_property
    def with_split_edges(self) -> Im2colProduct | None:
        """The product with pixels near the edges in separate classes, whose taps read no padding.

        None if these pixels are few, or if their part of the output cannot be stored separately.
        """
        operands = self.operands
        if self.reductions or operands.converted or self.pixels_are_columns or not self.output.rows:
            return None
        extents = operands.image.tensor.dims[2:]
        if image_share(self.classes, extents) > 1 - LEAST_PADDING:
            return None
        steps = self.steps or (1,) * len(self.filter_taps)
        classes = split_edges(self.classes, extents, steps)
        if len(classes) > _MAX_CLASSES or index_problem(self.dag, operands.groups, steps):
            return None
        output = pixel_rows(self.dag, operands.groups, in_parts=True)
        found = replace(self, classes=classes, steps=steps, output=output, turned=None)
        return None if offset_problem(classes) or found._map_problem() else found

    @property
    def _may_keep_columns(self) -> bool:
        """Whether a filter of one tap may stay resident: else all blocks would ask for the same cache lines for each
        tile.
        """
        operands, weights = self.operands, self.operands.filter
        contiguous = weights.lines if weights.is_mn_major else weights.depth
        has_whole_lines = contiguous * operands.instruction.element_bytes % STAGE_ROW_BYTES == 0
        is_plain = not (self.steps or self.reductions or operands.converted or self.pixels_are_columns)
        kept_bytes = operands.chunks * weights.lines * operands.row_bytes
        is_small = weights.lines <= _MAX_RESIDENT_COLUMNS and kept_bytes <= _MAX_RESIDENT_BYTES
        return prod(self.filter_taps) == 1 and operands.groups == 1 and is_plain and is_small and not has_whole_lines

    @cached_property
    def _with_windows(self) -> tuple[Im2colProduct, ...]:
        """The product with windows of all taps of the last axis, or of fewer; none if taps do not share pixels."""
        if self.turned:
            turned = self.turned.with_k(self.operands.stage_k)
            return replace(turned, is_promoted=self.is_promoted)._with_windows
        last = self.classes[0].axes[-1]
        is_one_class = len(self.classes) == 1 and not self.steps
        if not is_one_class or self.pixels_are_columns or self.reductions or last.stride > 1 or last.taps == 1:
            return ()
        if self.operands.converted is not None and not self._converts_windows:
            return ()
        runs = (last.taps,) if last.taps <= _MAX_WINDOW_TAPS else _RUNS
        image_extent, output = self.operands.image.tensor.dims[-1], line_rows(self.dag, self.operands.groups)
        found = [
            replace(self, classes=(self.classes[0].with_windows(image_extent, run),), output=output)
            for run in runs
            if (run - 1) * last.offset_step <= _MAX_REACH
        ]
        return tuple(one for one in found if one.walked_pixels <= MAX_INDEX and not one._map_problem())

    @property
    def _converts_windows(self) -> bool:
        """Whether windows can be converted in place, in registers that an operand of the output's size would take."""
        converted = self.operands.converted
        if converted is None or not self.operands.converts_image or not converted.allows_in_place:
            return False
        if self.classes[0].axes[-1].taps > _MAX_WINDOW_TAPS:
            return False
        return all(tensor.dims != self.dag.dims for tensor in self.dag.loads)

    @property
    def keeps_columns(self) -> bool:
        """Whether the resident filter makes up the columns of the tiles."""
        return self.keeps_filter and self.classes[0].axes[-1].run == 1

    @property
    def has_many_taps(self) -> bool:
        """Whether a line of the filter has more taps than one window."""
        return any(pixel_class.axes[-1].taps > _MAX_WINDOW_TAPS for pixel_class in self.classes)

    @property
    def has_short_windows(self) -> bool:
        """Whether windows have not all taps of a line. Measured, they are better with pixels as the tiles' columns."""
        return 1 < self.classes[0].axes[-1].run < self.classes[0].axes[-1].taps

    def window(self, is_transposed: bool) -> TapWindow | None:
        """The window of a stage, if several taps share one."""
        last = self.classes[0].axes[-1]
        return TapWindow(last.run, last.offset_step, self.pixels_are_rows(is_transposed)) if last.run > 1 else None

    @cached_property
    def epilogue_reductions(self) -> EpilogueReductions | str:
        """The reductions, or why the epilogue cannot compute them."""
        if not self.reductions:
            return NO_REDUCTIONS
        found = EpilogueReductions.of(self.reductions, self.dag, self.output)
        if isinstance(found, str) or not self.steps:
            return found
        name = type(self.reductions[0]).__name__
        if found.row:
            return f"{name}: expected results for channels or for everything after a gradient with strides, got pixels"
        problem = stored_reduction_problem(found, self.dag) or self.pixels_problem(MAP_COLUMNS)
        return f"{name}.x: {problem}" if problem else found

    @cached_property
    def parts(self) -> tuple[tuple[OutputSpace, Mapping[int, int]], ...]:
        """Each class's part of the output, and by uid the offset in elements of each tensor's part."""
        return tuple(part_of(self.output, pixel_class, self.steps) for pixel_class in self.classes)

    def pixels_problem(self, tile_columns: int) -> str:
        """Why the parts cannot be stored by im2col maps; empty if they can."""
        if self.operands.groups > 1:
            return f"expected one group, got {self.operands.groups}"
        if len(self.classes) > _MAX_MAPPED_CLASSES:
            return f"expected at most {_MAX_MAPPED_CLASSES} residues of pixels, got {len(self.classes)}"
        return pixels_problem(self.dag, self.output, self.parts, tile_columns)

    @property
    def rows(self) -> int:
        """Rows of the output in one group."""
        return self.output.rows // self.operands.groups

    def pixels_are_rows(self, is_transposed: bool) -> bool:
        """Whether rows of the tiles are pixels.  is_transposed: they are the output's columns."""
        return self.pixels_are_columns == is_transposed

    def kind(self, is_transposed: bool) -> WgmmaType:
        """The instruction, with the types of rows and columns."""
        instruction = self.operands.instruction
        if self.pixels_are_rows(is_transposed) or instruction.is_split:
            return instruction
        return WGMMA_TYPES[instruction.b, instruction.a]

    def product(self, is_transposed: bool) -> WgmmaProduct:
        """The product for the tiles' model; classes count with their mean depth, an empty output as one element."""
        return self._transposed_product if is_transposed else self._plain_product

    @cached_property
    def _plain_product(self) -> WgmmaProduct:
        return self._product(False)

    @cached_property
    def _transposed_product(self) -> WgmmaProduct:
        return self._product(True)

    def _product(self, is_transposed: bool) -> WgmmaProduct:
        operands, image, weights = self.operands, self.operands.image, self.operands.filter
        m, n = max(self.walked_pixels, 1), max(weights.lines, 1)
        a, b = operands.image_bytes, operands.filter_bytes
        blocks = sum(pixel_class.pixels(self.images) * operands.k_blocks(pixel_class) for pixel_class in self.classes)
        is_mn_major, pixels_are_rows = weights.is_mn_major, self.pixels_are_rows(is_transposed)
        window, is_resident = self.window(is_transposed), self.keeps_filter
        has_operand = not (is_transposed or window) and self.has_mapped_operand
        is_located = bool(self.pixels_are_columns or window)
        found = self.epilogue_reductions
        reductions = found if isinstance(found, EpilogueReductions) else NO_REDUCTIONS
        rows, columns = (image, weights) if pixels_are_rows else (weights, image)
        if not pixels_are_rows:
            m, n, a, b = n, m, b, a
        return WgmmaProduct(
            self.kind(is_transposed),
            operands.groups,
            m,
            n,
            max(ceil_div(blocks, m if pixels_are_rows else n), 1),
            a,
            b,
            moved_bytes(self.dag),
            is_a_mn_major=is_mn_major and not pixels_are_rows,
            is_b_mn_major=is_mn_major and pixels_are_rows,
            allows_clusters=not (is_resident or operands.converted),
            tries_clusters=False,  # measured: copies of pixels gain nothing from them
            allows_split=not (self.steps or self.reductions or window or is_resident),
            column_unit=MAP_COLUMNS if self.reductions else 8,
            is_a_misaligned=rows.is_misaligned,
            is_b_misaligned=columns.is_misaligned,
            is_a_pixels=pixels_are_rows,
            is_b_pixels=not pixels_are_rows,
            rows_continue=operands.groups > 1,
            has_many_taps=self.has_many_taps,
            has_narrow_pixels=weights.depth * operands.instruction.element_bytes < operands.row_bytes // 2,
            is_located=is_located,
            is_transposed=is_transposed and not is_located,
            has_operand=has_operand,
            window=window,
            is_a_resident=is_resident and not pixels_are_rows,
            is_b_resident=is_resident and pixels_are_rows,
            classes=tuple(self._extents(is_transposed)) if self.steps and self.pixels * weights.lines else (),
            row_bytes=operands.row_bytes,
            most_accumulators=most_accumulators(self.dag, self.output, reductions, has_operand=has_operand),
            sums_columns=reductions.column is not None,
            is_promoted=self.is_promoted,
            conversion=self._conversion,
            functions=operands.converted.functions if operands.converted else 0,
            epilogue_functions=functions_of(self.dag),
        )

    @property
    def _conversion(self) -> Conversion:
        if self.operands.converted is None:
            return Conversion.NONE
        return Conversion.IN_PLACE if self.classes[0].axes[-1].run > 1 else Conversion.REGISTERS

    @cached_property
    def has_mapped_operand(self) -> bool:
        """Whether the epilogue loads an operand of the output's size by tensor map."""
        if self.steps or self.pixels_are_columns or not self.output.rows:
            return False
        return mapped_operand(self.dag, self.output, self.rows) is not None

    def swap_problem(self, is_transposed: bool) -> str:
        """Why the tiles cannot be transposed, or not be so, or an empty string."""
        if not self._has_register_operand or is_transposed == self.needs_transposed:
            return ""
        return f"{int(self.needs_transposed)} for an operand that goes through registers"

    @property
    def _has_register_operand(self) -> bool:
        """Whether an operand goes through registers, so that it makes up the rows of the tiles."""
        return self._conversion is Conversion.REGISTERS or self.operands.instruction.is_split

    @property
    def needs_transposed(self) -> bool:
        """Whether the operand that goes through registers, or else is converted, makes up the output's columns."""
        goes_image = self.operands.converts_image or self.operands.instruction.is_split
        return goes_image == self.pixels_are_columns

    def schedule(self, tiling: WgmmaTiling, is_transposed: bool) -> ClassSchedule:
        """The schedule of the tiles of each class, one class after the other."""
        extents, groups = self._extents(is_transposed), self.operands.groups
        return ClassSchedule(tuple(tiling.schedule_of(m, n, k_blocks, groups) for m, n, k_blocks in extents))

    def _extents(self, is_transposed: bool) -> Iterator[tuple[int, int, int]]:
        """Rows, columns and stages of each class's product."""
        for pixel_class in self.classes:
            m, n = pixel_class.pixels(self.images), self.operands.filter.lines
            yield (*((m, n) if self.pixels_are_rows(is_transposed) else (n, m)), self.operands.k_blocks(pixel_class))

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""
        weights, groups = self.operands.filter, self.operands.groups
        depth_bytes = weights.depth * self.operands.instruction.element_bytes
        if groups > 1 and 2 * depth_bytes < STAGE_ROW_BYTES:
            return f"groups: expected groups of at least {STAGE_ROW_BYTES // 2} bytes of channels, got {depth_bytes}"
        if len(self.classes) > _MAX_CLASSES:
            return f"convolution.strides: expected at most {_MAX_CLASSES} residues, got {len(self.classes)}"
        if weights.is_split and (problem := weights.split.problem):
            return f"{weights.tensor.label}.dims: expected {problem}"
        if weights.packing and weights.packing.tensor.rank > 5:
            return f"groups: expected 1 with {len(self.filter_taps)} spatial axes of this type, got {groups}"
        if refused := index_problem(self.dag, groups, self.steps):
            return refused
        if isinstance(self.epilogue_reductions, str):
            return self.epilogue_reductions
        if self.reductions and self.operands.converted and self.needs_transposed:
            return f"{type(self.reductions[0]).__name__}.x: expected no prologue before {weights.tensor.label}"
        limits = (("output pixels", self.pixels, MAX_INDEX), ("output channels", self.dag.dims[1], MAX_INDEX))
        for what, got, limit in limits:
            if got > limit:
                return f"dims: expected at most {limit} {what}, got {got}"
        return offset_problem(self.classes) or self._map_problem()

    def _map_problem(self) -> str:
        if not self.dag.dims[0] * self.pixels * self.dag.dims[1]:
            return ""
        return self.operands.map_problem(self.classes)

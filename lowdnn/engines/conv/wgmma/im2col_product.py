"""A convolution as the product of pixels and columns of ``conv_im2col_wgmma.cu``: operands, output, limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.wgmma.im2col import PixelClass, forward_class, gradient_classes, offset_problem
from lowdnn.engines.conv.wgmma.im2col_operands import FilterOperand, ImageOperand
from lowdnn.engines.conv.wgmma.pixel_output import index_problem, line_rows, pixel_rows
from lowdnn.engines.gemm import wgmma_model
from lowdnn.engines.gemm.exits import NO_EXITS, OutputExits
from lowdnn.engines.gemm.output_space import OutputSpace, contiguous_stores, output_space
from lowdnn.engines.gemm.wgmma_model import WgmmaProduct, WgmmaTiling
from lowdnn.engines.gemm.wgmma_output import MAP_COLUMNS, exits_of, mapped_operand
from lowdnn.engines.gemm.wgmma_tiles import (
    STAGE_ROW_BYTES,
    WARPGROUP_ROWS,
    WGMMA_TYPES,
    Schedule,
    TapWindow,
    WgmmaType,
)
from lowdnn.engines.launch import bytes_of, ceil_div, moved_bytes
from lowdnn.graph.pattern import AnchoredWithExits, PointwiseDag
from lowdnn.graph.reduction_pattern import AnyReduction
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.tensor_map import tensor_map_problem

#: Indices of pixels and columns are 32-bit in the kernel, with room for a tile past the end.
_MAX_INDEX = 2**31 - 2**20
#: Tensor maps, schedules and taps of every class are parameters of the kernel.
_MAX_CLASSES = 64
#: Boxes of the smallest tile, to try a map's rules with.
_SMALLEST_TILE = 64
#: Taps of one window, and pixels of a window beyond those of a tile.
_MAX_WINDOW_TAPS = 7
_MAX_REACH = 32
#: The model's error: windows must look better by that much.
_WINDOW_MARGIN = 1.06
#: How much of a filter may stay in shared memory.
_MAX_KEPT_BYTES = 96 << 10
#: Up to so many columns of the output a tile may lie across it.
_MAX_TRANSPOSED_COLUMNS = 64


@dataclass(frozen=True)
class Im2colProduct:
    """See the module's docstring.

    classes: of the output's pixels, those with the most taps first. With windows, a line has more pixels than the
    output's.
    steps: from one pixel of a class to the next, where they are not neighbours, or empty.
    pixels_are_columns: of the output, which is contiguous along its last axis.  label: how messages name the operation.
    reductions: of the output on its way out.
    row_bytes: of channels in a k block.
    keeps_filter: a block keeps it in shared memory where it makes up the rows of the tiles.
    """

    label: str
    instruction: WgmmaType
    image: ImageOperand
    filter: FilterOperand
    filter_taps: tuple[int, ...]
    classes: tuple[PixelClass, ...]
    steps: tuple[int, ...]
    dag: PointwiseDag
    output: OutputSpace
    pixels_are_columns: bool
    reductions: tuple[AnyReduction, ...]
    row_bytes: int = STAGE_ROW_BYTES
    keeps_filter: bool = False

    @classmethod
    def forward(cls, matched: AnchoredWithExits[ConvolutionForward], instruction: WgmmaType) -> Im2colProduct:
        operation = matched.anchor
        taps = operation.w.dims[2:]
        return cls._of(
            matched,
            instruction,
            ImageOperand.of(operation.x, operation.groups),
            FilterOperand.forward(operation.w, operation.groups),
            (forward_class(operation.convolution, taps, operation.y.dims[2:]),),
            (),
        )

    @classmethod
    def gradient(cls, matched: AnchoredWithExits[ConvolutionBackwardData], instruction: WgmmaType) -> Im2colProduct:
        operation = matched.anchor
        strides, taps = operation.convolution.strides, operation.w.dims[2:]
        return cls._of(
            matched,
            instruction,
            ImageOperand.of(operation.dy, operation.groups),
            FilterOperand.gradient(operation.w, operation.groups, instruction.has_mn_major),
            gradient_classes(operation.convolution, taps, operation.dx.dims[2:]),
            strides if max(strides) > 1 else (),
        )

    @classmethod
    def _of(
        cls,
        matched: AnchoredWithExits[ConvolutionForward] | AnchoredWithExits[ConvolutionBackwardData],
        instruction: WgmmaType,
        image: ImageOperand,
        weights: FilterOperand,
        classes: tuple[PixelClass, ...],
        steps: tuple[int, ...],
    ) -> Im2colProduct:
        dag = matched.epilogue
        pixels_are_columns = not steps and contiguous_stores(dag, len(dag.dims) - 1) > contiguous_stores(dag, 1)
        output = pixel_rows(dag, image.groups, in_parts=bool(steps))
        if pixels_are_columns:
            output = output_space(dag, (1,), (0, *range(2, len(dag.dims))), kept=(1,), operands={})
        label, taps = matched.anchor.label, matched.anchor.filter.dims[2:]
        given = (label, instruction, image, weights, taps, classes, steps, dag, output, pixels_are_columns)
        # Channels past the end take a copy longer than those that are there: no row shall have half of them.
        half = STAGE_ROW_BYTES // 2
        has_half = ceil_div(weights.depth * instruction.element_bytes, half) % 2
        return cls(*given, matched.exits, half if has_half else STAGE_ROW_BYTES)

    @property
    def images(self) -> int:
        return self.dag.dims[0]

    @property
    def pixels(self) -> int:
        """Of the output, in all classes."""
        return self.images * prod(self.dag.dims[2:])

    @property
    def groups(self) -> int:
        return self.image.groups

    @property
    def stage_k(self) -> int:
        """Channels of a k block."""
        return self.row_bytes // self.instruction.element_bytes

    def with_k(self, stage_k: int) -> Im2colProduct:
        """With so many channels in a k block."""
        row_bytes = stage_k * self.instruction.element_bytes
        return self if row_bytes == self.row_bytes else replace(self, row_bytes=row_bytes)

    @cached_property
    def walked_pixels(self) -> int:
        """Of the output, and those that a class has beyond it."""
        return sum(pixel_class.pixels(self.images) for pixel_class in self.classes)

    @cached_property
    def ways(self) -> tuple[Im2colProduct, ...]:
        """To read the operands: as it is, the taps of the last axis from one window, and a filter that stays."""
        windows = self._with_windows
        if windows is None:
            return (self,)
        kept_bytes = windows.classes[0].taps * self._chunks * WARPGROUP_ROWS * self.row_bytes
        stays = self.groups == 1 and self.filter.lines <= WARPGROUP_ROWS and kept_bytes <= _MAX_KEPT_BYTES
        return (self, windows, replace(windows, keeps_filter=True)) if stays else (self, windows)

    @cached_property
    def _with_windows(self) -> Im2colProduct | None:
        """None where the taps of the last axis do not share a window of pixels."""
        last = self.classes[0].axes[-1]
        is_one_class = len(self.classes) == 1 and not self.steps
        if not is_one_class or self.pixels_are_columns or self.reductions or last.stride > 1:
            return None
        if not 1 < last.taps <= _MAX_WINDOW_TAPS or last.reach > _MAX_REACH:
            return None
        windows = self.classes[0].with_windows(self.image.tensor.dims[-1])
        found = replace(self, classes=(windows,), output=line_rows(self.dag, self.groups))
        return None if found.walked_pixels > _MAX_INDEX or found._map_problem() else found

    def window(self, is_transposed: bool) -> TapWindow | None:
        """That of a stage, where several taps share one."""
        last = self.classes[0].axes[-1]
        return TapWindow(last.run, last.offset_step, self.pixels_are_rows(is_transposed)) if last.run > 1 else None

    @cached_property
    def exits(self) -> OutputExits | str:
        """The reductions, or why they cannot be computed on the way out."""
        if not self.reductions:
            return NO_EXITS
        if self.steps or self.pixels_are_columns:
            return f"{type(self.reductions[0]).__name__}.x: expected whole rows of channels, stored one after the other"
        return exits_of(self.reductions, self.dag, self.output, self.rows)

    @property
    def rows(self) -> int:
        """Of the output, in one group."""
        return self.output.rows // self.groups

    def pixels_are_rows(self, is_transposed: bool) -> bool:
        """Of the tiles, whose rows are the output's rows or its columns."""
        return self.pixels_are_columns == is_transposed

    def kind(self, is_transposed: bool) -> WgmmaType:
        """The instruction, with the types of rows and columns."""
        if self.pixels_are_rows(is_transposed):
            return self.instruction
        return WGMMA_TYPES[self.instruction.b, self.instruction.a]

    def product(self, is_transposed: bool) -> WgmmaProduct:
        """As the tiles see it; classes count with their mean depth, and an empty output as one of one element."""
        return self._transposed_product if is_transposed else self._plain_product

    @cached_property
    def _plain_product(self) -> WgmmaProduct:
        return self._product(False)

    @cached_property
    def _transposed_product(self) -> WgmmaProduct:
        return self._product(True)

    def _product(self, is_transposed: bool) -> WgmmaProduct:
        m, n = max(self.walked_pixels, 1), max(self.filter.lines, 1)
        a, b = bytes_of((self.image.tensor,)), bytes_of((self.filter.tensor,))
        blocks = sum(pixel_class.pixels(self.images) * self.k_blocks(pixel_class) for pixel_class in self.classes)
        is_mn_major, pixels_are_rows = self.filter.is_mn_major, self.pixels_are_rows(is_transposed)
        window, is_a_resident = self.window(is_transposed), self.keeps_filter and not pixels_are_rows
        if not pixels_are_rows:
            m, n, a, b = n, m, b, a
        return WgmmaProduct(
            self.kind(is_transposed),
            self.groups,
            m,
            n,
            max(ceil_div(blocks, m if pixels_are_rows else n), 1),
            a,
            b,
            moved_bytes(self.dag),
            is_a_mn_major=is_mn_major and not pixels_are_rows,
            is_b_mn_major=is_mn_major and pixels_are_rows,
            allows_clusters=not is_a_resident,
            tries_clusters=False,  # measured: copies of pixels gain nothing from them
            allows_split=not (self.steps or self.reductions or window),
            column_unit=MAP_COLUMNS if self.reductions else 8,
            is_a_pixels=pixels_are_rows,
            is_b_pixels=not pixels_are_rows,
            is_located=bool(is_transposed or self.pixels_are_columns or window),
            has_operand=not (is_transposed or window) and self.has_mapped_operand,
            window=window,
            is_a_resident=is_a_resident,
            classes=tuple(self._extents(is_transposed)) if self.steps and self.pixels * self.filter.lines else (),
            row_bytes=self.row_bytes,
        )

    @cached_property
    def has_mapped_operand(self) -> bool:
        """Whether the epilogue reads something of the output's size by tensor map."""
        if self.steps or self.pixels_are_columns or not self.output.rows:
            return False
        return mapped_operand(self.dag, self.output, self.output.rows // self.groups) is not None

    def preferred(self, arch: ArchSpec) -> tuple[int, bool]:
        """Which of the ``ways``; and whether few columns of the output are better the rows of the tiles."""
        if self.has_mapped_operand:
            return 0, False  # elsewhere the functor loads it, at half the speed
        choices = [(place, False) for place, way in enumerate(self.ways) if not way.keeps_filter]
        if not (self.reductions or self.steps) and self.output.columns <= _MAX_TRANSPOSED_COLUMNS:
            # What loads the least comes first: the model may not tell the ways apart.
            choices += [(place, True) for place in reversed(range(len(self.ways)))]
        return min(choices, key=lambda choice: self.ways[choice[0]]._least_seconds(choice[1], arch))

    def _least_seconds(self, is_transposed: bool, arch: ArchSpec) -> float:
        product = self.product(is_transposed)
        margin = 1 if product.window is None else _WINDOW_MARGIN
        return margin * wgmma_model.least_seconds(product, arch)

    @cached_property
    def _chunks(self) -> int:
        """k blocks of one tap."""
        return ceil_div(self.filter.depth, self.stage_k)

    def k_blocks(self, pixel_class: PixelClass) -> int:
        """Stages of one tile; a class without taps has one of zeros."""
        return pixel_class.runs * self._chunks or 1

    def schedules(self, tiling: WgmmaTiling, is_transposed: bool) -> tuple[Schedule, ...]:
        """One for each class."""
        return tuple(
            Schedule.of(tiling.tile, m, n, k_blocks, self.groups, tiling.splits, tiling.group)
            for m, n, k_blocks in self._extents(is_transposed)
        )

    def _extents(self, is_transposed: bool) -> Iterator[tuple[int, int, int]]:
        """Rows, columns and stages of each class's product."""
        for pixel_class in self.classes:
            m, n = pixel_class.pixels(self.images), self.filter.lines
            yield (*((m, n) if self.pixels_are_rows(is_transposed) else (n, m)), self.k_blocks(pixel_class))

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""
        depth_bytes = self.filter.depth * self.instruction.element_bytes
        if not depth_bytes:
            return f"{self.filter.tensor.label}.dims: expected terms to sum, got {list(self.filter.tensor.dims)}"
        if self.groups > 1 and depth_bytes % STAGE_ROW_BYTES:
            return f"groups: expected channels of a group in multiples of {STAGE_ROW_BYTES} bytes, got {depth_bytes}"
        if len(self.classes) > _MAX_CLASSES:
            return f"convolution.strides: expected at most {_MAX_CLASSES} residues, got {len(self.classes)}"
        packing = self.filter.packing
        if packing and packing.tensor.rank > 5:
            return f"groups: expected 1 with {len(self.filter_taps)} spatial axes of this type, got {self.groups}"
        if refused := index_problem(self.dag, self.groups, self.steps):
            return refused
        if isinstance(self.exits, str):
            return self.exits
        limits = (("output pixels", self.pixels, _MAX_INDEX), ("output channels", self.dag.dims[1], _MAX_INDEX))
        for what, got, limit in limits:
            if got > limit:
                return f"dims: expected at most {limit} {what}, got {got}"
        return offset_problem(self.classes) or self._map_problem()

    def _map_problem(self) -> str:
        if not self.dag.dims[0] * self.pixels * self.dag.dims[1]:
            return ""
        for pixel_class in self.image.corners(self.classes):
            problem = tensor_map_problem(self.image.map(pixel_class, self.instruction, _SMALLEST_TILE, self.row_bytes))
            if problem:
                return f"{self.image.tensor.label}.{problem}"
        problem = tensor_map_problem(self.filter.map(self.instruction, _SMALLEST_TILE, self.row_bytes))
        return f"{self.filter.tensor.label}.{problem}" if problem else ""

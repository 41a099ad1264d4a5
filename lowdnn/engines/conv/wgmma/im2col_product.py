"""A convolution as the product of pixels and columns of ``conv_im2col_wgmma.cu``: operands, output, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.wgmma.im2col import (
    PixelClass,
    edges_apart,
    forward_class,
    gradient_classes,
    image_share,
    offset_problem,
)
from lowdnn.engines.conv.wgmma.im2col_operands import FilterOperand, ImageOperand
from lowdnn.engines.conv.wgmma.pixel_output import index_problem, line_rows, part_of, pixel_rows
from lowdnn.engines.gemm import wgmma_model
from lowdnn.engines.gemm.converted_operand import ConvertedOperand, functions_of, fusion_problem
from lowdnn.engines.gemm.exits import NO_EXITS, OutputExits
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WGMMA_TYPES, WgmmaType
from lowdnn.engines.gemm.output_space import OutputSpace, contiguous_stores, output_space
from lowdnn.engines.gemm.wgmma_model import WgmmaTiling
from lowdnn.engines.gemm.wgmma_output import (
    MAP_COLUMNS,
    exits_go_by_map,
    mapped_operand,
    most_accumulators,
    pixels_problem,
    stored_exit_problem,
)
from lowdnn.engines.gemm.wgmma_product import Conversion, WgmmaProduct
from lowdnn.engines.gemm.wgmma_tiles import WARPGROUP_ROWS, ClassSchedule, TapWindow
from lowdnn.engines.launch import bytes_of, ceil_div, moved_bytes
from lowdnn.enums import DataType
from lowdnn.graph.pattern import AnchoredWithExits, PointwiseDag
from lowdnn.graph.reduction_pattern import AnyReduction
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TiledMap, tensor_map_problem

#: Indices of pixels and columns are 32-bit in the kernel, with room for a tile past the end.
_MAX_INDEX = 2**31 - 2**20
#: Tensor maps, schedules and taps of every class are parameters of the kernel.
_MAX_CLASSES = 64
#: So are those of the output, where it goes out by them.
_MAX_MAPPED_CLASSES = 16
#: Boxes of the smallest tile, to try a map's rules with.
_SMALLEST_TILE = 64
#: Taps of one window, and pixels of a window beyond those of a tile.
_MAX_WINDOW_TAPS = 7
_MAX_REACH = 32
#: The model's error: windows must look better by that much.
_WINDOW_MARGIN = 1.06
#: What it does not see: of a small filter all blocks read the same lines of the cache, for each tile, unless it stays;
#: that tells where a multiprocessor has many pixels.
_KEPT_MARGIN, _MANY_PIXELS = 0.95, 1024
#: How much of a filter may stay in shared memory.
_MAX_KEPT_BYTES = 96 << 10
#: Of the widest tile.
_MAX_KEPT_COLUMNS = 256
#: Up to so many columns of the output a tile may lie across it.
_MAX_TRANSPOSED_COLUMNS = 64
#: Of the multiplications of a convolution, those with padding from which on pixels near the edges may be apart.
LEAST_PADDING = 0.1
#: The model's error: they must look better by that much.
_EDGE_MARGIN = 1.02
#: Half rows of channels for which k blocks are such.
_MAX_HALVES = 9


@dataclass(frozen=True)
class Im2colProduct:
    """See the module's docstring.

    classes: of the output's pixels, those with the most taps first. With windows, a line has more pixels than the
    output's.
    steps: from one pixel of a class to the next, where each class is stored as a part of the output, or empty.
    pixels_are_columns: of the output, which is contiguous along its last axis.  label: how messages name the operation.
    reductions: of the output on its way out.
    row_bytes: of channels in a k block.  is_promoted: see ``WgmmaTile``.
    keeps_filter: a block keeps it in shared memory: with windows as the rows of the tiles, otherwise as their columns.
    converted: the operand that is a function of what lies in memory, or None: windows of the image are converted in
    place, otherwise it goes through registers and makes up the rows of the tiles.
    converts_image: it is the image, otherwise the filter.
    turned: the same over axes of which the last has several taps, where it has one here.
    """

    label: str
    compute_type: DataType
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
    is_promoted: bool = False
    converted: ConvertedOperand | None = None
    converts_image: bool = False
    turned: Im2colProduct | None = None

    @classmethod
    def forward(
        cls,
        matched: AnchoredWithExits[ConvolutionForward],
        instruction: WgmmaType,
        converted: ConvertedOperand | None = None,
        *,
        converts_image: bool = False,
    ) -> Im2colProduct:
        """``converted``: the operand that the operation does not find in memory, where there is one."""
        operation = matched.anchor
        x, w, taps = operation.x, operation.w, operation.w.dims[2:]
        if converted is not None:
            x, w = (converted.raw, w) if converts_image else (x, converted.raw)
        product = cls._of(
            matched,
            instruction,
            ImageOperand.of(x, operation.groups),
            FilterOperand.forward(w, operation.groups),
            (forward_class(operation.convolution, taps, operation.y.dims[2:]),),
            (),
        )
        return product._with_converted(converted, converts_image)

    @classmethod
    def gradient(
        cls,
        matched: AnchoredWithExits[ConvolutionBackwardData],
        instruction: WgmmaType,
        converted: ConvertedOperand | None = None,
    ) -> Im2colProduct:
        """``converted``: dy, where the operation does not find it in memory."""
        operation = matched.anchor
        strides, taps = operation.convolution.strides, operation.w.dims[2:]
        image = ImageOperand.of(operation.dy if converted is None else converted.raw, operation.groups)
        # Behind a group's filters, an MN-major operand would have those of the next one beside the image's padding.
        ends_amid_rows = operation.groups > 1 and image.packing is not None
        product = cls._of(
            matched,
            instruction,
            image,
            FilterOperand.gradient(operation.w, operation.groups, instruction.has_mn_major and not ends_amid_rows),
            gradient_classes(operation.convolution, taps, operation.dx.dims[2:]),
            strides if max(strides) > 1 else (),
        )
        return product._with_converted(converted, converts_image=True)

    def _with_converted(self, converted: ConvertedOperand | None, converts_image: bool) -> Im2colProduct:
        if converted is None:
            return self
        return replace(self, converted=converted, converts_image=converts_image, row_bytes=STAGE_ROW_BYTES)

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
        compute_type = matched.anchor.convolution.compute_type
        given = (label, compute_type, instruction, image, weights, taps, classes, steps, dag, output)
        return cls(
            *given,
            pixels_are_columns,
            matched.exits,
            _row_bytes(weights.depth, instruction),
            is_promoted=wgmma_model.is_promoted(instruction, compute_type),
        )

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
            return (self, replace(self, keeps_filter=True)) if self._may_keep_columns else (self,)
        kept_bytes = windows.classes[0].taps * self._chunks * WARPGROUP_ROWS * self.row_bytes
        stays = self.groups == 1 and self.filter.lines <= WARPGROUP_ROWS and kept_bytes <= _MAX_KEPT_BYTES
        return (self, windows, replace(windows, keeps_filter=True)) if stays else (self, windows)

    @cached_property
    def with_edges_apart(self) -> Im2colProduct | None:
        """Pixels near the edges in classes of their own, which no tap shows padding; None where there are few, or
        their part of the output cannot be stored apart."""
        if self.reductions or self.converted or self.pixels_are_columns or not self.output.rows:
            return None
        if image_share(self.classes, self.image.tensor.dims[2:]) > 1 - LEAST_PADDING:
            return None
        steps = self.steps or (1,) * len(self.filter_taps)
        classes = edges_apart(self.classes, self.image.tensor.dims[2:], steps)
        if len(classes) > _MAX_CLASSES or index_problem(self.dag, self.groups, steps):
            return None
        output = pixel_rows(self.dag, self.groups, in_parts=True)
        found = replace(self, classes=classes, steps=steps, output=output, turned=None)
        return None if offset_problem(classes) or found._map_problem() else found

    @property
    def _may_keep_columns(self) -> bool:
        """Whether a filter of one tap may stay: all blocks would ask for the same lines of the cache for each tile."""
        contiguous = self.filter.lines if self.filter.is_mn_major else self.filter.depth
        has_whole_lines = contiguous * self.instruction.element_bytes % STAGE_ROW_BYTES == 0
        is_plain = not (self.steps or self.reductions or self.converted or self.pixels_are_columns)
        kept_bytes = self._chunks * self.filter.lines * self.row_bytes
        is_small = self.filter.lines <= _MAX_KEPT_COLUMNS and kept_bytes <= _MAX_KEPT_BYTES
        return prod(self.filter_taps) == 1 and self.groups == 1 and is_plain and is_small and not has_whole_lines

    @cached_property
    def _with_windows(self) -> Im2colProduct | None:
        """None where the taps of the last axis do not share a window of pixels."""
        if self.turned:
            return replace(self.turned, row_bytes=self.row_bytes, is_promoted=self.is_promoted)._with_windows
        last = self.classes[0].axes[-1]
        is_one_class = len(self.classes) == 1 and not self.steps
        if not is_one_class or self.pixels_are_columns or self.reductions or last.stride > 1:
            return None
        if self.converted is not None and not self._converts_windows:
            return None
        if not 1 < last.taps <= _MAX_WINDOW_TAPS or last.reach > _MAX_REACH:
            return None
        windows = self.classes[0].with_windows(self.image.tensor.dims[-1])
        found = replace(self, classes=(windows,), output=line_rows(self.dag, self.groups))
        return None if found.walked_pixels > _MAX_INDEX or found._map_problem() else found

    @property
    def _converts_windows(self) -> bool:
        """Whether windows can be converted in place: in registers that an operand of the output's size would take."""
        if self.converted is None or not self.converts_image or not self.converted.keeps_places:
            return False
        return all(tensor.dims != self.dag.dims for tensor in self.dag.loads)

    @property
    def keeps_columns(self) -> bool:
        """Whether the filter that stays makes up the columns of the tiles."""
        return self.keeps_filter and self.classes[0].axes[-1].run == 1

    def window(self, is_transposed: bool) -> TapWindow | None:
        """That of a stage, where several taps share one."""
        last = self.classes[0].axes[-1]
        return TapWindow(last.run, last.offset_step, self.pixels_are_rows(is_transposed)) if last.run > 1 else None

    @cached_property
    def exits(self) -> OutputExits | str:
        """The reductions, or why they cannot be computed on the way out."""
        if not self.reductions:
            return NO_EXITS
        exits = OutputExits.of(self.reductions, self.dag, self.output)
        if isinstance(exits, str) or not self.steps:
            return exits
        name = type(self.reductions[0]).__name__
        if exits.row:
            return f"{name}: expected results for channels or for everything behind a gradient with strides, got pixels"
        problem = stored_exit_problem(exits, self.dag) or self.pixels_problem(MAP_COLUMNS)
        return f"{name}.x: {problem}" if problem else exits

    @cached_property
    def parts(self) -> tuple[tuple[OutputSpace, Mapping[int, int]], ...]:
        """Each class's part of the output, and by uid the element at which each tensor's part begins."""
        return tuple(part_of(self.output, pixel_class, self.steps) for pixel_class in self.classes)

    def pixels_problem(self, tile_columns: int) -> str:
        """Why the parts cannot go out by im2col maps; empty where they can."""
        if self.groups > 1:
            return f"expected one group, got {self.groups}"
        if len(self.classes) > _MAX_MAPPED_CLASSES:
            return f"expected at most {_MAX_MAPPED_CLASSES} residues of pixels, got {len(self.classes)}"
        return pixels_problem(self.dag, self.output, self.parts, tile_columns)

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
        a, b = self._image_bytes, self._filter_bytes
        blocks = sum(pixel_class.pixels(self.images) * self.k_blocks(pixel_class) for pixel_class in self.classes)
        is_mn_major, pixels_are_rows = self.filter.is_mn_major, self.pixels_are_rows(is_transposed)
        window, is_resident = self.window(is_transposed), self.keeps_filter
        has_operand = not (is_transposed or window) and self.has_mapped_operand
        is_located = bool(self.pixels_are_columns or window)
        exits = self.exits if isinstance(self.exits, OutputExits) else NO_EXITS
        rows, columns = (self.image, self.filter) if pixels_are_rows else (self.filter, self.image)
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
            allows_clusters=not (is_resident or self.converted),
            tries_clusters=False,  # measured: copies of pixels gain nothing from them
            allows_split=not (self.steps or self.reductions or window or is_resident),
            column_unit=MAP_COLUMNS if self.reductions else 8,
            is_a_askew=rows.is_askew,
            is_b_askew=columns.is_askew,
            is_a_pixels=pixels_are_rows,
            is_b_pixels=not pixels_are_rows,
            rows_continue=self.groups > 1,
            has_narrow_pixels=self.filter.depth * self.instruction.element_bytes < self.row_bytes // 2,
            is_located=is_located,
            is_turned=is_transposed and not is_located,
            has_operand=has_operand,
            window=window,
            is_a_resident=is_resident and not pixels_are_rows,
            is_b_resident=is_resident and pixels_are_rows,
            classes=tuple(self._extents(is_transposed)) if self.steps and self.pixels * self.filter.lines else (),
            row_bytes=self.row_bytes,
            most_accumulators=most_accumulators(self.dag, self.output, exits, has_operand=has_operand),
            sums_columns=exits.column is not None,
            is_promoted=self.is_promoted,
            conversion=self._conversion,
            functions=self.converted.functions if self.converted else 0,
            epilogue_functions=functions_of(self.dag),
        )

    @property
    def _conversion(self) -> Conversion:
        if self.converted is None:
            return Conversion.NONE
        return Conversion.IN_PLACE if self.classes[0].axes[-1].run > 1 else Conversion.REGISTERS

    @property
    def read_bytes(self) -> int:
        return self._image_bytes + self._filter_bytes

    @property
    def _image_bytes(self) -> int:
        return self.converted.moved_bytes if self.converted and self.converts_image else bytes_of((self.image.tensor,))

    @property
    def _filter_bytes(self) -> int:
        if self.converted and not self.converts_image:
            return self.converted.moved_bytes
        return bytes_of((self.filter.tensor,))

    @cached_property
    def has_mapped_operand(self) -> bool:
        """Whether the epilogue reads something of the output's size by tensor map."""
        if self.steps or self.pixels_are_columns or not self.output.rows:
            return False
        return mapped_operand(self.dag, self.output, self.output.rows // self.groups) is not None

    def best_cut(self, arch: ArchSpec) -> Im2colProduct:
        """The product, or itself with its edges apart where that looks better."""
        apart = self.with_edges_apart
        if apart is None or self._preferred_seconds(arch) < _EDGE_MARGIN * apart._preferred_seconds(arch):
            return self
        return apart

    def preferred(self, arch: ArchSpec) -> tuple[int, bool]:
        """Which of the ``ways``; and whether few columns of the output are better the rows of the tiles."""
        if self.has_mapped_operand and self.converted is None:
            return 0, False  # elsewhere the functor loads it, at half the speed
        # A window's stage sums several taps, of which promoted sums would be less precise.
        ways = self.ways[:1] if self.is_promoted else self.ways
        choices = [(place, False) for place, way in enumerate(ways) if not way.keeps_filter or way.keeps_columns]
        if self._may_be_transposed and self._has_few_columns:
            # What loads the least comes first: the model may not tell the ways apart.
            choices += [(place, True) for place, way in reversed([*enumerate(ways)]) if not way.keeps_columns]
        elif self._may_be_transposed and wgmma_model.may_turn(self.product(False)):
            choices.append((0, True))
        if self.converted is not None:
            choices = [(0, self._converts_columns), *(choice for choice in choices if choice[0])]
        return min(choices, key=lambda choice: ways[choice[0]]._least_seconds(choice[1], arch))

    def slowness(self, arch: ArchSpec) -> str:
        """Why its reductions or its converted operand are better in a launch of their own, or an empty string."""
        if self.reductions:
            _, is_transposed = self.preferred(arch)
            if slow := wgmma_model.exit_problem(self.product(is_transposed), arch):
                return slow
        if self.converted is None:
            return ""
        apart = replace(self, converted=None, row_bytes=_row_bytes(self.filter.depth, self.instruction))
        return fusion_problem(self.converted, self._preferred_seconds(arch), apart._preferred_seconds(arch), arch)

    def _preferred_seconds(self, arch: ArchSpec) -> float:
        way, is_transposed = self.preferred(arch)
        return self.ways[way]._least_seconds(is_transposed, arch)

    def swap_problem(self, is_transposed: bool) -> str:
        """Why the tiles cannot lie so, or an empty string."""
        if self._conversion is not Conversion.REGISTERS or is_transposed == self._converts_columns:
            return ""
        return f"{int(self._converts_columns)} for an operand that goes through registers"

    @property
    def _converts_columns(self) -> bool:
        """Whether the converted operand makes up the output's columns."""
        return self.converts_image == self.pixels_are_columns

    @property
    def _may_be_transposed(self) -> bool:
        """By default: what goes out by tensor map with its exits is faster there."""
        exits = self.exits
        assert isinstance(exits, OutputExits), exits
        return not (self.steps or exits_go_by_map(exits, self.dag, self.output, self.rows))

    @property
    def _has_few_columns(self) -> bool:
        return self.output.columns <= _MAX_TRANSPOSED_COLUMNS

    def _least_seconds(self, is_transposed: bool, arch: ArchSpec) -> float:
        product = self.product(is_transposed)
        if self.keeps_columns and not _has_several_turns(product, arch):
            return inf
        margin = 1.0 if product.window is None else _WINDOW_MARGIN
        if is_transposed and not self._has_few_columns:
            margin *= wgmma_model.TURN_MARGIN
        if self.keeps_columns:
            margin = _KEPT_MARGIN if self.pixels >= _MANY_PIXELS * arch.sm_count else _WINDOW_MARGIN
        return margin * wgmma_model.least_seconds(product, arch)

    @cached_property
    def _chunks(self) -> int:
        """k blocks of one tap."""
        return ceil_div(self.filter.depth, self.stage_k)

    def k_blocks(self, pixel_class: PixelClass) -> int:
        """Stages of one tile; a class without taps has one of zeros."""
        return pixel_class.runs * self._chunks or 1

    def schedule(self, tiling: WgmmaTiling, is_transposed: bool) -> ClassSchedule:
        """Of each class, one after the other."""
        extents = self._extents(is_transposed)
        return ClassSchedule(tuple(tiling.schedule_of(m, n, k_blocks, self.groups) for m, n, k_blocks in extents))

    def _extents(self, is_transposed: bool) -> Iterator[tuple[int, int, int]]:
        """Rows, columns and stages of each class's product."""
        for pixel_class in self.classes:
            m, n = pixel_class.pixels(self.images), self.filter.lines
            yield (*((m, n) if self.pixels_are_rows(is_transposed) else (n, m)), self.k_blocks(pixel_class))

    def image_map(self, pixel_class: PixelClass, pixels: int) -> Im2colMap:
        """Of the class's pixels, ``pixels`` of them in a copy."""
        map_type, row_bytes = self._box_of(self.converted if self.converts_image else None)
        return self.image.map(pixel_class, map_type, pixels, row_bytes)

    def filter_map(self, lines: int, sharers: int = 1) -> TiledMap:
        """``lines`` of a tile, of which ``sharers`` blocks load a part each."""
        map_type, row_bytes = self._box_of(None if self.converts_image else self.converted)
        return self.filter.map(map_type, lines, row_bytes, sharers)

    def _box_of(self, converted: ConvertedOperand | None) -> tuple[TensorMapDataType, int]:
        if converted is None:
            return self.instruction.map_type, self.row_bytes
        return converted.map_type, converted.row_bytes

    @property
    def has_padding(self) -> bool:
        """Whether taps see places outside of the image."""
        extents = self.image.tensor.dims[2:]
        return any(
            axis.lower + axis.first_offset < 0 or axis.upper + axis.reach >= extent
            for pixel_class in self.classes
            for axis, extent in zip(pixel_class.axes, extents, strict=True)
            if axis.taps
        )

    @property
    def has_tail(self) -> bool:
        """Whether some k block has channels past the last one."""
        return self.filter.depth % self.stage_k != 0 or any(not pixel_class.taps for pixel_class in self.classes)

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""
        depth_bytes = self.filter.depth * self.instruction.element_bytes
        if self.groups > 1 and 2 * depth_bytes < STAGE_ROW_BYTES:
            return f"groups: expected groups of at least {STAGE_ROW_BYTES // 2} bytes of channels, got {depth_bytes}"
        if len(self.classes) > _MAX_CLASSES:
            return f"convolution.strides: expected at most {_MAX_CLASSES} residues, got {len(self.classes)}"
        packing = self.filter.packing
        if packing and packing.tensor.rank > 5:
            return f"groups: expected 1 with {len(self.filter_taps)} spatial axes of this type, got {self.groups}"
        if refused := index_problem(self.dag, self.groups, self.steps):
            return refused
        if isinstance(self.exits, str):
            return self.exits
        if self.reductions and self.converted and self._converts_columns:
            return f"{type(self.reductions[0]).__name__}.x: expected no prologue before {self.filter.tensor.label}"
        limits = (("output pixels", self.pixels, _MAX_INDEX), ("output channels", self.dag.dims[1], _MAX_INDEX))
        for what, got, limit in limits:
            if got > limit:
                return f"dims: expected at most {limit} {what}, got {got}"
        return offset_problem(self.classes) or self._map_problem()

    def _map_problem(self) -> str:
        if not self.dag.dims[0] * self.pixels * self.dag.dims[1]:
            return ""
        for pixel_class in self.image.corners(self.classes):
            problem = tensor_map_problem(self.image_map(pixel_class, _SMALLEST_TILE))
            if problem:
                return f"{self.image.tensor.label}.{problem}"
        problem = tensor_map_problem(self.filter_map(_SMALLEST_TILE))
        return f"{self.filter.tensor.label}.{problem}" if problem else ""


def _has_several_turns(product: WgmmaProduct, arch: ArchSpec) -> bool:
    """Whether blocks have more than one tile each, for which what stays in shared memory is loaded once."""
    schedule = wgmma_model.best(product, arch).schedule(product)
    return schedule.items > schedule.grid(arch.sm_count)


def _row_bytes(depth: int, instruction: WgmmaType) -> int:
    """Of a k block: channels past the end take a copy longer than those that are there, so none of few rows has half of
    them."""
    half = STAGE_ROW_BYTES // 2
    halves = ceil_div(depth * instruction.element_bytes, half)
    return half if halves % 2 and halves <= _MAX_HALVES else STAGE_ROW_BYTES

"""Image and filter of a convolution together: k blocks, tensor maps, and the operand that is converted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn.engines.conv.wgmma.im2col import PixelClass
from lowdnn.engines.conv.wgmma.im2col_operands import FilterOperand, ImageOperand
from lowdnn.engines.gemm.converted_operand import ConvertedOperand
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType
from lowdnn.engines.launch import bytes_of, ceil_div
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TiledMap, tensor_map_problem

#: Most half rows of channels for which k blocks have half a row if their number is odd.
_MAX_HALVES = 9
#: Rows of the smallest tile, whose boxes show whether the rules of tensor maps are kept.
_SMALLEST_TILE = 64


@dataclass(frozen=True)
class OperandPair:
    """The two operands of ``conv_im2col_wgmma.cu``.

    instruction: the instruction for their types, the image's first.  row_bytes: bytes of the channels of a k block.
    converted: the operand that is a function of a tensor in memory, or None. Windows of the image are converted in
    place; otherwise it passes through registers and makes up the rows of the tiles.
    converts_image: the converted operand is the image, otherwise the filter.
    """

    instruction: WgmmaType
    image: ImageOperand
    filter: FilterOperand
    row_bytes: int
    converted: ConvertedOperand | None = None
    converts_image: bool = False

    @classmethod
    def of(cls, instruction: WgmmaType, image: ImageOperand, weights: FilterOperand) -> OperandPair:
        """Both operands in place, or repacked by their packing.

        Copies take longer for channels past the end than for those that exist: no k block of few channels is half
        empty.
        """
        if instruction.is_split:
            return cls(instruction, image, replace(weights, is_split=True), STAGE_ROW_BYTES)
        half = STAGE_ROW_BYTES // 2
        halves = ceil_div(weights.depth * instruction.element_bytes, half)
        row_bytes = half if halves % 2 and halves <= _MAX_HALVES else STAGE_ROW_BYTES
        return cls(instruction, image, weights, row_bytes)

    def with_converted(self, converted: ConvertedOperand | None, converts_image: bool) -> OperandPair:
        if converted is None:
            return self
        return replace(self, converted=converted, converts_image=converts_image, row_bytes=STAGE_ROW_BYTES)

    @property
    def without_converted(self) -> OperandPair:
        """The pair after a separate launch has converted the operand."""
        return OperandPair.of(self.instruction, self.image, self.filter)

    def with_k(self, stage_k: int) -> OperandPair:
        """The pair with ``stage_k`` channels in a k block."""
        row_bytes = stage_k * self.instruction.element_bytes
        return self if row_bytes == self.row_bytes else replace(self, row_bytes=row_bytes)

    @property
    def groups(self) -> int:
        return self.image.groups

    @property
    def stage_k(self) -> int:
        """Channels of a k block."""
        return self.row_bytes // self.instruction.element_bytes

    @cached_property
    def chunks(self) -> int:
        """k blocks of one tap."""
        return ceil_div(self.filter.depth, self.stage_k)

    def k_blocks(self, pixel_class: PixelClass) -> int:
        """Stages of one tile; a class without taps has one stage of zeros."""
        return pixel_class.runs * self.chunks or 1

    @property
    def image_bytes(self) -> int:
        """Bytes that are read for the image."""
        return self.converted.moved_bytes if self.converted and self.converts_image else bytes_of((self.image.tensor,))

    @property
    def filter_bytes(self) -> int:
        """Bytes that are read for the filter."""
        if self.converted and not self.converts_image:
            return self.converted.moved_bytes
        return self.filter.split.size_bytes if self.filter.is_split else bytes_of((self.filter.tensor,))

    @property
    def read_bytes(self) -> int:
        return self.image_bytes + self.filter_bytes

    def image_map(self, pixel_class: PixelClass, pixels: int) -> Im2colMap:
        """The map of the class's pixels, ``pixels`` of them in a copy."""
        map_type, row_bytes = self._box_of(self.converted if self.converts_image else None)
        return self.image.map(pixel_class, map_type, pixels, row_bytes)

    def filter_map(self, lines: int, sharers: int = 1) -> TiledMap:
        """The map for the ``lines`` of a tile, of which each of ``sharers`` blocks loads a part."""
        map_type, row_bytes = self._box_of(None if self.converts_image else self.converted)
        return self.filter.map(map_type, lines, row_bytes, sharers)

    def _box_of(self, converted: ConvertedOperand | None) -> tuple[TensorMapDataType, int]:
        if converted is None:
            return self.instruction.map_type, self.row_bytes
        return converted.map_type, converted.row_bytes

    def map_problem(self, classes: Sequence[PixelClass]) -> str:
        """Why no tensor maps describe the operands, or an empty string."""
        for pixel_class in self.image.corners(classes):
            problem = tensor_map_problem(self.image_map(pixel_class, _SMALLEST_TILE))
            if problem:
                return f"{self.image.tensor.label}.{problem}"
        problem = tensor_map_problem(self.filter_map(_SMALLEST_TILE))
        return f"{self.filter.tensor.label}.{problem}" if problem else ""

    def has_padding(self, classes: Iterable[PixelClass]) -> bool:
        """Whether taps read outside the image."""
        extents = self.image.tensor.dims[2:]
        return any(
            axis.lower + axis.first_offset < 0 or axis.upper + axis.reach >= extent
            for pixel_class in classes
            for axis, extent in zip(pixel_class.axes, extents, strict=True)
            if axis.taps
        )

    def has_tail(self, classes: Iterable[PixelClass]) -> bool:
        """Whether any k block has channels past the last one."""
        return self.filter.depth % self.stage_k != 0 or any(not pixel_class.taps for pixel_class in classes)

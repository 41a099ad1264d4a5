"""Rows of an image of few channels that a kernel reads in place. Host side of ``stem_rows.cuh``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import ceil_div, divider, i32, i64
from lowdnn.enums import ConvolutionMode
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import Struct, TensorPointer

AXES = 3
MAX_CHANNELS = 4
WORD_BYTES = 4
#: Bytes of the widest copy.
PIECE_BYTES = 16


@dataclass(frozen=True)
class RowParams:
    """Macros of ``stem_rows.cuh``, except THREADS."""

    TYPE: str
    CHANNELS: int
    TAPS_0: int
    TAPS_1: int
    TAPS_2: int
    STRIDE_0: int
    STRIDE_1: int
    GAP_0: int
    GAP_1: int
    STEP: int
    LEAD: int
    TILE_H: int
    TILE_W: int
    PITCH: int
    COPY: int


@dataclass(frozen=True)
class StemRows:
    """The image of a convolution as its outputs read it: three spatial axes, the image's last one in elements."""

    operation: ConvolutionOperation

    @property
    def image(self) -> Tensor:
        return self.operation.image

    @cached_property
    def channels(self) -> int:
        return self.image.dims[1]

    @cached_property
    def taps(self) -> tuple[int, ...]:
        return _three(self.operation.filter.dims[2:], 1)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        return _three(self.operation.convolution.strides, 1)

    @cached_property
    def gaps(self) -> tuple[int, ...]:
        return _three(self.operation.convolution.dilations, 1)

    @cached_property
    def paddings(self) -> tuple[int, ...]:
        """Padding in front of the image."""
        return _three(self.operation.convolution.pre_paddings, 0)

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        return _three(self.operation.response.dims[2:], 1)

    @cached_property
    def step(self) -> int:
        """Elements from output to output of a row."""
        return self.strides[2] * self.channels

    @cached_property
    def word(self) -> int:
        """Elements of a word."""
        return WORD_BYTES // self.image.element_bytes

    @property
    def classes(self) -> int:
        return 1 if self.step % self.word == 0 else self.word

    @cached_property
    def copy(self) -> int:
        """Elements of one copy, which divide rows and the offsets at which rows begin."""
        return widest_copy(self.image, (self.extents[2], *self.image_strides))

    @property
    def is_copied_asynchronously(self) -> bool:
        """Whether copies are asynchronous: copies of less than a word are not."""
        return self.copy * self.image.element_bytes >= WORD_BYTES

    @cached_property
    def lead(self) -> int:
        """Elements of a row in shared memory before the first output's."""
        return self._first_element % self.copy

    @cached_property
    def row_words(self) -> int:
        """Words of a row of taps."""
        idle = self.lead % self.word if self.classes == 1 else self.word - 1
        return ceil_div(idle + self.taps[2] * self.channels, self.word)

    @property
    def words(self) -> int:
        return self.taps[0] * self.taps[1] * self.row_words

    def box_bytes(self, height: int, width: int) -> int:
        """Bytes of the box that a tile of outputs reads."""
        rows = self.taps[0] * ((height - 1) * self.strides[1] + (self.taps[1] - 1) * self.gaps[1] + 1)
        return ceil_div(rows * self._pitch(width) * self.image.element_bytes, PIECE_BYTES) * PIECE_BYTES

    def tile_counts(self, height: int, width: int) -> tuple[int, ...]:
        depth, rows, columns = self.outputs
        return self.image.dims[0], depth, ceil_div(rows, height), ceil_div(columns, width)

    def widths(self, parts: tuple[int, ...]) -> Iterator[int]:
        """Widths among ``parts`` that leave several tiles in a row, each of which begins at a whole copy."""
        yield from (part for part in parts if part < self.outputs[2] and part * self.step % self.copy == 0)

    def params(self, c_type: str, height: int, width: int) -> RowParams:
        taps, strides, gaps = self.taps, self.strides, self.gaps
        return RowParams(
            TYPE=c_type,
            CHANNELS=self.channels,
            TAPS_0=taps[0],
            TAPS_1=taps[1],
            TAPS_2=taps[2],
            STRIDE_0=strides[0],
            STRIDE_1=strides[1],
            GAP_0=gaps[0],
            GAP_1=gaps[1],
            STEP=self.step,
            LEAD=self.lead,
            TILE_H=height,
            TILE_W=width,
            PITCH=self._pitch(width),
            COPY=self.copy,
        )

    @property
    def argument(self) -> Struct:
        """The kernel's ``StemImage``."""
        depth, height, _ = self.paddings
        origin = (-depth, -height, self._first_element - self.lead)
        return Struct(
            (
                TensorPointer(self.image.uid),
                *i64(self.image_strides),
                *i32((*self.extents, *origin)),
            )
        )

    def tiles_argument(self, counts: tuple[int, ...]) -> tuple[Struct, ...]:
        return tuple(Struct(divider(extent)) for extent in counts)

    def refuse_shape(self) -> str:
        """Why the image cannot be read in place, or an empty string."""
        operation = self.operation
        if operation.groups != 1 or self.channels > MAX_CHANNELS:
            got = f"{self.channels} channels, {operation.groups} groups"
            return f"image.dims[1]: expected at most {MAX_CHANNELS} channels in one group, got {got}"
        if self.taps[2] > 1 and self.gaps[2] > 1:
            return f"convolution.dilations: expected none in the last axis, got {self.gaps[2]}"
        _, channel_step, *_, column_step = self.image.strides
        if (channel_step != 1 and self.channels > 1) or column_step != self.channels:
            return f"image.strides: expected dense channels-last rows, got {list(self.image.strides)}"
        pixels = operation.response.element_count // operation.response.dims[1]
        padded = max(extent + pads for extent, pads in zip(self.extents, self._total_paddings, strict=True))
        if (largest := max(pixels, padded)) > MAX_INDEX:
            return f"dims: expected at most {MAX_INDEX} outputs, and elements of an axis, got {largest}"
        return ""

    def refuse_response(self) -> str:
        """Why a gradient's response cannot be read in place, or an empty string."""
        response = self.operation.response
        is_dense = response.strides == channels_last_strides(response.dims)
        return "" if is_dense else f"dy.strides: expected dense channels-last pixels, got {list(response.strides)}"

    @cached_property
    def extents(self) -> tuple[int, ...]:
        depth, height, width = _three(self.image.dims[2:], 1)
        return depth, height, width * self.channels

    @cached_property
    def _total_paddings(self) -> tuple[int, ...]:
        old = self.operation.convolution
        depth, height, width = _three(tuple(map(sum, zip(old.pre_paddings, old.post_paddings, strict=True))), 0)
        return depth, height, width * self.channels

    @cached_property
    def image_strides(self) -> tuple[int, ...]:
        """Strides of images, planes and rows; 0 for an axis of extent 1."""
        images, _, *spatial = self.image.strides
        depth, height, _ = _three(tuple(spatial), 0)
        extents = (self.image.dims[0], *self.extents[:2])
        return tuple(s if extent > 1 else 0 for s, extent in zip((images, depth, height), extents, strict=True))

    @property
    def _first_element(self) -> int:
        """The first element of the first output, in its row."""
        return -self.paddings[2] * self.channels

    def _pitch(self, width: int) -> int:
        """Elements of a row in shared memory."""
        last = (self.lead + (width - 1) * self.step) // self.word + self.row_words
        return ceil_div(last * self.word, self.copy) * self.copy


def widest_copy(tensor: Tensor, places: tuple[int, ...]) -> int:
    """Elements of the widest copy that divides the offsets ``places`` (in elements) in ``tensor``."""
    size, most = tensor.element_bytes, min(tensor.alignment_bytes, PIECE_BYTES)
    whole = (count for count in (8, 4, 2, 1) if count * size <= most and not any(place % count for place in places))
    return next(whole, 1)


def values_label(parameters: tuple[tuple[str, int | str], ...]) -> str:
    """The part of a kernel's name for the values of its macros, except TYPE."""
    return "_".join(str(value) for name, value in parameters if name != "TYPE")


def filter_walk(operation: ConvolutionOperation) -> tuple[int, tuple[int, ...]]:
    """The offset of the filter's first tap, and strides of filters, channels and taps, in elements."""
    filters = operation.filter
    of_filters, of_channels, *spatial = filters.strides
    steps = _three(tuple(spatial), 0)
    if operation.convolution.mode is ConvolutionMode.CROSS_CORRELATION:
        return 0, (of_filters, of_channels, *steps)
    last = sum((taps - 1) * step for taps, step in zip(filters.dims[2:], spatial, strict=True))
    return last, (of_filters, of_channels, *(-step for step in steps))


def _three(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    return (*(missing,) * (AXES - len(values)), *values)

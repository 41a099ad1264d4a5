"""How dims lie in memory: named layouts and their strides."""

from __future__ import annotations

from enum import Enum

from lowdnn.ops.tensor import Tensor, channels_last_strides, packed_strides

#: Elements left unused behind each innermost row of Layout.PADDED.
_PADDING_ELEMENTS = 3


class Layout(Enum):
    """How a tensor's dims lie in memory."""

    ROW_MAJOR = "row"  #: packed, the last dimension innermost (NCHW)
    CHANNELS_LAST = "nhwc"  #: packed, dimension 1 innermost (NHWC); row-major where the rank is under 3
    PADDED = "padded"  #: row-major with unused elements behind each row
    TRANSPOSED = "transposed"  #: packed, the last two dimensions swapped


def layout_of(tensor: Tensor) -> Layout:
    """The first layout that has the strides of ``tensor``; ROW_MAJOR where none has."""
    return next((layout for layout in Layout if strides_of(tensor.dims, layout) == tensor.strides), Layout.ROW_MAJOR)


def strides_of(dims: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The strides of ``dims`` in ``layout``."""
    rank = len(dims)
    if layout is Layout.CHANNELS_LAST and rank > 2:
        return channels_last_strides(dims)
    if layout is Layout.TRANSPOSED and rank > 1:
        return packed_strides(dims, (*range(rank - 2), rank - 1, rank - 2))
    if layout is Layout.PADDED:
        return (*packed_strides((*dims[:-1], dims[-1] + _PADDING_ELEMENTS))[:-1], 1)
    return packed_strides(dims)

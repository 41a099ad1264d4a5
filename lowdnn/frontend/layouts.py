"""Strides of channels last, and those that a graph infers from another tensor's."""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.checks import integers
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.ops import tensor
from lowdnn.ops.tensor import has_overlap, packed_strides


def channels_last_strides(dims: Sequence[int]) -> tuple[int, ...]:
    """NHWC-like strides for dims given as (n, c, spatial...). Raises BadParamError for what are no extents."""
    return tensor.channels_last_strides(integers(dims, "channels_last_strides.dims", 0))


def strides_like(source: Tensor, dims: Sequence[int]) -> tuple[int, ...]:
    """The strides of ``source``, gaps included, if it has these dims and no two of its elements share a place;
    otherwise packed strides in its order of dimensions."""
    own = tuple(source.get_stride())
    is_like = source.get_dim() == list(dims) and len(own) == len(dims)
    # Offsets say where the batches of a ragged tensor lie, whatever its first stride is.
    if is_like and (source.ragged_offset is not None or not has_overlap(tuple(dims), own)):
        return own
    return packed_like(source, dims)


def packed_like(source: Tensor, dims: Sequence[int]) -> tuple[int, ...]:
    """Packed strides of ``dims`` in ``source``'s order of dimensions."""
    return packed_strides(tuple(dims), stride_order(source.get_stride(), len(dims)))


def stride_order(strides: Sequence[int], rank: int) -> tuple[int, ...]:
    """The dimensions from the outermost to the innermost, by falling stride; row-major where the ranks differ.

    A stride of 0 says nothing about the order, so that such a dimension keeps its own place.
    """
    if len(strides) != rank:
        return tuple(range(rank))
    telling = iter(sorted((axis for axis in range(rank) if strides[axis]), key=lambda axis: (-strides[axis], axis)))
    return tuple(next(telling) if strides[axis] else axis for axis in range(rank))

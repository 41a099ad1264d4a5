"""Compares the strides of arrays with those that the graph's tensors declare.

cuDNN takes the address alone, and programs rely on it: a vector for a tensor (1, N, 1, 1), a flat buffer, bytes, a view
with other axes. All of them have other extents than the tensor. Where an array has the tensor's own extents, axes of
extent 1 apart, both describe the same elements, and strides that differ mean that one of them is wrong: NHWC memory for
an NCHW tensor. The program runs as with cuDNN, by the graph's strides, and is warned once for each tensor.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from lowdnn.backend.handle import Handle
from lowdnn.enums import TensorReordering
from lowdnn.events import emit, event_logger
from lowdnn.frontend.device_tensor import DeviceTensor
from lowdnn.frontend.interop import describe
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.status import LowdnnError, LowdnnWarning

#: Extents and strides, in elements.
Layout = tuple[tuple[int, ...], tuple[int, ...]]

#: The most addresses that are remembered as seen; beyond it all are forgotten.
_MAX_SEEN = 4096
#: Stack frames from the warning up to the caller of ``pygraph.execute``.
_CALLER_LEVEL = 6


class LayoutWarning(LowdnnWarning):
    """The warning that an array has the extents of its tensor in the graph but other strides."""


class LayoutWatch:
    """Looks at an array when its address is new for the tensor, until there has been a warning for the tensor."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        """``tensors``: the operation graph's, by their place in the plan."""
        self._declared = {
            place: (tensor, _without_ones(tensor.dims, tensor.strides))
            for place, tensor in tensors.items()
            if _is_described_by_strides(tensor)
        }
        self._seen: set[tuple[int, int]] = set()

    def look(self, place: int, value: object, address: int, handle: Handle) -> None:
        """Warns, and counts ``layouts_differ``, where ``value`` at ``address`` has other strides than its tensor."""
        if place not in self._declared or (place, address) in self._seen:
            return
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen.add((place, address))
        tensor, (extents, strides) = self._declared[place]
        given = _layout_of(value)
        if given is None or 0 in extents or given[0] != extents or given[1] == strides:
            return
        self._declared.pop(place, None)
        handle.runtime.counters.add("layouts_differ")
        fields = {"tensor": tensor.label, "extents": list(extents), "given": list(given[1]), "declared": list(strides)}
        emit(event_logger("frontend"), logging.WARNING, "layout_differs", fields)
        warnings.warn(
            f"execute.tensor_dict: {tensor.label} has strides {list(strides)} over extents {list(extents)} in the "
            f"graph, the array given for it {list(given[1])}; the graph's are taken",
            LayoutWarning,
            stacklevel=_CALLER_LEVEL,
        )


def _is_described_by_strides(tensor: Tensor) -> bool:
    """False for ragged rows, whose offsets say where they lie, and for reordered block scales."""
    is_plain = tensor.ragged_offset is None and tensor.reordering is TensorReordering.NONE
    return is_plain and not tensor.is_by_value


def _layout_of(value: Any) -> Layout | None:
    """Extents and strides of an array without axes of extent 1; None for an object that has no strides."""
    if isinstance(value, (DeviceTensor, DeviceBuffer)):
        return None if value.shape is None or value.strides is None else _without_ones(value.shape, value.strides)
    if hasattr(value, "data_ptr") and callable(getattr(value, "stride", None)):
        return _without_ones(tuple(value.shape), tuple(value.stride()))
    try:
        facts = describe(value)
    except (LowdnnError, BufferError, TypeError, ValueError):
        return None
    return _without_ones(facts.dims, facts.strides)


def _without_ones(extents: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    kept = [(extent, stride) for extent, stride in zip(extents, strides, strict=True) if extent != 1]
    return tuple(extent for extent, _ in kept), tuple(stride for _, stride in kept)

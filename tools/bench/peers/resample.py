"""Pooling and interpolation through PyTorch: two spatial axes, the same padding on both sides."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowdnn.cases.families.resample import ResampleCase
from lowdnn.ops.resample import AxisTaps, ResampleOperation
from tools.bench.data import CaseData

_aten = torch.ops.aten

Peer = Callable[[int], torch.Tensor]


def resample_peers(case: ResampleCase, data: CaseData) -> dict[str, Peer]:
    """The peer of a case without epilogue: torch's own kernel, or cuDNN's where torch takes it."""
    if case.epilogue or len(case.hw) != 2:
        raise ValueError(f"{case}: expected two spatial axes and no epilogue, for the peer's sake")
    (operation,) = case.graph().operations
    assert isinstance(operation, ResampleOperation)
    return {"torch": (_forward if case.dir == "fwd" else _backward)(case, data, operation)}


def _forward(case: ResampleCase, data: CaseData, operation: ResampleOperation) -> Peer:
    x, size = data["x"], list(operation.response.dims[2:])
    if case.mode == "linear":
        return lambda slot: _aten.upsample_bilinear2d(x[slot], size, False)
    if case.mode == "nearest":
        return lambda slot: _aten._upsample_nearest_exact2d(x[slot], size)
    if case.size:
        return lambda slot: _aten._adaptive_avg_pool2d(x[slot], size)
    window, stride, padding = _windows(operation)
    if case.mode == "max" and case.index is not None:
        # The places are those of the whole image, so that only y is compared.
        return lambda slot: _aten.max_pool2d_with_indices(x[slot], window, stride, padding)[0]
    if case.mode == "max":
        return lambda slot: torch.max_pool2d(x[slot], window, stride, padding)
    return lambda slot: _aten.avg_pool2d(x[slot], window, stride, padding, False, case.mode == "avg")


def _backward(case: ResampleCase, data: CaseData, operation: ResampleOperation) -> Peer:
    # The peer reads the shape and the layout of x alone, where the places of maxima are given.
    dy, size, dims = data["dy"], list(operation.response.dims[2:]), list(operation.image.dims)
    if case.mode == "linear":
        return lambda slot: _aten.upsample_bilinear2d_backward(dy[slot], size, dims, False)
    if case.mode == "nearest":
        return lambda slot: _aten._upsample_nearest_exact2d_backward(dy[slot], size, dims)
    x = data["x"] if case.mode == "max" and case.index is None else data.results()
    if case.size:
        return lambda slot: _aten._adaptive_avg_pool2d_backward(dy[slot], x[slot])
    window, stride, padding = _windows(operation)
    if case.mode == "max":
        places = [
            _aten.max_pool2d_with_indices(image, window, stride, padding)[1]
            if case.index is None
            else _in_image(data["index"][slot], operation)
            for slot, image in enumerate(x)
        ]
        geometry = (window, stride, padding, [1, 1], False)
        return lambda slot: _aten.max_pool2d_with_indices_backward(dy[slot], x[slot], *geometry, places[slot])
    if any(padding):
        # torch's own kernel for channels-last gives other gradients then (github.com/pytorch/pytorch/issues/188344).
        dy, x = [copy.contiguous() for copy in dy], [copy.contiguous() for copy in x]
    geometry = (window, stride, padding, False, case.mode == "avg", None)
    return lambda slot: _aten.avg_pool2d_backward(dy[slot], x[slot], *geometry)


def _windows(operation: ResampleOperation) -> tuple[list[int], list[int], list[int]]:
    """(windows, strides, paddings)."""
    resample = operation.resample
    if resample.pre_paddings != resample.post_paddings or any(axis.unit != 1 for axis in operation.axes):
        raise ValueError("expected whole windows with the same padding on both sides, for the peer's sake")
    return (
        [axis.span for axis in operation.axes],
        [axis.step for axis in operation.axes],
        [axis.offset for axis in operation.axes],
    )


def _in_image(places: torch.Tensor, operation: ResampleOperation) -> torch.Tensor:
    """Places in windows as torch has them: row-major over the whole image, in the same layout."""
    rows, columns = operation.axes
    place = places.long()
    row = place // columns.span + _firsts(rows, place.device).view(-1, 1)
    column = place % columns.span + _firsts(columns, place.device)
    return row * columns.inputs + column


def _firsts(axis: AxisTaps, device: torch.device) -> torch.Tensor:
    return torch.arange(axis.outputs, device=device) * axis.step - axis.offset

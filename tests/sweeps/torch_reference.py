"""The three directions of a convolution in float64 on the GPU, for layers that NumPy would take minutes for.

The formulas are those of ``lowdnn.ops``; every tap is one product of matrices over strided views, so that no algorithm
of cuDNN's is part of the reference. Exact for integer-valued data.
"""

from __future__ import annotations

from typing import Any

from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward


def reference(torch: Any, operation: ConvolutionOperation, inputs: dict[str, Any]) -> Any:
    """The operation's output from its inputs by port: float64 tensors in logical dims."""
    formulas = {
        ConvolutionForward: _forward,
        ConvolutionBackwardData: _backward_data,
        ConvolutionBackwardFilter: _backward_filter,
    }
    return formulas[type(operation)](torch, operation, inputs)


def _forward(torch: Any, operation: ConvolutionForward, inputs: dict[str, Any]) -> Any:
    x, w = _padded(torch, operation, inputs["x"]), _filters(operation, inputs["w"])
    y = torch.zeros(_grouped(operation, operation.y.dims), dtype=torch.float64, device="cuda")
    for weights, elements in operation.convolution.windows(operation.w.dims[2:], operation.y.dims[2:]):
        y += torch.einsum("ngc...,gkc->ngk...", _split(operation, x[elements]), w[(slice(None), *weights)])
    return y.reshape(operation.y.dims)


def _backward_data(torch: Any, operation: ConvolutionBackwardData, inputs: dict[str, Any]) -> Any:
    dy, w = _split(operation, inputs["dy"]), _filters(operation, inputs["w"])
    padded = _padded(torch, operation, torch.zeros(operation.dx.dims, dtype=torch.float64, device="cuda"))
    for weights, elements in operation.convolution.windows(operation.w.dims[2:], operation.dy.dims[2:]):
        terms = torch.einsum("ngk...,gkc->ngc...", dy, w[(slice(None), *weights)])
        padded[elements] += terms.reshape(padded[elements].shape)
    inside = zip(operation.convolution.pre_paddings, operation.dx.dims[2:], strict=True)
    return padded[(slice(None), slice(None), *(slice(before, before + extent) for before, extent in inside))]


def _backward_filter(torch: Any, operation: ConvolutionBackwardFilter, inputs: dict[str, Any]) -> Any:
    x, dy = _padded(torch, operation, inputs["x"]), _split(operation, inputs["dy"]).flatten(3)
    dw = _filters(operation, torch.zeros(operation.dw.dims, dtype=torch.float64, device="cuda"))
    for weights, elements in operation.convolution.windows(operation.dw.dims[2:], operation.dy.dims[2:]):
        x_at = _split(operation, x[elements]).flatten(3)
        dw[(slice(None), *weights)] = torch.einsum("ngkp,ngcp->gkc", dy, x_at)
    return dw.reshape(operation.dw.dims)


def _padded(torch: Any, operation: ConvolutionOperation, x: Any) -> Any:
    geometry = operation.convolution
    pairs = zip(reversed(geometry.pre_paddings), reversed(geometry.post_paddings), strict=True)
    return torch.nn.functional.pad(x, [padding for pair in pairs for padding in pair])


def _filters(operation: ConvolutionOperation, w: Any) -> Any:
    """(groups, filters of a group, channels of a group, taps...)."""
    return w.reshape(operation.groups, -1, *w.shape[1:])


def _split(operation: ConvolutionOperation, values: Any) -> Any:
    """(n, groups, channels of a group, spatial...)."""
    return values.reshape(values.shape[0], operation.groups, -1, *values.shape[2:])


def _grouped(operation: ConvolutionOperation, dims: tuple[int, ...]) -> tuple[int, ...]:
    return (dims[0], operation.groups, dims[1] // operation.groups, *dims[2:])

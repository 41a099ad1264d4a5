"""Gradients of convolutions with stride 1 as convolutions of the response.

With stride 1 an image and its response can change roles. If the response at o sums image(o + r - p) * w(k, c, r), the
image's gradient at i sums dy(i + s - q) * w(k, c, t - s), where t is the last tap and q = t - p, all dilated. So a
gradient of the data is a forward pass, and a gradient of the filter is another such gradient, of a convolution whose
image is the response and whose filter is flipped, with channels and filters exchanged.
"""

from __future__ import annotations

from dataclasses import replace

from lowdnn.enums import ConvolutionMode
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor

_FLIPPED = {
    ConvolutionMode.CONVOLUTION: ConvolutionMode.CROSS_CORRELATION,
    ConvolutionMode.CROSS_CORRELATION: ConvolutionMode.CONVOLUTION,
}


def with_few_channels(operation: ConvolutionOperation, most: int) -> ConvolutionOperation:
    """``operation``, or its exchanged form if only the response has at most ``most`` channels."""
    if operation.image.dims[1] <= most or operation.response.dims[1] > most:
        return operation
    return exchanged(operation) or operation


def exchanged(operation: ConvolutionOperation) -> ConvolutionOperation | None:
    """The operation whose image is the response of ``operation``: see the module's docstring.

    It exists for gradients with stride 1, one group, and no more padding than taps reach; otherwise None.
    """
    geometry = _geometry(operation)
    if geometry is None or operation.groups > 1:
        return None
    alpha, beta = operation.alpha, operation.beta
    if isinstance(operation, ConvolutionBackwardData):
        return ConvolutionForward(geometry, operation.dy, _exchanged(operation.w), operation.dx, alpha, beta)
    if isinstance(operation, ConvolutionBackwardFilter):
        return ConvolutionBackwardFilter(geometry, operation.dy, operation.x, _exchanged(operation.dw), alpha, beta)
    return None


def _geometry(operation: ConvolutionOperation) -> Convolution | None:
    """The exchanged geometry; None with strides, or if the image's padding is beyond the filter's reach."""
    old = operation.convolution
    reach = [(taps - 1) * gap for taps, gap in zip(operation.filter.dims[2:], old.dilations, strict=True)]
    pre, post = (
        tuple(most - padding for most, padding in zip(reach, paddings, strict=True))
        for paddings in (old.pre_paddings, old.post_paddings)
    )
    if max(old.strides) > 1 or min(*pre, *post) < 0:
        return None
    return replace(old, mode=_FLIPPED[old.mode], pre_paddings=pre, post_paddings=post)


def _exchanged(filters: Tensor) -> Tensor:
    """The tensor of filters with channels and filters exchanged."""
    (filter_count, channels, *taps), (of_filters, of_channels, *of_taps) = filters.dims, filters.strides
    return replace(filters, dims=(channels, filter_count, *taps), strides=(of_channels, of_filters, *of_taps))

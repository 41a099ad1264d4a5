"""Operands of convolutions in other forms: im2col, reordered filters, a gradient with strides as one without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import member, was_set
from lowdnn.capi.calls.window_copies import copy_windows
from lowdnn.capi.classic_enums import FoldingDirection
from lowdnn.capi.descriptors import (
    ConvolutionDescriptor,
    FilterDescriptor,
    TensorDescriptor,
    TensorTransformDescriptor,
    packed_strides,
)
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Builder
from lowdnn.capi.memory import Address, checked
from lowdnn.capi.state import State
from lowdnn.capi.windows import Axis
from lowdnn.enums import ConvolutionMode, DataType, ReorderType, TensorFormat
from lowdnn.status import NotSupportedError, ShapeMismatchError


def im2col(
    state: State, handle: Address, x_desc: Address, x: Address, w_desc: Address, convolution: Address, columns: Address
) -> None:
    """columns[(n, p, q), (c, r, s)] = x[n, c, p * u + r * dilation - padding, ...], packed, in the type of x.

    The mode does not matter: r counts as a cross-correlation does.
    """
    frame = Frame.of(state, handle, "cudnnIm2Col")
    image = frame.descriptor(x_desc, "x")
    filters = was_set(state, w_desc, FilterDescriptor, f"{frame.name}.wDesc")
    found = was_set(state, convolution, ConvolutionDescriptor, f"{frame.name}.convDesc")
    n, _, *outputs = found.output_dims(frame.name, image, filters)
    taps, spatial = filters.dims[2:], range(len(outputs))
    row = image.dims[1] * prod(taps)
    dims = (n, *outputs, image.dims[1], *taps)
    strides = packed_strides(TensorFormat.NCHW, dims)
    channels = len(outputs) + 1
    axes = [
        Axis(n, n, image.strides[0], strides[0]),
        Axis(image.dims[1], image.dims[1], image.strides[1], strides[channels]),
    ]
    axes += (
        Axis(
            extent=image.dims[axis + 2],
            count=outputs[axis],
            place_stride=image.strides[axis + 2],
            window_stride=strides[axis + 1],
            taps=taps[axis],
            tap_stride=strides[channels + 1 + axis],
            stride=found.strides[axis],
            dilation=found.dilations[axis],
            padding=found.paddings[axis],
        )
        for axis in spatial
    )
    matrix = TensorDescriptor(image.data_type, (prod(dims) // row, row), (row, 1))
    copy_windows(frame, (image, x, "x"), (matrix, columns, "colBuffer"), (1.0, 0.0), axes, to_windows=True)


def reorder(
    state: State, handle: Address, w_desc: Address, kind: int, w: Address, reordered_w: Address, has_bias: int,
    bias: Address, reordered_bias: Address,
) -> None:  # fmt: skip
    """Copies the filter, and the bias of K floats where ``has_bias`` is above 0: no engine wants another order."""
    frame = Frame.of(state, handle, "cudnnReorderFilterAndBias")
    filters = was_set(state, w_desc, FilterDescriptor, f"{frame.name}.filterDesc")
    member(ReorderType, kind, f"{frame.name}.reorderType")
    copies = [(filters.scalars, w, reordered_w, ("filterData", "reorderedFilterData"))]
    if has_bias > 0:
        row = (1, filters.dims[0], 1, 1)
        floats = TensorDescriptor(DataType.FLOAT, row, packed_strides(TensorFormat.NCHW, row))
        copies.append((floats, bias, reordered_bias, ("biasData", "reorderedBiasData")))
    builders = []
    for descriptor, source, target, names in copies:
        builders.append(builder := Builder())
        x = builder.tensor(descriptor, source, f"{frame.name}.{names[0]}")
        builder.assign(x, descriptor, target, (1.0, 0.0), f"{frame.name}.{names[1]}")
    frame.run_all(builders)


def folded_descriptors(
    state: State, handle: Address, w_desc: Address, dy_desc: Address, convolution: Address, dx_desc: Address,
    layout: int, folded_w: Address, padded_dy: Address, folded_convolution: Address, folded_dx: Address,
    w_transform: Address, dy_transform: Address, dx_fold: Address, dx_unfold: Address,
) -> None:  # fmt: skip
    """Describes the gradient of a convolution with strides as one whose strides are 1.

    With the strides as folds, a folded filter gives the folded gradient, to which the padding belongs:

        dx = unfold(gradient(fold(w), pad(dy)))

    Raises NotSupportedError for dilation, and for the mode CONVOLUTION, whose flipped filters do not fold.
    """
    name = "cudnnGetFoldedConvBackwardDataDescriptors"
    state.objects.get(handle, Handle, f"{name}.handle")
    filters = was_set(state, w_desc, FilterDescriptor, f"{name}.filterDesc")
    response = was_set(state, dy_desc, TensorDescriptor, f"{name}.diffDesc")
    image = was_set(state, dx_desc, TensorDescriptor, f"{name}.gradDesc")
    found = was_set(state, convolution, ConvolutionDescriptor, f"{name}.convDesc")
    chosen = member(TensorFormat, layout, f"{name}.transformFormat")
    if chosen is TensorFormat.NCHW_VECT_C:
        raise NotSupportedError.at(f"{name}.transformFormat", expected="NCHW or NHWC", got=chosen.name)
    expected = found.output_dims(name, image, filters)
    if response.dims != expected:
        raise ShapeMismatchError.at(f"{name}.diffDesc.dims", expected=list(expected), got=list(response.dims))
    if max(found.dilations) > 1 or found.mode is ConvolutionMode.CONVOLUTION:
        got = f"{list(found.dilations)} and {found.mode.name}"
        raise NotSupportedError.at(f"{name}.convDesc", expected="dilations of 1 and CROSS_CORRELATION", got=got)
    fold = _Fold.of(found, image.dims[2:], filters.dims[2:], response.dims[2:])
    transforms = fold.transforms(chosen, found.strides)
    geometry = replace(found, paddings=(0,) * len(fold.taps), strides=(1,) * len(fold.taps))

    def tensor(of: TensorDescriptor, transform: TensorTransformDescriptor) -> TensorDescriptor:
        dims = transform.output_dims(name, of.dims)
        return TensorDescriptor.of(name, of.data_type, dims, packed_strides(chosen, dims))

    w = FilterDescriptor.of(name, filters.data_type, chosen, transforms.w.output_dims(name, filters.dims))
    results: tuple[tuple[Address, Any, str], ...] = (
        (folded_w, w, "foldedFilterDesc"),
        (padded_dy, tensor(response, transforms.dy), "paddedDiffDesc"),
        (folded_convolution, geometry, "foldedConvDesc"),
        (folded_dx, tensor(image, transforms.dx), "foldedGradDesc"),
        (w_transform, transforms.w, "filterFoldTransDesc"),
        (dy_transform, transforms.dy, "diffPadTransDesc"),
        (dx_fold, transforms.dx, "gradFoldTransDesc"),
        (dx_unfold, transforms.back, "gradUnfoldTransDesc"),
    )
    for address, value, argument in results:
        state.objects.get(address, type(value), f"{name}.{argument}")
    for address, value, argument in results:
        state.objects.replace(checked(address, f"{name}.{argument}"), value)


class _Transforms(NamedTuple):
    """The transforms of the filter, the response and the gradient, and the one of the gradient back."""

    w: TensorTransformDescriptor
    dy: TensorTransformDescriptor
    dx: TensorTransformDescriptor
    back: TensorTransformDescriptor


class _Fold(NamedTuple):
    """Padding of each spatial dimension for folding: after the last tap and the last response, and on both sides of the
    image."""

    taps: tuple[int, ...]
    responses: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(
        cls, convolution: ConvolutionDescriptor, image: tuple[int, ...], taps: tuple[int, ...],
        responses: tuple[int, ...],
    ) -> _Fold:  # fmt: skip
        """Folded, a response has as many places as the folded image has more than the folded filter, and one more."""
        added = []
        for extent, tap, count, stride, padding in zip(
            image, taps, responses, convolution.strides, convolution.paddings, strict=True
        ):
            folded_taps = -(-tap // stride)
            folded = max(count + folded_taps - 1, -(-(extent + padding) // stride))
            response = folded - folded_taps + 1
            added.append((folded_taps * stride - tap, response - count, padding, folded * stride - extent - padding))
        return cls(*zip(*added, strict=True))

    def transforms(self, layout: TensorFormat, strides: tuple[int, ...]) -> _Transforms:
        none, ones = (0,) * len(self.taps), (1,) * len(self.taps)

        def transform(
            before: tuple[int, ...], after: tuple[int, ...], folds: tuple[int, ...],
            direction: FoldingDirection = FoldingDirection.FOLD,
        ) -> TensorTransformDescriptor:  # fmt: skip
            return TensorTransformDescriptor(layout, (0, 0, *before), (0, 0, *after), folds, direction)

        before, after = (tuple(-padding for padding in paddings) for paddings in (self.before, self.after))
        return _Transforms(
            w=transform(none, self.taps, strides),
            dy=transform(none, self.responses, ones),
            dx=transform(self.before, self.after, strides),
            back=transform(before, after, strides, FoldingDirection.UNFOLD),
        )


CALLS: Mapping[str, Call] = {
    "cudnnIm2Col": im2col,
    "cudnnReorderFilterAndBias": reorder,
    "cudnnGetFoldedConvBackwardDataDescriptors": folded_descriptors,
}

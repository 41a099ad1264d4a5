"""The convolutions of pygraph: forward, backward data, backward filter.

All three take the same geometry, one entry for each spatial dimension; paddings left out are 0, strides and dilations
1. Given by position, the arguments are those of a method's first form, or of the second where the fourth of them is a
sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from lowdnn.frontend.arguments import integers
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_convolution, convolution_mode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import (
    BackwardDataNode,
    BackwardFilterNode,
    ConvolutionNode,
    ForwardNode,
    Geometry,
)
from lowdnn.status import BadParamError

#: The orders of the arguments by position, after the two tensors.
_SYMMETRIC = ("padding", "stride", "dilation", "convolution_mode", "compute_data_type", "name")
_ASYMMETRIC = ("pre_padding", "post_padding", *_SYMMETRIC[1:])


class ConvolutionMethods(GraphBuilder):
    """See the module's docstring."""

    @overload
    def conv_fprop(
        self,
        image: Tensor,
        weight: Tensor,
        padding: Sequence[int] = ...,
        stride: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: DataTypeLike = ...,
        name: str = ...,
    ) -> Tensor: ...

    @overload
    def conv_fprop(
        self,
        image: Tensor,
        weight: Tensor,
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        stride: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: DataTypeLike = ...,
        name: str = ...,
    ) -> Tensor: ...

    @operation
    def conv_fprop(
        self,
        image: Tensor,
        weight: Tensor,
        *positional: Any,
        padding: Sequence[int] | None = None,
        pre_padding: Sequence[int] | None = None,
        post_padding: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        convolution_mode: convolution_mode | None = None,
        compute_data_type: DataTypeLike = None,
        name: str | None = None,
    ) -> Tensor:
        """The convolution of ``image`` (N, C, spatial...) with ``weight`` (K, C / groups, taps...)."""
        named = _given(padding, pre_padding, post_padding, stride, dilation, convolution_mode, compute_data_type, name)
        return self._convolve(ForwardNode, (image, weight), "conv_fprop", positional, named)

    @overload
    def conv_dgrad(
        self,
        loss: Tensor,
        filter: Tensor,
        padding: Sequence[int] = ...,
        stride: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: DataTypeLike = ...,
        name: str = ...,
    ) -> Tensor: ...

    @overload
    def conv_dgrad(
        self,
        loss: Tensor,
        filter: Tensor,
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        stride: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: DataTypeLike = ...,
        name: str = ...,
    ) -> Tensor: ...

    @operation
    def conv_dgrad(
        self,
        loss: Tensor,
        filter: Tensor,
        *positional: Any,
        padding: Sequence[int] | None = None,
        pre_padding: Sequence[int] | None = None,
        post_padding: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        convolution_mode: convolution_mode | None = None,
        compute_data_type: DataTypeLike = None,
        name: str | None = None,
    ) -> Tensor:
        """The image's gradient from ``loss``, the gradient (N, K, outputs...) of conv_fprop's output, and its weights.

        ``loss`` and ``filter`` do not determine the image's dims: set the output's with ``set_dim``.
        """
        named = _given(padding, pre_padding, post_padding, stride, dilation, convolution_mode, compute_data_type, name)
        return self._convolve(BackwardDataNode, (loss, filter), "conv_dgrad", positional, named)

    @overload
    def conv_wgrad(
        self,
        image: Tensor,
        loss: Tensor,
        padding: Sequence[int] = ...,
        stride: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: DataTypeLike = ...,
        name: str = ...,
    ) -> Tensor: ...

    @overload
    def conv_wgrad(
        self,
        image: Tensor,
        loss: Tensor,
        pre_padding: Sequence[int],
        post_padding: Sequence[int],
        stride: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        convolution_mode: convolution_mode = ...,
        compute_data_type: DataTypeLike = ...,
        name: str = ...,
    ) -> Tensor: ...

    @operation
    def conv_wgrad(
        self,
        image: Tensor,
        loss: Tensor,
        *positional: Any,
        padding: Sequence[int] | None = None,
        pre_padding: Sequence[int] | None = None,
        post_padding: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        convolution_mode: convolution_mode | None = None,
        compute_data_type: DataTypeLike = None,
        name: str | None = None,
    ) -> Tensor:
        """The weights' gradient from ``image`` and ``loss``, the gradient (N, K, outputs...) of conv_fprop's output.

        ``image`` and ``loss`` do not determine the weights' dims: set the output's with ``set_dim``.
        """
        named = _given(padding, pre_padding, post_padding, stride, dilation, convolution_mode, compute_data_type, name)
        return self._convolve(BackwardFilterNode, (image, loss), "conv_wgrad", positional, named)

    def _convolve(
        self,
        node: type[ConvolutionNode],
        inputs: tuple[Tensor, Tensor],
        method: str,
        positional: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Tensor:
        given = _bind(method, positional, named)
        self._call.others.update({name: value for name, value in given.items() if name != "name"})
        if "padding" in given and ("pre_padding" in given or "post_padding" in given):
            raise BadParamError.at(
                f"{method}.padding", expected="either padding or pre_padding and post_padding", got="both"
            )
        both = integers(given.get("padding", ()), f"{method}.padding")
        geometry = Geometry(
            integers(given.get("pre_padding", both), f"{method}.pre_padding"),
            integers(given.get("post_padding", both), f"{method}.post_padding"),
            integers(given.get("stride", ()), f"{method}.stride"),
            integers(given.get("dilation", ()), f"{method}.dilation"),
            backend_convolution(given.get("convolution_mode", convolution_mode.CROSS_CORRELATION), method),
        )
        compute = given.get("compute_data_type", data_type.NOT_SET)
        return self._add(node(inputs, geometry), compute, given.get("name", ""))


def _given(
    padding: object,
    pre_padding: object,
    post_padding: object,
    stride: object,
    dilation: object,
    mode: object,
    compute_data_type: object,
    name: object,
) -> dict[str, Any]:
    """The named arguments that are set."""
    named = {
        "padding": padding,
        "pre_padding": pre_padding,
        "post_padding": post_padding,
        "stride": stride,
        "dilation": dilation,
        "convolution_mode": mode,
        "compute_data_type": compute_data_type,
        "name": name,
    }
    return {key: value for key, value in named.items() if value is not None}


def _bind(method: str, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments after the two tensors, by name."""
    is_asymmetric = len(positional) > 3 and isinstance(positional[3], (list, tuple))
    order = _ASYMMETRIC if is_asymmetric or {"pre_padding", "post_padding"} & set(named) else _SYMMETRIC
    if len(positional) > len(order):
        raise BadParamError.at(method, expected=f"at most {2 + len(order)} arguments", got=2 + len(positional))
    bound = dict(zip(order, positional, strict=False))
    repeated = sorted(set(bound) & set(named))
    if repeated:
        raise BadParamError.at(f"{method}.{repeated[0]}", expected="one value", got="one by position and one by name")
    return bound | named

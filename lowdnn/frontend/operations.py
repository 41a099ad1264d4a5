"""The structured operations of pygraph: convolution, matmul, reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from lowdnn.frontend.arguments import integers, number
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_convolution, backend_reduction, convolution_mode, reduction_mode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import ConvolutionNode, MatmulNode, ReductionNode
from lowdnn.status import BadParamError, NotSupportedError

NOT_SET = data_type.NOT_SET
CROSS_CORRELATION = convolution_mode.CROSS_CORRELATION

#: The orders of conv_fprop's arguments by position, behind image and weight.
_SYMMETRIC = ("padding", "stride", "dilation", "convolution_mode", "compute_data_type", "name")
_ASYMMETRIC = ("pre_padding", "post_padding", *_SYMMETRIC[1:])


class OperationMethods(GraphBuilder):
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
        """The convolution of ``image`` (N, C, spatial...) with ``weight`` (K, C / groups, filter...).

        Geometry has one entry for each spatial dimension; paddings left out are 0, strides and dilations 1. Given by
        position, the arguments are those of the first form, or of the second where the fourth of them is a sequence.
        """
        named = {
            "padding": padding,
            "pre_padding": pre_padding,
            "post_padding": post_padding,
            "stride": stride,
            "dilation": dilation,
            "convolution_mode": convolution_mode,
            "compute_data_type": compute_data_type,
            "name": name,
        }
        given = _bind(positional, {key: value for key, value in named.items() if value is not None})
        if "padding" in given and ("pre_padding" in given or "post_padding" in given):
            raise BadParamError.at(
                "conv_fprop.padding", expected="either padding or pre_padding and post_padding", got="both"
            )
        both = integers(given.get("padding", ()), "conv_fprop.padding")
        node = ConvolutionNode(
            (image, weight),
            integers(given.get("pre_padding", both), "conv_fprop.pre_padding"),
            integers(given.get("post_padding", both), "conv_fprop.post_padding"),
            integers(given.get("stride", ()), "conv_fprop.stride"),
            integers(given.get("dilation", ()), "conv_fprop.dilation"),
            backend_convolution(given.get("convolution_mode", CROSS_CORRELATION)),
        )
        return self._add(node, given.get("compute_data_type", NOT_SET), given.get("name", ""))

    def matmul(
        self, A: Tensor, B: Tensor, compute_data_type: DataTypeLike = NOT_SET, padding: float = 0.0, name: str = ""
    ) -> Tensor:
        """A (batch..., M, K) times B (batch..., K, N); a batch extent of 1 repeats."""
        return self._add(MatmulNode((A, B), number(padding, "matmul.padding")), compute_data_type, name)

    def reduction(
        self,
        input: Tensor,
        mode: reduction_mode,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
        group_offset: Tensor | None = None,
    ) -> Tensor:
        """``input`` reduced over the axes whose extent is 1 in the output: set the output's dims with ``set_dim``."""
        if group_offset is not None:
            raise NotSupportedError.at("reduction.group_offset", expected="None", got=repr(group_offset))
        return self._add(ReductionNode((input,), backend_reduction(mode)), compute_data_type, name)


def _bind(positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """conv_fprop's arguments by name."""
    is_asymmetric = len(positional) > 3 and isinstance(positional[3], (list, tuple))
    order = _ASYMMETRIC if is_asymmetric or {"pre_padding", "post_padding"} & set(named) else _SYMMETRIC
    if len(positional) > len(order):
        raise BadParamError.at("conv_fprop", expected=f"at most {2 + len(order)} arguments", got=2 + len(positional))
    bound = dict(zip(order, positional, strict=False))
    repeated = sorted(set(bound) & set(named))
    if repeated:
        raise BadParamError.at(f"conv_fprop.{repeated[0]}", expected="one value", got="one by position and one by name")
    return bound | named

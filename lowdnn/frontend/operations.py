"""The structured operations of pygraph: convolution, matmul, reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_convolution, backend_reduction, convolution_mode, reduction_mode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import ConvolutionNode, MatmulNode, ReductionNode
from lowdnn.status import BadParamError, NotSupportedError

NOT_SET = data_type.NOT_SET
CROSS_CORRELATION = convolution_mode.CROSS_CORRELATION


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

    def conv_fprop(self, image: Tensor, weight: Tensor, *positional: Any, **named: Any) -> Tensor:
        raise NotImplementedError

    def matmul(
        self, A: Tensor, B: Tensor, compute_data_type: DataTypeLike = NOT_SET, padding: float = 0.0, name: str = ""
    ) -> Tensor:
        """A (batch..., M, K) times B (batch..., K, N); a batch extent of 1 repeats."""
        return self._add(MatmulNode((A, B), padding), compute_data_type, name)

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
            raise NotSupportedError.at("reduction.group_offset", expected="None", got=group_offset.label)
        return self._add(ReductionNode((input,), backend_reduction(mode)), compute_data_type, name)

"""Pooling and interpolation of pygraph: methods that cudnn-frontend's Python package lacks, in its style.

Windows, strides and paddings have one entry for each spatial dimension, integers or ``fractions.Fraction``; what they
mean is in ``ops.resample``. NaN propagates. ``resample_to`` takes the outputs' size instead: adaptive pooling, and
interpolation between the middles of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lowdnn.frontend.arguments import boolean, integers, rationals
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_padding, backend_resample, padding_mode, resample_mode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.resample_nodes import ResampleBackwardNode, ResampleNode, Sampling, Size, Windows

NOT_SET = data_type.NOT_SET

#: A window, a stride or a padding.
Lengths = Sequence[int | Fraction]


class ResampleMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def resample(
        self,
        input: Tensor,
        mode: resample_mode,
        window: Lengths,
        stride: Lengths | None = None,
        pre_padding: Lengths | None = None,
        post_padding: Lengths | None = None,
        padding_mode: padding_mode = padding_mode.ZERO_PAD,
        generate_index: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """(y, index) of ``input`` (N, C, spatial...); ``generate_index``: whether there is an index, places of maxima.

        Left out, strides are 1 and paddings 0.
        """
        sampling = _windows("resample", mode, padding_mode, window, stride, pre_padding, post_padding)
        return self._resample("resample", input, sampling, generate_index, compute_data_type, name)

    @operation
    def resample_to(
        self,
        input: Tensor,
        mode: resample_mode,
        size: Sequence[int],
        generate_index: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """Resampling to outputs of the extents ``size``, from windows around their middles."""
        sampling = Size(backend_resample(mode, "resample_to"), integers(size, "resample_to.size", least=1))
        return self._resample("resample_to", input, sampling, generate_index, compute_data_type, name)

    @operation
    def resample_backward(
        self,
        loss: Tensor,
        mode: resample_mode,
        window: Lengths,
        stride: Lengths | None = None,
        pre_padding: Lengths | None = None,
        post_padding: Lengths | None = None,
        padding_mode: padding_mode = padding_mode.ZERO_PAD,
        index: Tensor | None = None,
        input: Tensor | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """The gradient of resample's input from ``loss``, that of its output.

        MAXPOOL needs the forward pass's ``index`` or its ``input``. Without the input, set the result's dims.
        """
        sampling = _windows("resample_backward", mode, padding_mode, window, stride, pre_padding, post_padding)
        return self._backward(loss, sampling, index, input, compute_data_type, name)

    @operation
    def resample_to_backward(
        self,
        loss: Tensor,
        mode: resample_mode,
        index: Tensor | None = None,
        input: Tensor | None = None,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """The gradient of resample_to's input from ``loss``, that of its output."""
        sampling = Size(backend_resample(mode, "resample_to_backward"))
        return self._backward(loss, sampling, index, input, compute_data_type, name)

    def _resample(
        self,
        method: str,
        input: Tensor,
        sampling: Sampling,
        generate_index: bool,
        compute_data_type: DataTypeLike,
        name: str,
    ) -> tuple[Tensor, Tensor | None]:
        has_index = boolean(generate_index, f"{method}.generate_index")
        node = ResampleNode((input,), sampling, ("Y", "Index") if has_index else ("Y",))
        y, *index = self._add_all(node, compute_data_type, name)
        return y, index[0] if index else None

    def _backward(
        self,
        loss: Tensor,
        sampling: Sampling,
        index: Tensor | None,
        input: Tensor | None,
        compute_data_type: DataTypeLike,
        name: str,
    ) -> Tensor:
        given = {"DY": loss, "Index": index, "X": input}
        named = {port: tensor for port, tensor in given.items() if tensor is not None}
        node = ResampleBackwardNode(tuple(named.values()), tuple(named), sampling)
        return self._add(node, compute_data_type, name)


def _windows(
    method: str,
    mode: resample_mode,
    padding: padding_mode,
    window: Lengths,
    stride: Lengths | None,
    pre_padding: Lengths | None,
    post_padding: Lengths | None,
) -> Windows:
    return Windows(
        backend_resample(mode, method),
        backend_padding(padding, method),
        rationals(window, f"{method}.window"),
        rationals(() if stride is None else stride, f"{method}.stride"),
        rationals(() if pre_padding is None else pre_padding, f"{method}.pre_padding"),
        rationals(() if post_padding is None else post_padding, f"{method}.post_padding"),
    )

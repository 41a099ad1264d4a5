"""Convolutions and products of routed rows for the builder of cases."""

from __future__ import annotations

from lowdnn.enums import DataType, MoeGroupedMatmulMode
from lowdnn.graph.layouts import Layout
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.ops import moe_grouped_matmul
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.tensor import Tensor


class ContractionBuilder(NodeWriter):
    """Methods of ``CaseBuilder``."""

    def convolution(
        self,
        x: Tensor,
        w: Tensor,
        *,
        geometry: Convolution,
        store: DataType | None = None,
        layout: Layout | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        y = self.output(geometry.output_dims(x.dims, w.dims), geometry.compute_type, store, layout, "y")
        self._operations.append(ConvolutionForward(geometry, x=x, w=w, y=y, alpha=alpha, beta=beta))
        return y

    def convolution_data_gradient(
        self,
        dy: Tensor,
        w: Tensor,
        dims: tuple[int, ...],
        *,
        geometry: Convolution,
        store: DataType | None = None,
        layout: Layout | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dx of ``dims``."""
        dx = self.output(dims, geometry.compute_type, store, layout, "dx")
        self._operations.append(ConvolutionBackwardData(geometry, w=w, dy=dy, dx=dx, alpha=alpha, beta=beta))
        return dx

    def convolution_filter_gradient(
        self,
        x: Tensor,
        dy: Tensor,
        dims: tuple[int, ...],
        *,
        geometry: Convolution,
        store: DataType | None = None,
        layout: Layout | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dw of ``dims``."""
        dw = self.output(dims, geometry.compute_type, store, layout, "dw")
        self._operations.append(ConvolutionBackwardFilter(geometry, x=x, dy=dy, dw=dw, alpha=alpha, beta=beta))
        return dw

    def moe_grouped_matmul(
        self,
        token: Tensor,
        weight: Tensor,
        first_token_offset: Tensor,
        token_index: Tensor | None = None,
        token_ks: Tensor | None = None,
        *,
        mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE,
        top_k: int = 0,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        rows = None if token_index is None else token_index.dims
        dims = moe_grouped_matmul.output_dims(mode, token.dims, weight.dims, rows)
        output = self.output(dims, compute_type, store, layout, "output")
        self._operations.append(
            MoeGroupedMatmul(
                mode, compute_type, token, weight, first_token_offset, output, token_index, token_ks, top_k
            )
        )
        return output

    def moe_weight_gradient(
        self,
        doutput: Tensor,
        token: Tensor,
        first_token_offset: Tensor,
        experts: int,
        *,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        """dweight of ``experts``."""
        dims = (experts, token.dims[-1], doutput.dims[-1])
        dweight = self.output(dims, compute_type, store, layout, "dweight")
        self._operations.append(MoeGroupedMatmulBackward(compute_type, doutput, token, first_token_offset, dweight))
        return dweight

"""The structured operations of pygraph besides convolutions: matmul, reduction, statistics."""

from __future__ import annotations

from lowdnn.frontend.arguments import number
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_reduction, reduction_mode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import GenStatsNode, MatmulNode, ReductionNode
from lowdnn.status import NotSupportedError

NOT_SET = data_type.NOT_SET


class OperationMethods(GraphBuilder):
    """See the module's docstring."""

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

    def genstats(
        self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> tuple[Tensor, Tensor]:
        """(sum, sum of squares) of each channel of ``input`` (N, C, spatial...), both (1, C, 1...)."""
        total, squares = self._add_all(GenStatsNode((input,)), compute_data_type, name)
        return total, squares

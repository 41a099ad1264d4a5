"""The structured operations of pygraph besides convolutions: matmuls, reduction, statistics."""

from __future__ import annotations

from lowdnn.frontend.arguments import integer, real
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_reduction, backend_routing, moe_grouped_matmul_mode, reduction_mode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import GenStatsNode, MatmulNode, MoeBackwardNode, MoeNode, ReductionNode
from lowdnn.status import NotSupportedError

NOT_SET = data_type.NOT_SET


class OperationMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def matmul(
        self, A: Tensor, B: Tensor, compute_data_type: DataTypeLike = NOT_SET, padding: float = 0.0, name: str = ""
    ) -> Tensor:
        """A (batch..., M, K) times B (batch..., K, N); a batch extent may be 1 or a divisor of the other operand's."""
        return self._add(MatmulNode((A, B), real(padding, "matmul.padding")), compute_data_type, name)

    @operation
    def moe_grouped_matmul(
        self,
        token: Tensor,
        weight: Tensor,
        first_token_offset: Tensor,
        token_index: Tensor | None = None,
        token_ks: Tensor | None = None,
        mode: moe_grouped_matmul_mode = moe_grouped_matmul_mode.NONE,
        compute_data_type: DataTypeLike = data_type.FLOAT,
        top_k: int = 0,
        name: str = "",
        top_k_scores: Tensor | None = None,
    ) -> Tensor:
        """Rows of ``token`` (1, rows, K), each times its expert's matrix in ``weight`` (E, K, N).

        Rows are sorted by expert, or the mode gathers them in that order.

        first_token_offset: the first row of each expert, E numbers for each batch; one more is the end of the last
        expert's rows. token_index, token_ks: (1, rows, 1), as the mode needs them; see ``ops.moe_grouped_matmul``.
        """
        if top_k_scores is not None:
            hint = "multiply the rows by their scores afterwards"
            raise NotSupportedError.at(
                "moe_grouped_matmul.top_k_scores", expected="None", got=repr(top_k_scores), hint=hint
            )
        routing = tuple(tensor for tensor in (token_index, token_ks) if tensor is not None)
        node = MoeNode(
            (token, weight, first_token_offset, *routing),
            backend_routing(mode),
            integer(top_k, "moe_grouped_matmul.top_k"),
            has_index=token_index is not None,
        )
        return self._add(node, compute_data_type, name)

    @operation
    def moe_grouped_matmul_bwd(
        self,
        doutput: Tensor,
        token: Tensor,
        first_token_offset: Tensor,
        compute_data_type: DataTypeLike = data_type.FLOAT,
        name: str = "",
    ) -> Tensor:
        """The gradient (E, K, N) of the experts' weights, from doutput (1, rows, N), the gradient of the output, and
        token (1, rows, K).

        Set the result's dims if E is not the number of offsets.
        """
        return self._add(MoeBackwardNode((doutput, token, first_token_offset)), compute_data_type, name)

    @operation
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
            hint = "reduce each group by an operation of its own"
            raise NotSupportedError.at("reduction.group_offset", expected="None", got=repr(group_offset), hint=hint)
        return self._add(ReductionNode((input,), backend_reduction(mode)), compute_data_type, name)

    @operation
    def genstats(
        self, input: Tensor, compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> tuple[Tensor, Tensor]:
        """(sum, sum of squares) of each channel of ``input`` (N, C, spatial...), both (1, C, 1...)."""
        label = self._label(name)
        total, squares = self._add_all(GenStatsNode((input,)), compute_data_type, label)
        return total.set_name(f"{label}_sum_output"), squares.set_name(f"{label}_sq_sum_output")

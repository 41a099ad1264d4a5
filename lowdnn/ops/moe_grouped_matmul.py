"""Grouped matrix product of a mixture of experts: each routed row is multiplied by the weight of its expert.

    output[0, to(r), n] = sum over k of token[0, from(r), k] * weight[expert(r), k, n]

token is (1, T, K), weight (E, K, N), output (1, R, N); first_token_offset gives expert(r) (``token_groups.py``).
NONE: R = T, from(r) = to(r) = r.  GATHER: from(r) = token_index[r], to(r) = r; R is token_index's extent.
SCATTER: R = T, from(r) = r, to(r) = token_index[r] * top_k + token_ks[r], with token_ks in [0, top_k).
token_index and token_ks are (1, R, 1) of INT32 and lie within token and output; two rows must not go to one place.
Output rows to which no row of a group goes stay as they were.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR; cudnn-frontend, MoE grouped matmul.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, MoeGroupedMatmulMode
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_compute_type, wrap_accumulator
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.token_groups import TokenGroups
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError, UnsupportedShapeError

#: The optional inputs that each mode reads.
_ROUTING = {
    MoeGroupedMatmulMode.NONE: (),
    MoeGroupedMatmulMode.GATHER: ("token_index",),
    MoeGroupedMatmulMode.SCATTER: ("token_index", "token_ks"),
}


@dataclass(frozen=True)
class MoeGroupedMatmul:
    """See the module's docstring. ``top_k`` counts in SCATTER only."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_MOE_GROUPED_MATMUL
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    mode: MoeGroupedMatmulMode = attribute(
        AttributeName.OPERATION_MOE_GROUPED_MATMUL_MODE, AttributeType.MOE_GROUPED_MATMUL_MODE
    )
    compute_type: DataType = attribute(AttributeName.OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, AttributeType.DATA_TYPE)
    token: Tensor = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_TOKEN_DESC)
    weight: Tensor = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_WEIGHT_DESC)
    first_token_offset: Tensor = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_FIRST_TOKEN_OFFSET_DESC)
    output: Tensor = tensor_output(AttributeName.OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC)
    token_index: Tensor | None = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_TOKEN_INDEX_DESC, default=None)
    token_ks: Tensor | None = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_TOKEN_KS_DESC, default=None)
    top_k: int = attribute(AttributeName.OPERATION_MOE_GROUPED_MATMUL_TOP_K, AttributeType.INT32, default=0)

    def __post_init__(self) -> None:
        rows = None if self.token_index is None else self.token_index.dims
        expected = output_dims(self.mode, self.token.dims, self.weight.dims, rows)
        if self.output.dims != expected:
            got = list(self.output.dims)
            raise ShapeMismatchError.at("moe_grouped_matmul.output.dims", expected=list(expected), got=got)
        check_compute_type("moe_grouped_matmul", self.compute_type, (self.token, self.weight))
        self._check_routing()
        _ = self.groups

    @cached_property
    def groups(self) -> TokenGroups:
        """The groups of the routed rows."""
        where = "moe_grouped_matmul.first_token_offset"
        return TokenGroups.of(where, self.first_token_offset, self.weight.dims[0], self.output.dims[1])

    @property
    def flops(self) -> int:
        return 2 * self.output.element_count * self.token.dims[2]

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """``output``, where given, is what was there before."""
        token, weight = inputs["token"][0], inputs["weight"]
        rows = np.arange(self.output.dims[1])
        index = inputs["token_index"].reshape(-1).astype(np.int64) if self.token_index is not None else rows
        sources = index if self.mode is MoeGroupedMatmulMode.GATHER else rows
        targets = rows
        if self.mode is MoeGroupedMatmulMode.SCATTER:
            targets = index * self.top_k + inputs["token_ks"].reshape(-1).astype(np.int64)
        output = np.zeros(self.output.dims, np.result_type(token, weight))
        if "output" in inputs:
            output[...] = inputs["output"]
        for expert, group in self.groups.ranges(inputs["first_token_offset"]):
            product = np.matmul(token[sources[group]], weight[expert])
            output[0, targets[group]] = wrap_accumulator(product, self.compute_type)
        return {"output": output}

    def _check_routing(self) -> None:
        for port in ("token_index", "token_ks"):
            tensor, where = getattr(self, port), f"moe_grouped_matmul.{port}"
            is_read = port in _ROUTING[self.mode]
            if is_read != (tensor is not None):
                expected = f"{'a tensor' if is_read else 'none'} in mode {self.mode.name}"
                raise BadParamError.at(where, expected=expected, got="none" if tensor is None else tensor.label)
            if tensor is None:
                continue
            rows = (1, self.output.dims[1], 1)
            if tensor.dims != rows:
                raise ShapeMismatchError.at(f"{where}.dims", expected=list(rows), got=list(tensor.dims))
            if tensor.data_type is not DataType.INT32:
                raise UnsupportedDataTypeError.at(f"{where}.data_type", expected="INT32", got=tensor.data_type.name)
        if self.mode is MoeGroupedMatmulMode.SCATTER and (self.top_k < 1 or self.output.dims[1] % self.top_k):
            expected = f"a divisor of the {self.output.dims[1]} rows of the output"
            raise BadParamError.at("moe_grouped_matmul.top_k", expected=expected, got=self.top_k)


def output_dims(
    mode: MoeGroupedMatmulMode,
    token_dims: tuple[int, ...],
    weight_dims: tuple[int, ...],
    index_dims: tuple[int, ...] | None = None,
) -> tuple[int, ...]:
    """The dims of the output. Raises UnsupportedShapeError and ShapeMismatchError where the inputs' dims disagree."""
    if len(token_dims) != 3 or token_dims[0] != 1:
        raise UnsupportedShapeError.at("moe_grouped_matmul.token.dims", expected="[1, rows, K]", got=list(token_dims))
    if len(weight_dims) != 3 or weight_dims[0] < 1:
        expected = "[E, K, N] with E >= 1"
        raise UnsupportedShapeError.at("moe_grouped_matmul.weight.dims", expected=expected, got=list(weight_dims))
    if weight_dims[1] != token_dims[2]:
        expected = f"K = {token_dims[2]} of token"
        raise ShapeMismatchError.at("moe_grouped_matmul.weight.dims[1]", expected=expected, got=weight_dims[1])
    gathers = mode is MoeGroupedMatmulMode.GATHER and index_dims is not None and len(index_dims) == 3
    rows = index_dims[1] if gathers and index_dims is not None else token_dims[1]
    return (1, rows, weight_dims[2])

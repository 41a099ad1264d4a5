"""Gradient of a grouped matrix product with respect to the experts' weights.

    dweight[e, k, n] = sum over the rows r of expert e of token[0, r, k] * doutput[0, r, n]

token is (1, R, K), doutput (1, R, N), dweight (E, K, N); first_token_offset gives the rows of each expert
(``token_groups.py``). The gradient of an expert without rows is 0. E cannot be inferred where several batches share
the experts. Float types only. (The gradient with respect to token is a grouped product with transposed weights.)
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_compute_type, check_float_operands
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.token_groups import TokenGroups
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import ShapeMismatchError, UnsupportedShapeError


@dataclass(frozen=True)
class MoeGroupedMatmulBackward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    compute_type: DataType = attribute(
        AttributeName.OPERATION_MOE_GROUPED_MATMUL_BWD_MATH_PREC, AttributeType.DATA_TYPE
    )
    doutput: Tensor = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_BWD_DOUTPUT_DESC)
    token: Tensor = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_BWD_TOKEN_DESC)
    first_token_offset: Tensor = tensor_input(AttributeName.OPERATION_MOE_GROUPED_MATMUL_BWD_FIRST_TOKEN_OFFSET_DESC)
    dweight: Tensor = tensor_output(AttributeName.OPERATION_MOE_GROUPED_MATMUL_BWD_DWEIGHT_DESC)

    def __post_init__(self) -> None:
        dims = (self.dweight.dims[0], *matrix_dims(self.token.dims, self.doutput.dims))
        if self.dweight.dims != dims or dims[0] < 1:
            expected = f"[E, {dims[1]}, {dims[2]}] with E >= 1"
            got = list(self.dweight.dims)
            raise ShapeMismatchError.at("moe_grouped_matmul_bwd.dweight.dims", expected=expected, got=got)
        check_float_operands("moe_grouped_matmul_bwd", (self.doutput, self.token))
        check_compute_type("moe_grouped_matmul_bwd", self.compute_type, (self.doutput, self.token))
        _ = self.groups

    @cached_property
    def groups(self) -> TokenGroups:
        """The groups of the rows of token and doutput."""
        where = "moe_grouped_matmul_bwd.first_token_offset"
        return TokenGroups.of(where, self.first_token_offset, self.dweight.dims[0], self.token.dims[1])

    @property
    def flops(self) -> int:
        return 2 * self.token.element_count * self.doutput.dims[2]

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        token, doutput = inputs["token"][0], inputs["doutput"][0]
        dweight = np.zeros(self.dweight.dims, np.result_type(token, doutput))
        for expert, group in self.groups.ranges(inputs["first_token_offset"]):
            dweight[expert] += token[group].T @ doutput[group]
        return {"dweight": dweight}


def matrix_dims(token_dims: tuple[int, ...], doutput_dims: tuple[int, ...]) -> tuple[int, int]:
    """(K, N). Raises UnsupportedShapeError for other ranks, ShapeMismatchError where rows disagree."""
    for port, dims in (("token", token_dims), ("doutput", doutput_dims)):
        if len(dims) != 3 or dims[0] != 1:
            where = f"moe_grouped_matmul_bwd.{port}.dims"
            raise UnsupportedShapeError.at(where, expected="[1, rows, elements]", got=list(dims))
    if token_dims[1] != doutput_dims[1]:
        expected = f"the {doutput_dims[1]} rows of doutput"
        raise ShapeMismatchError.at("moe_grouped_matmul_bwd.token.dims[1]", expected=expected, got=token_dims[1])
    return token_dims[2], doutput_dims[2]

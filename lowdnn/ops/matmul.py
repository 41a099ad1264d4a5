"""Matrix product: c[b, m, n] = sum over k of a[b, m, k] * b[b, k, n].

a is (batch..., M, K), b is (batch..., K, N), c is (batch..., M, N). A batch extent of a or b may be a divisor of the
other's: with n batches in one and n / g in the other, batch i of the first goes with matrix i // g of the second, so
that groups of g share one (grouped-query attention; an extent of 1 repeats).
Source: cudnn_graph.h, CUDNN_BACKEND_MATMUL_DESCRIPTOR, OPERATION_MATMUL (which ``matmul_extents`` declares whole).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_compute_type, wrap_accumulator
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import ShapeMismatchError, UnsupportedPaddingError, UnsupportedShapeError


@dataclass(frozen=True)
class Matmul:
    """Arithmetic of a matrix product. padding_value: of ``matmul_extents``; a plain product has 0."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.MATMUL

    compute_type: DataType = attribute(AttributeName.MATMUL_COMP_TYPE, AttributeType.DATA_TYPE)
    padding_value: float = attribute(AttributeName.MATMUL_PADDING_VALUE, AttributeType.DOUBLE, default=0.0)


@dataclass(frozen=True)
class MatmulOperation:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_MATMUL
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION

    matmul: Matmul = attribute(
        AttributeName.OPERATION_MATMUL_DESC, AttributeType.BACKEND_DESCRIPTOR, descriptor=DescriptorType.MATMUL
    )
    a: Tensor = tensor_input(AttributeName.OPERATION_MATMUL_ADESC)
    b: Tensor = tensor_input(AttributeName.OPERATION_MATMUL_BDESC)
    c: Tensor = tensor_output(AttributeName.OPERATION_MATMUL_CDESC)

    def __post_init__(self) -> None:
        if self.matmul.padding_value != 0.0:
            raise UnsupportedPaddingError.at("matmul.padding_value", expected="0.0", got=self.matmul.padding_value)
        check_product(self.matmul, self.a, self.b, self.c)

    @property
    def compute_type(self) -> DataType:
        return self.matmul.compute_type

    @property
    def flops(self) -> int:
        return 2 * self.c.element_count * self.a.dims[-1]

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        a, b = (_repeated(inputs[port], self.c.dims[:-2]) for port in ("a", "b"))
        return {"c": wrap_accumulator(np.matmul(a, b), self.matmul.compute_type)}


def check_product(matmul: Matmul, a: Tensor, b: Tensor, c: Tensor) -> None:
    """Raises ShapeMismatchError, UnsupportedShapeError, UnsupportedDataTypeError."""
    expected = output_dims(a.dims, b.dims)
    if c.dims != expected:
        raise ShapeMismatchError.at("matmul.c.dims", expected=list(expected), got=list(c.dims))
    check_compute_type("matmul", matmul.compute_type, (a, b))


def output_dims(a_dims: tuple[int, ...], b_dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of c. Raises UnsupportedShapeError for a rank under 2, ShapeMismatchError where dims disagree."""
    if len(a_dims) < 2 or len(b_dims) < 2:
        raise UnsupportedShapeError.at("matmul.a.dims, b.dims", expected="rank >= 2", got=[list(a_dims), list(b_dims)])
    if len(a_dims) != len(b_dims):
        raise ShapeMismatchError.at("matmul.b.dims", expected=f"rank {len(a_dims)} as a", got=list(b_dims))
    if a_dims[-1] != b_dims[-2]:
        raise ShapeMismatchError.at("matmul.b.dims[-2]", expected=f"K = {a_dims[-1]} of a", got=b_dims[-2])
    batches = (_batches(axis, *extents) for axis, extents in enumerate(zip(a_dims[:-2], b_dims[:-2], strict=True)))
    return (*batches, a_dims[-2], b_dims[-1])


def _batches(axis: int, of_a: int, of_b: int) -> int:
    """The extent of c along a batch axis."""
    if 1 in (of_a, of_b):
        return of_a * of_b
    (few, port), (many, other) = sorted(((of_a, "a"), (of_b, "b")))
    if few != many and (few == 0 or many % few):
        expected = f"1, {many} of {other} or a divisor of {many}"
        raise ShapeMismatchError.at(f"matmul.{port}.dims[{axis}]", expected=expected, got=few)
    return many


def _repeated(values: NDArray[Any], batch: tuple[int, ...]) -> NDArray[Any]:
    """``values`` with each matrix repeated for the batches that share it; NumPy broadcasts extents of 1."""
    for axis, extent in enumerate(batch):
        if values.shape[axis] not in (1, extent):
            values = np.repeat(values, extent // values.shape[axis], axis)
    return values

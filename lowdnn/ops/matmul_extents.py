"""Matrix product with fewer rows, columns and terms in each batch than the tensors have:

    c[b, m, n] = sum over k < K[b] of a[b, m, k] * b[b, k, n]    where m < M[b], n < N[b]; elsewhere the padding value

a, b and c are those of ``matmul``. M, N and K have one number for each matrix, (batch..., 1, 1) in INT32 or INT64; left
out, they are the tensors' own extents. An extent of 1 along a batch axis repeats. Elements past
them in a and b do not reach c, NaN included.
It stands for several operations, or for a plain product, which ``graph.expansion`` puts in its place.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.ops.compute import check_float_operands
from lowdnn.ops.matmul import Matmul, check_product
from lowdnn.ops.sdpa import check_index_types
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import ShapeMismatchError

_WHERE = "matmul"


@dataclass(frozen=True)
class MatmulWithExtents:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_MATMUL

    matmul: Matmul = attribute(
        AttributeName.OPERATION_MATMUL_DESC, AttributeType.BACKEND_DESCRIPTOR, descriptor=DescriptorType.MATMUL
    )
    a: Tensor = tensor_input(AttributeName.OPERATION_MATMUL_ADESC)
    b: Tensor = tensor_input(AttributeName.OPERATION_MATMUL_BDESC)
    c: Tensor = tensor_output(AttributeName.OPERATION_MATMUL_CDESC)
    m: Tensor | None = tensor_input(AttributeName.OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, default=None)
    n: Tensor | None = tensor_input(AttributeName.OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, default=None)
    k: Tensor | None = tensor_input(AttributeName.OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, default=None)

    def __post_init__(self) -> None:
        check_product(self.matmul, self.a, self.b, self.c)
        extents = {"m": self.m, "n": self.n, "k": self.k}
        check_index_types(_WHERE, extents)
        for port, extent in extents.items():
            if extent is None:
                continue
            check_float_operands(_WHERE, (self.a, self.b))
            allowed = [*((1, batches) for batches in self.c.dims[:-2]), (1,), (1,)]
            if extent.rank != len(allowed) or any(own not in of for own, of in zip(extent.dims, allowed, strict=True)):
                expected = f"{[*self.c.dims[:-2], 1, 1]}, with 1 where it repeats"
                raise ShapeMismatchError.at(f"{_WHERE}.{port}.dims", expected=expected, got=list(extent.dims))

    @property
    def has_extents(self) -> bool:
        return not (self.m is None and self.n is None and self.k is None)

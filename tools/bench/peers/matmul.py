"""Matrix products through PyTorch: cuBLAS, cuBLASLt with its epilogues, scaled fp8 and int8 products."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lowdnn import dtypes
from lowdnn.cases.families.matmul import MatmulCase
from lowdnn.enums import DataType
from tools.bench.data import TORCH_TYPES, CaseData

_aten = torch.ops.aten

Peer = Callable[[int], torch.Tensor]


def matmul_peers(case: MatmulCase, data: CaseData) -> dict[str, Peer]:
    """The peers of a product, or of a product with bias and activation."""
    if case.epilogue:
        return _fused(case, data)
    a, b, out = data["a"], data["b"], data.fresh_outputs()
    if case.dtype in dtypes.FP8_TYPES:
        # Sums as precise as those that the case asks for.
        is_fast = case.compute is DataType.FAST_FLOAT_FOR_FP8
        return {"cublaslt": _scaled(case, a, b, out, is_fast=is_fast)}
    if case.dtype is DataType.INT8:
        return {"cublaslt": lambda slot: torch._int_mm(a[slot], b[slot], out=out[slot])}
    return {library: _product(library, a, b, out) for library in ("cublas", "cublaslt")}


def _product(library: str, a: list[torch.Tensor], b: list[torch.Tensor], out: list[torch.Tensor]) -> Peer:
    def launch(slot: int) -> torch.Tensor:
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library(library)
        try:
            return torch.matmul(a[slot], b[slot], out=out[slot])
        finally:
            torch.backends.cuda.preferred_blas_library(before)

    return launch


def _scaled(
    case: MatmulCase, a: list[torch.Tensor], b: list[torch.Tensor], out: list[torch.Tensor], *, is_fast: bool
) -> Peer:
    """One scale a tensor, both 1; ``is_fast``: sums are not promoted out of the tensor cores."""
    one = torch.ones((), device="cuda")
    dtype = TORCH_TYPES[case.out or case.dtype]
    return lambda slot: torch._scaled_mm(
        a[slot], b[slot], scale_a=one, scale_b=one, out_dtype=dtype, use_fast_accum=is_fast, out=out[slot]
    )


def _fused(case: MatmulCase, data: CaseData) -> dict[str, Peer]:
    """bias and relu or gelu (the tanh form, which is cuBLASLt's) in the epilogue of cuBLASLt."""
    a, b, out = data["a"], data["b"], data.fresh_outputs()
    bias = data.bias()
    is_gelu = case.epilogue[-1] == "gelu_approx_tanh"

    def launch(slot: int) -> torch.Tensor:
        return _aten._addmm_activation.out(bias[slot], a[slot], b[slot], use_gelu=is_gelu, out=out[slot])

    return {"cublaslt fused": launch}

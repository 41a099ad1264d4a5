"""Normalisations over neighbours: their windows, and parameters with the names and limits of cudnnSetLRNDescriptor.

A window is the lrn_n places from floor((lrn_n - 1) / 2) before its own one on, as far as they exist.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, UnsupportedShapeError

#: The limits of cudnn_ops.h: CUDNN_LRN_MIN_N, _MAX_N, _MIN_K, _MIN_BETA.
MAX_N = 16
MIN_K, MIN_BETA = 1e-5, 0.01


class LocalNorm(Protocol):
    """An operation with these parameters."""

    @property
    def x(self) -> Tensor: ...
    @property
    def lrn_n(self) -> int: ...
    @property
    def lrn_alpha(self) -> float: ...
    @property
    def lrn_beta(self) -> float: ...
    @property
    def lrn_k(self) -> float: ...


def window(lrn_n: int) -> tuple[int, int]:
    """The numbers of positions of a window before and after its centre."""
    before = (lrn_n - 1) // 2
    return before, lrn_n - 1 - before


def window_sums(values: NDArray[Any], axis: int, before: int, after: int) -> NDArray[Any]:
    """For each position along ``axis``, the sum from ``before`` positions before it to ``after`` positions after it."""
    extent = values.shape[axis]
    padded = np.pad(values, [(before, after) if other == axis else (0, 0) for other in range(values.ndim)])
    sums = np.zeros(values.shape)
    for start in range(before + after + 1):
        sums += padded[(slice(None),) * axis + (slice(start, start + extent),)]
    return sums


def check(where: str, operation: LocalNorm, ports: dict[str, Tensor]) -> None:
    """Checks the parameters, and that all tensors are floats with the dims of x, of rank 4 or 5."""
    x = operation.x
    if x.rank not in (4, 5):
        raise UnsupportedShapeError.at(f"{where}.x.dims", expected="rank 4 or 5", got=list(x.dims))
    if not 1 <= operation.lrn_n <= MAX_N:
        raise BadParamError.at(f"{where}.lrn_n", expected=f"1 to {MAX_N}", got=operation.lrn_n)
    if not isfinite(operation.lrn_alpha):
        raise BadParamError.at(f"{where}.lrn_alpha", expected="a finite number", got=operation.lrn_alpha)
    for name, least in (("lrn_beta", MIN_BETA), ("lrn_k", MIN_K)):
        value = getattr(operation, name)
        if not (value >= least and isfinite(value)):
            raise BadParamError.at(f"{where}.{name}", expected=f"a finite number >= {least}", got=value)
    check_dims(where, x.dims, dict(ports))
    check_float(where, ports)

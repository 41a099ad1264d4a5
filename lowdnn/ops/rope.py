"""Rotary position embedding: the base of the forward operation and of its gradient.

x is (B, H, S, D), freqs (S, 1, 1, R) angles in radians, R = rope_dim, or D where that is 0; D and R are even. The last
R elements of each row are pairs (i, i + R / 2), which are rotated by theta = freqs[s, i], and everything is scaled:

    y[i] = scale * (x[i] cos theta - x[i + R / 2] sin theta)
    y[i + R / 2] = scale * (x[i + R / 2] cos theta + x[i] sin theta)
    y[j] = scale * x[j]        for the D - R elements before them

The gradient rotates by -theta. The second half of a row of freqs repeats the first in the tables of models; it is not
read.
Sources: cudnn_graph.h, CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR; cudnn-frontend, docs/operations/RoPE.md; Su et al.,
"RoFormer: Enhanced transformer with rotary position embedding".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, UnsupportedShapeError


@dataclass(frozen=True)
class Rotation:
    """From ``source`` to ``target``, (B, H, S, D), in rows whose last ``size`` elements are pairs.

    sine: the scale where the rotation is by theta, its negative where it is by -theta.
    """

    source: Tensor
    target: Tensor
    freqs: Tensor
    size: int
    scale: float
    sine: float

    @property
    def passed(self) -> int:
        """Elements of a row that are only scaled."""
        return self.source.dims[3] - self.size

    @property
    def flops(self) -> int:
        return 3 * self.source.element_count

    def of(self, values: NDArray[Any], freqs: NDArray[Any]) -> NDArray[Any]:
        half = self.size // 2
        theta = freqs[:, 0, 0, :half]
        cosine, sine = self.scale * np.cos(theta), self.sine * np.sin(theta)
        low, high = values[..., self.passed : self.passed + half], values[..., self.passed + half :]
        parts = (self.scale * values[..., : self.passed], low * cosine - high * sine, high * cosine + low * sine)
        return np.concatenate(parts, axis=-1)


def rotation(
    where: str, ports: tuple[str, str], tensors: tuple[Tensor, Tensor, Tensor], scale: float, rope_dim: int, sign: int
) -> Rotation:
    """The rotation of the tensors at ``ports`` by the freqs.

    Raises UnsupportedShapeError, ShapeMismatchError, BadParamError and UnsupportedDataTypeError.
    """
    source, target, freqs = tensors
    if source.rank != 4 or source.dims[3] % 2:
        expected = "[batch, heads, length, an even size]"
        raise UnsupportedShapeError.at(f"{where}.{ports[0]}.dims", expected=expected, got=list(source.dims))
    size = rope_dim or source.dims[3]
    if size % 2 or not 0 <= size <= source.dims[3]:
        raise BadParamError.at(f"{where}.rope_dim", expected=f"an even number up to {source.dims[3]}", got=rope_dim)
    if not isfinite(scale):
        raise BadParamError.at(f"{where}.output_scale", expected="a finite number", got=scale)
    check_dims(where, source.dims, {ports[1]: target})
    check_dims(where, (source.dims[2], 1, 1, size), {"freqs": freqs})
    check_float(where, {ports[0]: source, ports[1]: target, "freqs": freqs})
    return Rotation(source, target, freqs, size, scale, sign * scale)

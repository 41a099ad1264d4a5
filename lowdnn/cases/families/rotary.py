"""Rotary position embedding.

rope b=2 h=8 s=100 d=64 dtype=bf16
rope b=2 h=8 s=100 d=192 size=64 dir=bwd scale=0.5 layout=bshd
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.families.attention import ORDERS
from lowdnn.cases.text import key
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor, packed_strides

_BASE = 10000.0


@dataclass(frozen=True)
class RopeCase(Case):
    """Rotary position embedding of x (b, h, s, d), or its gradient.

    size: elements of a row that are rotated, 0 for all.  first: the position of the first row.
    The angle of pair i at position p is p / 10000^(2 i / size).
    """

    family: ClassVar[str] = "rope"

    b: int = key(text.integer(0))
    h: int = key(text.integer(0))
    s: int = key(text.integer(0))
    d: int = key(text.integer(0))
    size: int = key(text.integer(0), 0)
    first: int = key(text.integer(0), 0)
    scale: float = key(text.number(), 1.0)
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    layout: str = key(text.choice(*ORDERS, "bhds"), "bhsd")
    dtype: DataType = key(text.data_type(), DataType.BFLOAT16)
    out: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder, dims = CaseBuilder(alignment_bytes=self.align), (self.b, self.h, self.s, self.d)
        order = (0, 1, 3, 2) if self.layout == "bhds" else ORDERS[self.layout]
        x = builder.tensor(dims, self.dtype, strides=packed_strides(dims, order), name="x")
        angle_type = DataType.DOUBLE if self.dtype is DataType.DOUBLE else DataType.FLOAT
        freqs = builder.tensor((self.s, 1, 1, self._size), angle_type, name="freqs")
        builder.rope(
            x,
            freqs,
            output_scale=self.scale,
            rope_dim=self.size,
            is_gradient=self.dir == "bwd",
            store=self.out,
        )
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def _size(self) -> int:
        return self.size or self.d

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if tensor.name != "freqs":
            return super()._values(rng, tensor, exact)
        pair = np.arange(self._size) % max(self._size // 2, 1)
        position = float(self.first) + np.arange(self.s)[:, None, None, None]
        return dtypes.from_float64(position / _BASE ** (2 * pair / max(self._size, 1)), tensor.data_type)

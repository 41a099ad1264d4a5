"""A mask of whole tiles of attention scores: y is x (B, H, S_q, S_kv) where queries and keys see each other, elsewhere
minus infinity.

mask, UINT8 (B, H, ceil(S_q / 128), ceil(ceil(S_kv / 128) / 8)), has a bit for each tile of 128 queries and 128 keys:
that of tile t of the keys is bit t % 8, the lowest being the first, of byte t / 8.
Sources: cudnn_graph.h, CUDNN_ATTR_OPERATION_SDPA_FWD_BLOCK_MASK_DESC; cudnn-frontend, docs/operations/Attention.md, for
the dims. The backend has no descriptor of this operation alone, so the other ports go by attributes of the band mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.status import UnsupportedDataTypeError, UnsupportedShapeError

#: Queries and keys of a tile.
SIDE = 128

_WHERE = "block_mask"
_BITS = 8


@dataclass(frozen=True)
class BlockMask:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    x: Tensor = tensor_input()
    mask: Tensor = tensor_input()
    y: Tensor = tensor_output()

    def __post_init__(self) -> None:
        if self.x.rank != 4:
            expected = "[batch, heads, queries, keys]"
            raise UnsupportedShapeError.at(f"{_WHERE}.x.dims", expected=expected, got=list(self.x.dims))
        check_dims(_WHERE, self.x.dims, {"y": self.y})
        check_dims(_WHERE, mask_dims(self.x.dims), {"mask": self.mask})
        check_float(_WHERE, {"x": self.x, "y": self.y})
        if self.mask.data_type is not DataType.UINT8:
            got = self.mask.data_type.name
            raise UnsupportedDataTypeError.at(f"{_WHERE}.mask.data_type", expected="UINT8", got=got)

    @property
    def flops(self) -> int:
        return 0

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        _, _, queries, keys = self.x.dims
        bits = np.unpackbits(inputs["mask"].astype(np.uint8), axis=-1, bitorder="little").astype(bool)
        sees = bits.repeat(SIDE, axis=2).repeat(SIDE, axis=3)[:, :, :queries, :keys]
        return {"y": np.where(sees, inputs["x"], -np.inf)}


def mask_dims(scores: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of the mask for scores of these dims."""
    batch, heads, queries, keys = scores
    return batch, heads, -(-queries // SIDE), -(-keys // (SIDE * _BITS))

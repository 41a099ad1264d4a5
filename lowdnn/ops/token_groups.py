"""Groups of routed rows, given by the offsets of a mixture of experts.

Rows are sorted by expert, batch after batch: G = batches * experts groups, of which group g belongs to expert
g mod experts. The offsets (extent, 1, 1) hold the first row of each group; with extent G a group ends where the next
one begins and the last one with the rows, with extent G + 1 the last offset ends the last group. One expert: an extent
of 1 is one group, any other holds the ends too. Rows of a group outside of the tensor do not count, and a group that
ends before it begins is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError

OFFSET_TYPES = (DataType.INT32, DataType.INT64)


@dataclass(frozen=True)
class TokenGroups:
    """``count`` groups for ``experts`` over ``rows`` rows; ``has_end``: the last group's end is an offset too."""

    count: int
    experts: int
    rows: int
    has_end: bool

    @classmethod
    def of(cls, where: str, offsets: Tensor, experts: int, rows: int) -> TokenGroups:
        """Raises UnsupportedDataTypeError and ShapeMismatchError naming ``where``."""
        if offsets.data_type not in OFFSET_TYPES:
            expected = " or ".join(kind.name for kind in OFFSET_TYPES)
            raise UnsupportedDataTypeError.at(f"{where}.data_type", expected=expected, got=offsets.data_type.name)
        extent = offsets.element_count
        has_end = extent % experts == 1 if experts > 1 else extent > 1
        count = extent - has_end
        if offsets.dims != (extent, 1, 1) or count < 1 or count % experts:
            expected = f"[G, 1, 1] or [G + 1, 1, 1] with G a multiple of {experts} experts"
            raise ShapeMismatchError.at(f"{where}.dims", expected=expected, got=list(offsets.dims))
        return cls(count, experts, rows, has_end)

    def ranges(self, offsets: NDArray[Any]) -> Iterator[tuple[int, slice]]:
        """(expert, rows) of each group."""
        bounds = [int(value) for value in offsets.reshape(-1)]
        if not self.has_end:
            bounds.append(self.rows)
        for group, (first, end) in enumerate(pairwise(bounds)):
            first, end = max(first, 0), min(end, self.rows)
            yield group % self.experts, slice(first, max(end, first))

"""Products that tiles of wgmma compute: what the choice of a tile and the model of its time know of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType
from lowdnn.engines.gemm.wgmma_tiles import TapWindow

#: Accumulators of a thread beside which no epilogue spills; none that loads no operand of the output's size itself; one
#: that only converts.
MAX_ACCUMULATORS, MAX_COMPUTED_ACCUMULATORS, MAX_PLAIN_ACCUMULATORS = 128, 160, 192
#: Rows and bytes, at most, of an operand that all blocks load again and again for many rows of the other one.
_FEW_ROWS, _FEW_BYTES = 256, 48 << 10
#: So many rows, or fewer where there are at least so many of the operand that all blocks load.
_MANY_ROWS, _FEWER_MANY_ROWS, _SEVERAL_ROWS = 1 << 17, 48_000, 192


def _many_rows(few: int) -> int:
    return _FEWER_MANY_ROWS if few >= _SEVERAL_ROWS else _MANY_ROWS


class Conversion(Enum):
    """Where an operand becomes what a functor makes of it."""

    NONE = "none"
    REGISTERS = "registers"  #: ``register_operand.cuh``
    IN_PLACE = "in place"  #: a window of pixels, ``converted_pixels.cuh``


@dataclass(frozen=True)
class WgmmaProduct:
    """``batches`` products of m x n x (k_blocks stages), all extents at least 1.

    a_bytes, b_bytes, output_bytes: of device memory that operands and epilogue move, each counted once.
    is_a_mn_major, is_b_mn_major: operands that come in boxes of MN_MAJOR_BOX elements of m or n, and of k.
    allows_clusters: whether operands may be shared in a cluster; tries_clusters: whether that may pay.
    allows_split: whether k may be cut into parts.
    is_a_resident, is_b_resident: whether all of A or B stays in shared memory, in tiles that have all rows or columns.
    column_unit: a tile's columns are a multiple of it.
    is_promoted, window, row_bytes, table_bytes: see ``WgmmaTile``.
    has_operand: the epilogue loads an operand of the output's size by tensor map.
    is_a_askew, is_b_askew: operands whose rows do not begin at multiples of STAGE_ROW_BYTES, so that a row of a stage
    lies in two lines of the cache.
    is_a_pixels, is_b_pixels: operands that come by im2col map.  has_narrow_pixels: each fills less than half of a row.
    rows_continue: past the last row of a product's operand lies the next product's first one.
    is_turned: the tiles' rows are the output's columns.
    is_located: the functor stores, each group of elements at coordinates of its own.
    classes: (m, n, k_blocks) of parts that are computed one after the other, the deepest first; empty if one.
    conversion: of an operand on its way to the tensor cores; in registers of A, in 64 rows of each warpgroup.
    functions, epilogue_functions: operations of its functor, and of the epilogue's, that take more than an instruction
    or two.
    converts_late: A in registers waits for more than pairs of its elements.
    most_accumulators: of a thread, as the epilogue allows.
    sums_columns: warpgroups keep totals of the columns of their tiles for as long as those stay the same.
    """

    type: WgmmaType
    batches: int
    m: int
    n: int
    k_blocks: int
    a_bytes: int
    b_bytes: int
    output_bytes: int
    is_a_mn_major: bool = False
    is_b_mn_major: bool = False
    allows_clusters: bool = True
    tries_clusters: bool = True
    allows_split: bool = True
    column_unit: int = 8
    is_promoted: bool = False
    has_operand: bool = False
    is_a_askew: bool = False
    is_b_askew: bool = False
    is_a_pixels: bool = False
    is_b_pixels: bool = False
    has_narrow_pixels: bool = False
    rows_continue: bool = False
    is_turned: bool = False
    is_located: bool = False
    window: TapWindow | None = None
    is_a_resident: bool = False
    is_b_resident: bool = False
    row_bytes: int = STAGE_ROW_BYTES
    classes: tuple[tuple[int, int, int], ...] = ()
    conversion: Conversion = Conversion.NONE
    functions: int = 0
    converts_late: bool = False
    epilogue_functions: int = 0
    most_accumulators: int = MAX_ACCUMULATORS
    sums_columns: bool = False
    table_bytes: int = 0

    @property
    def resident_blocks(self) -> int:
        """See ``WgmmaTile``."""
        return self.k_blocks if self.is_a_resident or self.is_b_resident else 0

    @property
    def moved_bytes(self) -> int:
        return self.a_bytes + self.b_bytes + self.output_bytes

    @property
    def shares_askew(self) -> tuple[bool, bool]:
        """Of A and B: whether all blocks load the same rows again and again, none of them whole lines of the cache."""
        is_small_a = self.m <= _FEW_ROWS and self.a_bytes <= _FEW_BYTES and not self.is_a_resident
        is_small_b = self.n <= _FEW_ROWS and self.b_bytes <= _FEW_BYTES and not self.is_b_resident
        a = self.is_a_askew and is_small_a and self.n >= _many_rows(self.m)
        b = self.is_b_askew and is_small_b and self.m >= _many_rows(self.n)
        return a and self.batches == 1, b and self.batches == 1

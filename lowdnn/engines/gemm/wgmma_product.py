"""Products that tiles of wgmma compute: the facts that the choice of a tile and its time model need."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType
from lowdnn.engines.gemm.wgmma_tiles import TapWindow

#: Accumulators of a thread with which no epilogue spills.
MAX_ACCUMULATORS = 128
#: Accumulators with which no epilogue spills that loads no operand of the output's size itself.
MAX_COMPUTED_ACCUMULATORS = 160
#: Accumulators with which no epilogue spills that only converts.
MAX_PLAIN_ACCUMULATORS = 192
#: Most rows of an operand that all blocks load again and again, for many rows of the other operand.
_FEW_ROWS = 256
#: Most bytes of such an operand.
_FEW_BYTES = 48 << 10
#: Rows of the other operand that are many.
_MANY_ROWS = 1 << 17
#: Rows of the other operand that are many if the operand that all blocks load has at least ``_SEVERAL_ROWS`` rows.
_FEWER_MANY_ROWS = 48_000
#: Rows of the operand that all blocks load, see ``_FEWER_MANY_ROWS``.
_SEVERAL_ROWS = 192


def _many_rows(few: int) -> int:
    return _FEWER_MANY_ROWS if few >= _SEVERAL_ROWS else _MANY_ROWS


class Conversion(Enum):
    """How an operand is converted by a functor before it is multiplied: in registers, or in shared memory."""

    NONE = "none"
    REGISTERS = "registers"  #: ``register_operand.cuh``
    IN_PLACE = "in place"  #: a window of pixels, ``converted_pixels.cuh``


@dataclass(frozen=True)
class WgmmaProduct:
    """``batches`` products of m x n x (k_blocks stages), all extents at least 1.

    a_bytes, b_bytes, output_bytes: bytes of device memory of the operands and the epilogue, each counted once.
    is_a_mn_major, is_b_mn_major: operands that come in boxes of MN_MAJOR_BOX elements of m or n, and of k.
    allows_clusters: whether operands may be shared in a cluster.  tries_clusters: whether that may pay.
    allows_split: whether k may be cut into parts.
    is_a_resident, is_b_resident: whether all of A or B stays in shared memory, in tiles with all rows or columns.
    column_unit: a divisor of a tile's columns.
    is_promoted, window, row_bytes, table_bytes: see ``WgmmaTile``.
    has_operand: the epilogue loads an operand of the output's size by tensor map.
    is_a_misaligned, is_b_misaligned: operands with rows that do not begin at multiples of STAGE_ROW_BYTES, so that
    a row of a stage lies in two cache lines.
    is_a_pixels, is_b_pixels: operands that come by im2col map.  has_narrow_pixels: a pixel fills less than half a row.
    has_many_taps: pixels are those of a filter with more taps along an axis than one window has.
    rows_continue: the last row of a product's operand is followed by the first row of the next product's.
    is_transposed: the tiles' rows are the output's columns.
    is_located: the functor stores, each group of elements at its own coordinates.
    classes: (m, n, k_blocks) of parts that are computed one after the other, the deepest first; empty for one part.
    conversion: where an operand passes through a functor; in registers it is A, in 64 rows of each warpgroup.
    functions, epilogue_functions: operations of more than one or two instructions, in that functor and in the epilogue.
    converts_late: A in registers waits for more than pairs of its elements.
    most_accumulators: accumulators of a thread that the epilogue allows.
    sums_columns: warpgroups keep totals of their tiles' columns for as long as the columns stay the same.
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
    is_a_misaligned: bool = False
    is_b_misaligned: bool = False
    is_a_pixels: bool = False
    is_b_pixels: bool = False
    has_narrow_pixels: bool = False
    has_many_taps: bool = False
    rows_continue: bool = False
    is_transposed: bool = False
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
    def shares_misaligned(self) -> tuple[bool, bool]:
        """For A and B: whether all blocks load the same misaligned rows again and again."""
        is_small_a = self.m <= _FEW_ROWS and self.a_bytes <= _FEW_BYTES and not self.is_a_resident
        is_small_b = self.n <= _FEW_ROWS and self.b_bytes <= _FEW_BYTES and not self.is_b_resident
        a = self.is_a_misaligned and is_small_a and self.n >= _many_rows(self.m)
        b = self.is_b_misaligned and is_small_b and self.m >= _many_rows(self.n)
        return a and self.batches == 1, b and self.batches == 1

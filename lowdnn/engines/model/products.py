"""What warps take for products by ``mma.sync`` of what they read from shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from lowdnn.engines.model.clock import Times, overlap

CountT = TypeVar("CountT", float, Times)


@dataclass(frozen=True)
class ProductCosts:
    """What a kernel makes of the two, in clocks of a multiprocessor with many warps; fitted to each kernel by itself.

    A multiprocessor reads 128 bytes of shared memory in a clock; kernels that seem faster have some of them in
    registers.
    """

    #: Clocks for one instruction.
    product_clocks: float
    #: Clocks for 128 bytes of fragments that are read.
    read_clocks: float
    #: Share of the shorter of both that the longer one does not hide.
    exposed: float = 0.0

    def clocks(self, products: float, lines: CountT) -> CountT:
        """All of ``products`` instructions, and ``lines`` times 128 bytes."""
        return overlap(lines * self.read_clocks, products * self.product_clocks, self.exposed)

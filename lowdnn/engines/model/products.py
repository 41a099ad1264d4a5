"""The time of warps for ``mma.sync`` products of operands that they read from shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from lowdnn.engines.model.clock import Times, overlap

CountT = TypeVar("CountT", float, Times)


@dataclass(frozen=True)
class ProductCosts:
    """A kernel's costs in clocks of a multiprocessor with many warps, fitted to each kernel separately.

    A multiprocessor reads 128 bytes of shared memory in a clock; kernels that seem faster keep some of them in
    registers.
    """

    #: Clocks for one instruction.
    product_clocks: float
    #: Clocks for reading 128 bytes of fragments.
    read_clocks: float
    #: Share of the shorter of both times that the longer one does not hide.
    exposed: float = 0.0

    def clocks(self, products: float, lines: CountT) -> CountT:
        """Clocks for ``products`` instructions and ``lines`` reads of 128 bytes."""
        return overlap(lines * self.read_clocks, products * self.product_clocks, self.exposed)

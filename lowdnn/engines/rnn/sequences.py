"""The launches of a recurrent network's operations around the recurrences of its layers.

Forward, layer by layer: the products of all steps with the input, one for each direction; the recurrence; dropout.
Backward, from the last layer on: the recurrence backwards, on transposed weights; the gradient of the layer's input, a
product of all steps; dropout. The gradient of the weights is products and sums over the rows of all steps.
Packed sequences, and padded ones whose padding may hold anything, are copied where their rows have to be in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array
from lowdnn.engines.rnn.delegate import Delegate
from lowdnn.engines.rnn.layers import Recurrence
from lowdnn.engines.rnn.network import Network
from lowdnn.engines.rnn.row_moves import Move, add_move
from lowdnn.enums import DataType
from lowdnn.ops.rnn import Rnn

#: Bytes of all layers' rows, or weights, for which one launch for all of them is worth the memory.
SMALL_BYTES = 16 << 20


@dataclass(frozen=True)
class Sequences:
    """The context that the operations share: where launches go, who makes them, and copies of sequences."""

    network: Network
    arch: ArchSpec
    parts: PlanParts
    delegate: Delegate
    recurrence: Recurrence

    @property
    def rnn(self) -> Rnn:
        return self.network.rnn

    def reserved(self, *dims: int, data_type: DataType | None = None) -> Array:
        """An array in the workspace, in the network's type where no other is given."""
        return Array.reserved(self.parts, data_type or self.network.data_type, dims)

    def move(self, move: Move) -> None:
        add_move(self.parts, self.network, self.arch, move)

    def padded(self, array: Array) -> Array:
        """``array``, or a copy (T, B, elements) of a packed one."""
        if not self.network.is_packed:
            return array
        copy = self.reserved(*self.network.steps(array.dims[-1]))
        self.move(Move(array, copy))
        return copy

    def target(self, array: Array) -> Array:
        """``array``, or an array (T, B, elements) in the place of a packed one, for ``finish``."""
        return self.reserved(*self.network.steps(array.dims[-1])) if self.network.is_packed else array

    def finish(self, target: Array, array: Array) -> None:
        """Packs what was written to a ``target`` that is not ``array`` itself."""
        if target is not array:
            self.move(Move(target, array))

"""Arrays that the recurrence of a layer reads and writes, whatever kernels compute it.

Arrays have a direction as their first axis: over steps (D, T, B, elements), at the ends of sequences (D, B, elements),
weights (D, rows, columns). Rows past the end of a sequence become 0, those of the output of the last layer ``fill``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array
from lowdnn.ops.rnn import Rnn


@dataclass(frozen=True)
class ForwardLayer:
    """The arrays of a layer forward: from the products with the input to the states.

    products: W x of all steps, (D, T, B, G, H), in the place of ``gates`` where these are kept.
    gates, cells, unprojected: as ``ops/rnn_saved.py`` has them; where they are not kept, their stride along steps is 0.
    gates: None where they are not kept, but of a GRU whose reset gate lies before the product.
    """

    rnn: Rnn
    recurrent: Array
    projection: Array | None
    input_bias: Array | None
    recurrent_bias: Array | None
    products: Array
    output: Array
    hx: Array | None
    cx: Array | None
    hy: Array | None
    cy: Array | None
    gates: Array | None
    cells: Array | None
    unprojected: Array | None
    lengths: Array | None
    fill: float


@dataclass(frozen=True)
class BackwardLayer:
    """The arrays of a layer backward: from the gradient of the states to that of the gates.

    recurrent, projection: transposed, (D, S, G * H) and (D, H, P).  output: states of a GRU.
    carried: (D, B, H) in the type of the arithmetic, which the kernels may use from step to step.
    """

    rnn: Rnn
    recurrent: Array
    projection: Array | None
    dy: Array
    gates: Array
    dgates: Array
    cells: Array | None
    output: Array | None
    hx: Array | None
    cx: Array | None
    dhy: Array | None
    dcy: Array | None
    dhx: Array | None
    dcx: Array | None
    dprojected: Array | None
    carried: Array
    lengths: Array | None


class Recurrence(Protocol):
    """The launches of a layer between its products.

    reads_transposed: whether rows of the transposed recurrent weights have to be contiguous for ``backward``.
    """

    @property
    def reads_transposed(self) -> bool: ...

    def forward(self, parts: PlanParts, layer: ForwardLayer) -> None: ...

    def backward(self, parts: PlanParts, layer: BackwardLayer) -> None: ...

"""``rnn_stepwise``: recurrent networks with one launch for each step of a layer, and their gradients.

Every cell, layout, type and device. A launch of a step multiplies the last states with the recurrent weights and
computes the cells of all directions. Kernels: ``rnn_step_forward.cu``, ``rnn_step_backward.cu``, ``rnn_rows.cu``.
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.limits import alone
from lowdnn.engines.rnn.layers import Recurrence
from lowdnn.engines.rnn.network import RnnOperation
from lowdnn.engines.rnn.recurrent_engine import OWN_CHOICE, RecurrentEngine
from lowdnn.engines.rnn.step_kernels import StepLauncher
from lowdnn.engines.rnn.step_tile import CLUSTERS, COLUMNS, ROWS
from lowdnn.engines.rnn.stepwise import Stepwise
from lowdnn.enums import KnobType
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward


class RnnStepwise(RecurrentEngine):
    """See the module's docstring."""

    name = "rnn_stepwise"
    index = 49
    anchors: Anchors = (RnnForward, RnnBackwardData, RnnBackwardWeights)
    limits = alone(*anchors)
    expects = "one RnnForward, RnnBackwardData or RnnBackwardWeights"

    def knobs_of(self, operation: RnnOperation, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N and TILE_CGA_K, of each step; 0 leaves the choice to each kernel."""
        if isinstance(operation, RnnBackwardWeights):
            return ()
        clusters = (OWN_CHOICE, *(CLUSTERS if arch.has_clusters else CLUSTERS[:1]))
        return (
            Knob("rows", KnobType.TILE_M, (OWN_CHOICE, *ROWS), OWN_CHOICE, "rows of weights of a block, about"),
            Knob("columns", KnobType.TILE_N, (OWN_CHOICE, *COLUMNS), OWN_CHOICE, "sequences of a block"),
            Knob("cluster", KnobType.TILE_CGA_K, clusters, OWN_CHOICE, "blocks that share the depth of a product out"),
        )

    def recurrence(self, rnn: Rnn, arch: ArchSpec, chosen: Choices) -> Recurrence:
        tile = (chosen.get(knob, OWN_CHOICE) for knob in (KnobType.TILE_M, KnobType.TILE_N, KnobType.TILE_CGA_K))
        return Stepwise(StepLauncher(arch, rnn, *tile))

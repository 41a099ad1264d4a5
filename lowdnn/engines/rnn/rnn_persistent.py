"""``rnn_persistent``: recurrent networks whose layers take one launch each, with the weights on chip, and the gradients
of their data.

The engine ``rnn_stepwise`` does what it does not take. Kernels: ``rnn_persistent_forward.cu`` and
``rnn_persistent_backward.cu``; for few sequences ``rnn_narrow_forward.cu`` and ``rnn_narrow_backward.cu``.
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.launch import ACCESS_BYTES
from lowdnn.engines.limits import alone
from lowdnn.engines.rnn.layers import Recurrence
from lowdnn.engines.rnn.narrow_tile import COLUMNS as NARROW_COLUMNS
from lowdnn.engines.rnn.network import Network, RnnOperation
from lowdnn.engines.rnn.persistent import Persistent
from lowdnn.engines.rnn.persistent_backward import backward_tiles
from lowdnn.engines.rnn.persistent_backward_tile import CLUSTERS
from lowdnn.engines.rnn.persistent_backward_tile import COLUMNS as BACKWARD_COLUMNS
from lowdnn.engines.rnn.persistent_forward import forward_tiles
from lowdnn.engines.rnn.persistent_tile import COLUMNS
from lowdnn.engines.rnn.recurrent_engine import OWN_CHOICE, RecurrentEngine, wgmma_limit
from lowdnn.engines.rnn.warpgroup_tile import CHUNK, MOST_CHUNKS
from lowdnn.enums import KnobType
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_forward import RnnForward


class RnnPersistent(RecurrentEngine):
    """See the module's docstring."""

    name = "rnn_persistent"
    index = 50
    anchors: Anchors = (RnnForward, RnnBackwardData)
    limits = alone(*anchors)
    expects = "one RnnForward or RnnBackwardData"

    def limit(self, operation: RnnOperation, arch: ArchSpec) -> str:
        rnn = operation.rnn
        if reason := wgmma_limit(Network(operation), arch):
            return reason
        if rnn.hidden_size % CHUNK or rnn.hidden_size > CHUNK * MOST_CHUNKS:
            return f"rnn.hidden_size: expected a multiple of {CHUNK} up to {CHUNK * MOST_CHUNKS}, got {rnn.hidden_size}"
        if isinstance(operation, RnnBackwardData) and (reason := _backward_limit(operation)):
            return reason
        found = backward_tiles(rnn, arch) if isinstance(operation, RnnBackwardData) else forward_tiles(rnn, arch)
        if next(found, None) is None:
            return f"rnn: expected weights that fit on chip, got H = {rnn.hidden_size} for B = {rnn.batch_size}"
        return super().limit(operation, arch)

    def knobs_of(self, operation: RnnOperation, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_N and, backward, TILE_CGA_K; 0 leaves the choice to the engine."""
        if isinstance(operation, RnnForward):
            return (_columns(tuple(sorted({*NARROW_COLUMNS, *COLUMNS})), "sequences of a group of blocks"),)
        clusters = (OWN_CHOICE, 1, *CLUSTERS)
        return (
            _columns(BACKWARD_COLUMNS, "sequences of a part of a step"),
            Knob("cluster", KnobType.TILE_CGA_K, clusters, OWN_CHOICE, "blocks that share the depth of a product out"),
        )

    def recurrence(self, rnn: Rnn, arch: ArchSpec, chosen: Choices) -> Recurrence:
        return Persistent(arch, *(chosen.get(knob, OWN_CHOICE) for knob in (KnobType.TILE_N, KnobType.TILE_CGA_K)))


def _backward_limit(operation: RnnBackwardData) -> str:
    """The limit of the kernel that goes back which ``operation`` exceeds, or an empty string."""
    for port, tensor in (("gates", operation.gates), ("dgates", operation.dgates), ("cells", operation.cells)):
        if tensor and tensor.alignment_bytes % ACCESS_BYTES:
            return f"{port}: expected an alignment of {ACCESS_BYTES} bytes, got {tensor.alignment_bytes}"
    return ""


def _columns(values: tuple[int, ...], text: str) -> Knob:
    return Knob("columns", KnobType.TILE_N, (OWN_CHOICE, *values), OWN_CHOICE, text)

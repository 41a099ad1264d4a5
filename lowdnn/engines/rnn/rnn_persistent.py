"""``rnn_persistent``: recurrent networks whose layers take one launch each, with the weights on chip.

What it does not take, ``rnn_stepwise`` does. Kernel: ``rnn_persistent_forward.cu``.
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.limits import alone
from lowdnn.engines.rnn.layers import Recurrence
from lowdnn.engines.rnn.network import Network, RnnOperation
from lowdnn.engines.rnn.persistent import Persistent
from lowdnn.engines.rnn.persistent_tile import CHUNK, COLUMNS, MOST_CHUNKS, tiles
from lowdnn.engines.rnn.recurrent_engine import OWN_CHOICE, RecurrentEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.status import BadParamError


class RnnPersistent(RecurrentEngine):
    """See the module's docstring."""

    name = "rnn_persistent"
    index = 50
    anchors: Anchors = (RnnForward,)
    limits = alone(*anchors)
    expects = "one RnnForward"

    def limit(self, operation: RnnOperation, arch: ArchSpec) -> str:
        rnn, network = operation.rnn, Network(operation)
        if not arch.has_wgmma:
            return f"arch: expected one with wgmma, got {arch.name}"
        if network.data_type not in (DataType.HALF, DataType.BFLOAT16):
            return f"x.data_type: expected HALF or BFLOAT16, got {network.data_type.name}"
        if rnn.projection_size:
            return f"rnn.projection_size: expected 0, got {rnn.projection_size}"
        if not rnn.reset_after:
            return "rnn.reset_after: expected true, got false"
        if rnn.hidden_size % CHUNK or rnn.hidden_size > CHUNK * MOST_CHUNKS:
            return f"rnn.hidden_size: expected a multiple of {CHUNK} up to {CHUNK * MOST_CHUNKS}, got {rnn.hidden_size}"
        if next(tiles(rnn, arch), None) is None:
            return f"rnn: expected weights that fit on chip, got H = {rnn.hidden_size} for B = {rnn.batch_size}"
        return super().limit(operation, arch)

    def knobs_of(self, operation: RnnOperation, arch: ArchSpec) -> tuple[Knob, ...]:
        return (Knob("columns", KnobType.TILE_N, (OWN_CHOICE, *COLUMNS), OWN_CHOICE, "sequences of a group of blocks"),)

    def recurrence(self, rnn: Rnn, arch: ArchSpec, chosen: Choices) -> Recurrence:
        tile = next(tiles(rnn, arch, chosen.get(KnobType.TILE_N, OWN_CHOICE)), None)
        if tile is None:
            got = chosen[KnobType.TILE_N]
            raise BadParamError.at("rnn_persistent.knob_choices", expected="columns that fit on chip", got=got)
        return Persistent(arch, tile)

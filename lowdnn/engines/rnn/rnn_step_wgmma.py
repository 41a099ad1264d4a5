"""``rnn_step_wgmma``: recurrent networks with one launch for each step of a layer on wgmma, and gradients of data.

``rnn_stepwise`` takes the networks that this engine refuses. Kernels: ``rnn_step_forward_wgmma.cu``,
``rnn_step_backward_wgmma.cu``.
"""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.limits import alone
from lowdnn.engines.rnn.layers import Recurrence
from lowdnn.engines.rnn.network import Network, RnnOperation
from lowdnn.engines.rnn.recurrent_engine import OWN_CHOICE, RecurrentEngine, wgmma_limit
from lowdnn.engines.rnn.samples import samples
from lowdnn.engines.rnn.step_wgmma import StepwiseWgmma, has_map
from lowdnn.engines.rnn.step_wgmma_tile import CHUNK, COLUMNS, DEPTHS
from lowdnn.enums import KnobType
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.plan import KernelRef

#: Elements of which rows of maps are multiples.
_UNIT = 8


class RnnStepWgmma(RecurrentEngine):
    """See the module's docstring."""

    name = "rnn_step_wgmma"
    index = 51
    anchors: Anchors = (RnnForward, RnnBackwardData)
    limits = alone(*anchors)
    expects = "one RnnForward or RnnBackwardData"

    def limit(self, operation: RnnOperation, arch: ArchSpec) -> str:
        rnn, network = operation.rnn, Network(operation)
        unit = CHUNK if rnn.is_gru and isinstance(operation, RnnBackwardData) else _UNIT
        if reason := wgmma_limit(network, arch):
            return reason
        if rnn.hidden_size % unit:
            return f"rnn.hidden_size: expected a multiple of {unit}, got {rnn.hidden_size}"
        if rnn.directions > 1 and network.lengths is not None:
            return "seq_lengths: expected none where there are two directions, got lengths"
        return _map_limit(network) or super().limit(operation, arch)

    def knobs_of(self, operation: RnnOperation, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_N and TILE_CGA_K, of each step; 0 leaves the choice to each kernel."""
        return (
            Knob("columns", KnobType.TILE_N, (OWN_CHOICE, *COLUMNS), OWN_CHOICE, "sequences of a block"),
            Knob("cluster", KnobType.TILE_CGA_K, (OWN_CHOICE, *DEPTHS), OWN_CHOICE, "blocks that share k out"),
        )

    def recurrence(self, rnn: Rnn, arch: ArchSpec, chosen: Choices) -> Recurrence:
        tile = (chosen.get(knob, OWN_CHOICE) for knob in (KnobType.TILE_N, KnobType.TILE_CGA_K))
        return StepwiseWgmma(arch, *tile)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """The kernels of steps of common networks."""
        arch = spec_named(WGMMA_TARGET)
        plans = (self.plan(graph, arch, {}) for graph in samples())
        kernels = (kernel for plan in plans for kernel in plan.kernels)
        return tuple(dict.fromkeys(kernel for kernel in kernels if kernel.source.startswith("rnn/")))


def _map_limit(network: Network) -> str:
    """Why one of the arrays that a step copies has no tensor map, or an empty string."""
    is_forward = isinstance(network.operation, RnnForward)
    ports = ("w", "hx", *(("y", "outputs") if is_forward else ("dgates",)))
    arrays = {port: network.arrays[port] for port in ports if port in network.arrays}
    found = next((port for port, array in arrays.items() if not has_map(array) and not _is_copied(network, port)), "")
    return f"{found}: expected an address and strides that are multiples of 16 bytes, got others" if found else ""


def _is_copied(network: Network, port: str) -> bool:
    """Whether the kernels see a copy of the tensor."""
    return port == "y" and network.is_packed

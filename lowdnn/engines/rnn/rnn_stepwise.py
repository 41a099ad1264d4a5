"""``rnn_stepwise``: recurrent networks with one launch for each step of a layer, and their gradients.

Every cell, layout, type and device. The products with the input, and those of the gradients, of all steps are one
product of another engine each; a launch of a step multiplies the last states with the recurrent weights and computes
the cells of all directions. Kernels: ``rnn_step_forward.cu``, ``rnn_step_backward.cu``, ``rnn_rows.cu``.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Engine, Knob
from lowdnn.engines.launch import MAX_EXTENT, MAX_GRID_X
from lowdnn.engines.limits import alone
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.backward_data import add_backward_data
from lowdnn.engines.rnn.backward_weights import add_backward_weights
from lowdnn.engines.rnn.delegate import Delegate
from lowdnn.engines.rnn.forward import add_forward
from lowdnn.engines.rnn.network import Network, RnnOperation
from lowdnn.engines.rnn.sequences import Sequences
from lowdnn.engines.rnn.step_kernels import StepLauncher
from lowdnn.engines.rnn.step_tile import CLUSTERS, COLUMNS, ROWS
from lowdnn.engines.rnn.stepwise import Stepwise
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward

#: A knob's value that leaves the choice to each kernel.
_OWN = 0
#: Rows and columns that every engine of matrix products counts.
_MOST_ROWS = 2**27
#: Sequences along an axis of a grid.
_MOST_SEQUENCES = 2**18
#: Steps of all layers: a plan has a launch for each.
_MOST_STEPS = 2**20


class RnnStepwise(SingleOperation[RnnOperation]):
    """See the module's docstring. engines: those that may compute what has no recurrence."""

    name = "rnn_stepwise"
    index = 49
    anchors: Anchors = (RnnForward, RnnBackwardData, RnnBackwardWeights)
    limits = alone(*anchors)
    expects = "one RnnForward, RnnBackwardData or RnnBackwardWeights"

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)

    def limit(self, operation: RnnOperation, arch: ArchSpec) -> str:
        """Limits what kernels count with 32 bits, and the launches of a plan."""
        rnn = operation.rnn
        widest = max(rnn.input_size, rnn.output_size, rnn.blocks * rnn.hidden_size)
        step_elements, rows = rnn.batch_size * widest, rnn.max_length * rnn.batch_size
        limits = (
            ("rows of all steps", rows, _MOST_ROWS),
            ("elements of a row", widest, _MOST_ROWS),
            ("elements of a step", step_elements, MAX_EXTENT),
            ("elements of all steps", rows * widest, MAX_GRID_X),
            ("sequences", rnn.batch_size, _MOST_SEQUENCES),
            ("steps of all layers", rnn.max_length * rnn.num_layers, _MOST_STEPS),
        )
        return next((f"rnn: expected at most {most} {what}, got {got}" for what, got, most in limits if got > most), "")

    def knobs_of(self, operation: RnnOperation, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N and TILE_CGA_K, of each step; 0 leaves the choice to each kernel."""
        if isinstance(operation, RnnBackwardWeights):
            return ()
        clusters = (_OWN, *(CLUSTERS if arch.has_clusters else CLUSTERS[:1]))
        return (
            Knob("rows", KnobType.TILE_M, (_OWN, *ROWS), _OWN, "rows of weights of a block, about"),
            Knob("columns", KnobType.TILE_N, (_OWN, *COLUMNS), _OWN, "sequences of a block"),
            Knob("cluster", KnobType.TILE_CGA_K, clusters, _OWN, "blocks that share the depth of a product out"),
        )

    def launches(self, operation: RnnOperation, arch: ArchSpec, chosen: Choices) -> PlanParts:
        parts, network = PlanParts(), Network(operation)
        rnn, is_float = network.rnn, network.data_type is DataType.FLOAT
        delegate = Delegate(
            parts, self._engines, arch, network.compute_type, keeps_precision=is_float and not rnn.uses_tf32
        )
        tile = (chosen.get(knob, _OWN) for knob in (KnobType.TILE_M, KnobType.TILE_N, KnobType.TILE_CGA_K))
        recurrence = Stepwise(StepLauncher(arch, rnn, *tile))
        sequences = Sequences(network, arch, parts, delegate, recurrence)
        if isinstance(operation, RnnForward):
            add_forward(sequences, operation)
        elif isinstance(operation, RnnBackwardData):
            add_backward_data(sequences)
        else:
            add_backward_weights(sequences, is_added=operation.is_added)
        parts.numerical_notes = _notes(network)
        return parts


def _notes(network: Network) -> tuple[NumericalNote, ...]:
    """Those of a plan: FLOAT goes to tensor cores as TF32 only."""
    found: list[NumericalNote] = []
    if network.data_type is not DataType.DOUBLE and (network.data_type is not DataType.FLOAT or network.rnn.uses_tf32):
        found.append(NumericalNote.TENSOR_CORE)
    if network.rnn.uses_tf32:
        found.append(NumericalNote.DOWN_CONVERT_INPUTS)
    return (*RnnStepwise.numerical_notes, *found)

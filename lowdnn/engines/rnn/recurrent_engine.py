"""The skeleton of the engines of recurrent networks.

The products with the input, and those of the gradients, of all steps are one product of another engine each; what is
between them, the recurrence of a layer, is the engine's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Engine
from lowdnn.engines.launch import MAX_EXTENT, MAX_GRID_X
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.backward_data import add_backward_data
from lowdnn.engines.rnn.backward_weights import add_backward_weights
from lowdnn.engines.rnn.delegate import Delegate
from lowdnn.engines.rnn.forward import add_forward
from lowdnn.engines.rnn.layers import Recurrence
from lowdnn.engines.rnn.network import Network, RnnOperation
from lowdnn.engines.rnn.sequences import Sequences
from lowdnn.engines.single_operation import SingleOperation
from lowdnn.enums import DataType, NumericalNote
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_forward import RnnForward

#: A knob's value that leaves the choice to each kernel.
OWN_CHOICE = 0
#: Rows and columns that every engine of matrix products counts.
_MOST_ROWS = 2**27
#: Sequences along an axis of a grid.
_MOST_SEQUENCES = 2**18
#: Steps of all layers: a plan may have a launch for each.
_MOST_STEPS = 2**20


class RecurrentEngine(SingleOperation[RnnOperation]):
    """See the module's docstring. engines: those that may compute what has no recurrence."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)

    @abstractmethod
    def recurrence(self, rnn: Rnn, arch: ArchSpec, chosen: Choices) -> Recurrence:
        """The launches that compute the layers between their products."""

    def limit(self, operation: RnnOperation, arch: ArchSpec) -> str:
        """The limit of 32-bit numbers or of a plan's launches that the operation exceeds, or an empty string."""
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

    def launches(self, operation: RnnOperation, arch: ArchSpec, chosen: Choices) -> PlanParts:
        parts, network = PlanParts(), Network(operation)
        rnn, is_float = network.rnn, network.data_type is DataType.FLOAT
        delegate = Delegate(
            parts, self._engines, arch, network.compute_type, keeps_precision=is_float and not rnn.uses_tf32
        )
        sequences = Sequences(network, arch, parts, delegate, self.recurrence(rnn, arch, chosen))
        if isinstance(operation, RnnForward):
            add_forward(sequences, operation)
        elif isinstance(operation, RnnBackwardData):
            add_backward_data(sequences)
        else:
            add_backward_weights(sequences, is_added=operation.is_added)
        parts.numerical_notes = _notes(network)
        return parts


def wgmma_limit(network: Network, arch: ArchSpec) -> str:
    """The limit of recurrences on wgmma that the network exceeds, or an empty string."""
    if not arch.has_wgmma:
        return f"arch: expected one with wgmma, got {arch.name}"
    if network.data_type not in (DataType.HALF, DataType.BFLOAT16):
        return f"x.data_type: expected HALF or BFLOAT16, got {network.data_type.name}"
    if network.rnn.projection_size:
        return f"rnn.projection_size: expected 0, got {network.rnn.projection_size}"
    if not network.rnn.reset_after:
        return "rnn.reset_after: expected true, got false"
    return ""


def _notes(network: Network) -> tuple[NumericalNote, ...]:
    """The numerical notes of a plan: FLOAT goes to tensor cores as TF32 only."""
    found: list[NumericalNote] = []
    if network.data_type is not DataType.DOUBLE and (network.data_type is not DataType.FLOAT or network.rnn.uses_tf32):
        found.append(NumericalNote.TENSOR_CORE)
    if network.rnn.uses_tf32:
        found.append(NumericalNote.DOWN_CONVERT_INPUTS)
    return (*RecurrentEngine.numerical_notes, *found)

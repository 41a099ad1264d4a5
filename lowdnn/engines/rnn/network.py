"""The tensors of a recurrent network's operation, by layer and direction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from lowdnn.engines.rnn.array import Array
from lowdnn.enums import DataType
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_weights import Region, WeightSpace

RnnOperation = RnnForward | RnnBackwardData | RnnBackwardWeights


@dataclass(frozen=True)
class Network:
    """``operation`` with its tensors as arrays. The array of a port without a tensor is None."""

    operation: RnnOperation

    @property
    def rnn(self) -> Rnn:
        return self.operation.rnn

    @property
    def compute_type(self) -> DataType:
        return self.operation.compute_type

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The arrays by port."""
        tensors = inputs_of(self.operation) | outputs_of(self.operation)
        return {port: Array.of(tensor) for port, tensor in tensors.items()}

    @property
    def lengths(self) -> Array | None:
        return self.arrays.get("seq_lengths")

    @property
    def data_type(self) -> DataType:
        return self._sequence.data_type

    @property
    def is_packed(self) -> bool:
        return len(self._sequence.dims) == 2

    def steps(self, elements: int) -> tuple[int, int, int]:
        """Dims (T, B, elements)."""
        return self.rnn.max_length, self.rnn.batch_size, elements

    def of_layer(self, port: str, layer: int) -> Array | None:
        """The part (D, ...) of a layer, of the array (L * D, ...) at ``port``."""
        array, directions = self.arrays.get(port), self.rnn.directions
        if array is None:
            return None
        return array.part(layer * directions * array.strides[0], (directions, *array.dims[1:]), array.strides)

    def by_direction(self, array: Array) -> Array:
        """States (T, B, D * S) as (D, T, B, S)."""
        return array.split(2, self.rnn.state_size).permuted(2, 0, 1, 3)

    def weights(self, port: str, layer: int, name: str) -> Array | None:
        """Weights (D, rows, columns) or (D, rows) in the space at ``port``; name: a field of ``LayerRegions``."""
        directions = self.rnn.directions
        return self.stacked_weights(port, range(layer * directions, (layer + 1) * directions), name)

    def stacked_weights(self, port: str, pseudo_layers: range, name: str) -> Array | None:
        """Weights (N, rows, columns) or (N, rows) of N pseudo-layers; None where one has none, or where they do not lie
        at equal distances."""
        regions: list[Region | None] = [getattr(self._space.layers[index], name) for index in pseudo_layers]
        found = [region for region in regions if region is not None]
        strides = {later.offset - earlier.offset for earlier, later in pairwise(found)}
        if len(found) < len(regions) or len(strides) > 1 or len({region.dims for region in found}) > 1:
            return None
        inner = (found[0].dims[1], 1) if len(found[0].dims) == 2 else (1,)
        dims, stride = (len(found), *found[0].dims), next(iter(strides), 0)
        return self.arrays[port].part(found[0].offset, dims, (stride, *inner))

    @cached_property
    def _space(self) -> WeightSpace:
        return WeightSpace(self.rnn)

    @property
    def _sequence(self) -> Array:
        return self.arrays["dy" if isinstance(self.operation, RnnBackwardData) else "x"]


def needed(array: Array | None) -> Array:
    """``array``, which is there in the operation at hand."""
    assert array is not None, "checked by the operation"
    return array


def unkept(array: Array) -> Array:
    """An array (D, B, elements) that each step overwrites, as (D, T, B, elements)."""
    direction, sequence, element = array.strides
    return replace(array, dims=(array.dims[0], 1, *array.dims[1:]), strides=(direction, 0, sequence, element))

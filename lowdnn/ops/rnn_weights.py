"""The weight space of a recurrent network: where each matrix and each bias of its layers lies.

The matrices of all pseudo-layers come first, then their biases; those of one pseudo-layer lie together, row-major:
W (G * H, size of the layer's input), R (G * H, S), with a projection P (P, H); bW (G * H) and bR (G * H). A linear
layer of a gate, linLayerID in cuDNN, is H rows of W (0 to G - 1) or of R (G to 2 G - 1); 8 is the projection, which has
no bias. Nothing lies between them, as PyTorch and JAX assume.
Source: cudnn_adv.h, cudnnGetRNNWeightParams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.ops.rnn import Rnn
from lowdnn.rnn_enums import RNNBiasMode

#: linLayerID of the recurrent projection.
PROJECTION_ID = 8

_INPUT_BIASES = (RNNBiasMode.SINGLE_INP_BIAS, RNNBiasMode.DOUBLE_BIAS)
_RECURRENT_BIASES = (RNNBiasMode.SINGLE_REC_BIAS, RNNBiasMode.DOUBLE_BIAS)


@dataclass(frozen=True)
class Region:
    """A row-major array in the weight space, ``offset`` elements from its begin."""

    offset: int
    dims: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + prod(self.dims)


@dataclass(frozen=True)
class LayerRegions:
    """The regions of one pseudo-layer; None for those that it does not have."""

    w: Region | None
    r: Region
    projection: Region | None
    input_bias: Region | None
    recurrent_bias: Region | None


@dataclass(frozen=True)
class WeightSpace:
    """See the module's docstring."""

    rnn: Rnn

    @cached_property
    def layers(self) -> tuple[LayerRegions, ...]:
        """The regions by pseudo-layer."""
        rest = _Rest()
        matrices = [self._matrices(rest, pseudo_layer) for pseudo_layer in range(self.rnn.pseudo_layers)]
        return tuple(LayerRegions(*found, *self._biases(rest)) for found in matrices)

    @cached_property
    def element_count(self) -> int:
        last = self.layers[-1]
        regions = (last.w, last.r, last.projection, last.input_bias, last.recurrent_bias)
        return max(region.end for region in regions if region is not None)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Every linLayerID."""
        gates = tuple(range(2 * self.rnn.gates))
        return (*gates, PROJECTION_ID) if self.rnn.projection_size else gates

    @cached_property
    def places(self) -> Mapping[tuple[int, int], tuple[Region | None, Region | None]]:
        """The matrix and the bias by pseudo-layer and linLayerID."""
        pairs = ((layer, number) for layer in range(self.rnn.pseudo_layers) for number in self.linear_layers)
        return {pair: (self.matrix(*pair), self.bias(*pair)) for pair in pairs}

    def matrix(self, pseudo_layer: int, linear_layer: int) -> Region | None:
        """The matrix of one linear layer; None where there is none."""
        layer = self.layers[pseudo_layer]
        if linear_layer == PROJECTION_ID:
            return layer.projection
        return self._rows(linear_layer, layer.w, layer.r)

    def bias(self, pseudo_layer: int, linear_layer: int) -> Region | None:
        """The bias of one linear layer; None where there is none."""
        layer = self.layers[pseudo_layer]
        if linear_layer == PROJECTION_ID:
            return None
        return self._rows(linear_layer, layer.input_bias, layer.recurrent_bias)

    def _rows(self, linear_layer: int, of_input: Region | None, recurrent: Region | None) -> Region | None:
        side, gate = divmod(linear_layer, self.rnn.gates)
        whole = (of_input, recurrent)[side]
        if whole is None:
            return None
        dims = (self.rnn.hidden_size, *whole.dims[1:])
        return Region(whole.offset + gate * prod(dims), dims)

    def _matrices(self, rest: _Rest, pseudo_layer: int) -> tuple[Region | None, Region, Region | None]:
        """W, R and P of a pseudo-layer, at the begin of ``rest``."""
        rnn, layer = self.rnn, pseudo_layer // self.rnn.directions
        rows = rnn.gates * rnn.hidden_size
        return (
            None if rnn.skips_product(layer) else rest.take(rows, rnn.size_into(layer)),
            rest.take(rows, rnn.state_size),
            rest.take(rnn.projection_size, rnn.hidden_size) if rnn.projection_size else None,
        )

    def _biases(self, rest: _Rest) -> tuple[Region | None, Region | None]:
        """bW and bR of a pseudo-layer, at the begin of ``rest``."""
        rows, mode = self.rnn.gates * self.rnn.hidden_size, self.rnn.bias_mode
        return (
            rest.take(rows) if mode in _INPUT_BIASES else None,
            rest.take(rows) if mode in _RECURRENT_BIASES else None,
        )


class _Rest:
    """The part of the weight space that has not been assigned to regions yet."""

    def __init__(self) -> None:
        self._begin = 0

    def take(self, *dims: int) -> Region:
        region = Region(self._begin, dims)
        self._begin = region.end
        return region

"""The weight space of a network: its size, where its matrices and biases lie, and PyTorch's arrays in it.

Source: cudnn_adv.h, cudnnGetRNNWeightSpaceSize, cudnnGetRNNWeightParams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.adv.rnn_descriptors import RNNDescriptor
from lowdnn.ops.rnn_weights import PROJECTION_ID, Region
from lowdnn.status import BadParamError, LowdnnError, ShapeMismatchError, SizeInsufficientError


class RNNWeightParams(NamedTuple):
    """A matrix (1, rows, columns) and a bias (1, rows, 1), row-major; address 0 and dims () where there is none."""

    m_dims: tuple[int, ...]
    m_addr: int
    b_dims: tuple[int, ...]
    b_addr: int


def get_rnn_weight_space_size(rnn_desc: RNNDescriptor) -> int:
    """Bytes of the weight space."""
    return rnn_desc.weight_space_bytes


def get_rnn_weight_params(
    rnn_desc: RNNDescriptor, pseudo_layer: int, weight_space_size: int, weight_space: int, lin_layer_id: int
) -> RNNWeightParams:
    """The places of a linear layer's matrix and bias; see ``ops.rnn_weights`` for pseudo-layers and numbers.

    weight_space: an address; with 0 those of matrix and bias are offsets in bytes.
    Raises BadParamError for a layer that there is not, SizeInsufficientError for too small a space.
    """
    places = rnn_desc.weight_space.places.get((pseudo_layer, lin_layer_id))
    if places is None:
        raise _no_such_layer(rnn_desc, pseudo_layer, lin_layer_id)
    if weight_space_size < rnn_desc.weight_space_bytes:
        where, expected = "get_rnn_weight_params.weight_space_size", f"at least {rnn_desc.weight_space_bytes}"
        raise SizeInsufficientError.at(where, expected=expected, got=weight_space_size)
    (matrix, bias), size_bytes = places, rnn_desc.element_bytes
    return RNNWeightParams(
        (1, *matrix.dims) if matrix else (),
        weight_space + matrix.offset * size_bytes if matrix else 0,
        (1, *bias.dims, 1) if bias else (),
        weight_space + bias.offset * size_bytes if bias else 0,
    )


def weights_from_torch(rnn_desc: RNNDescriptor, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The weight space that holds the parameters of ``torch.nn.RNN``, ``LSTM`` or ``GRU``, by their names.

    An array of storage type, packed. Raises ShapeMismatchError, and BadParamError for a missing or unknown name.
    """
    regions = dict(_torch_regions(rnn_desc))
    if regions.keys() != arrays.keys():
        raise BadParamError.at("weights_from_torch.arrays", expected=", ".join(regions), got=", ".join(arrays))
    space = np.empty(rnn_desc.weight_space.element_count, dtypes.info(rnn_desc.data_type).storage)
    for name, region in regions.items():
        if arrays[name].shape != region.dims:
            where = f"weights_from_torch.{name}.shape"
            raise ShapeMismatchError.at(where, expected=list(region.dims), got=list(arrays[name].shape))
        space[region.offset : region.end] = arrays[name].reshape(-1).view(space.dtype)
    return space


def weights_to_torch(rnn_desc: RNNDescriptor, space: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Views of a weight space, an array of storage type, under PyTorch's names."""
    count = rnn_desc.weight_space.element_count
    if space.shape != (count,):
        raise ShapeMismatchError.at("weights_to_torch.space.shape", expected=[count], got=list(space.shape))
    regions = _torch_regions(rnn_desc)
    return {name: space[region.offset : region.end].reshape(region.dims) for name, region in regions}


def _torch_regions(rnn_desc: RNNDescriptor) -> Iterator[tuple[str, Region]]:
    """Raises BadParamError for a network that torch.nn has no module of: one that skips its input."""
    space = rnn_desc.weight_space
    for pseudo_layer, regions in enumerate(space.layers):
        layer, direction = divmod(pseudo_layer, space.rnn.directions)
        suffix = f"_l{layer}{'_reverse' if direction else ''}"
        parts = {
            "weight_ih": regions.w,
            "weight_hh": regions.r,
            "bias_ih": regions.input_bias,
            "bias_hh": regions.recurrent_bias,
            "weight_hr": regions.projection,
        }
        yield from ((name + suffix, region) for name, region in parts.items() if region is not None)


def _no_such_layer(rnn_desc: RNNDescriptor, pseudo_layer: int, lin_layer_id: int) -> LowdnnError:
    space = rnn_desc.weight_space
    if not 0 <= pseudo_layer < space.rnn.pseudo_layers:
        expected = f"0 to {space.rnn.pseudo_layers - 1}"
        return BadParamError.at("get_rnn_weight_params.pseudo_layer", expected=expected, got=pseudo_layer)
    expected = f"0 to {2 * space.rnn.gates - 1}" + (f" or {PROJECTION_ID}" if space.rnn.projection_size else "")
    return BadParamError.at("get_rnn_weight_params.lin_layer_id", expected=expected, got=lin_layer_id)

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from lowdnn.adv import (
    RNNBiasMode,
    RNNDescriptor,
    RNNInputMode,
    RNNMode,
    get_rnn_weight_params,
    get_rnn_weight_space_size,
    weights_from_torch,
    weights_to_torch,
)
from lowdnn.enums import DataType
from lowdnn.status import BadParamError, ShapeMismatchError, SizeInsufficientError
from tests.support.errors import raises
from tests.support.rnn_step import LSTM

SPACE = 0x10000
NETWORKS = {
    "lstm": LSTM,
    "projection": replace(LSTM, proj_size=3),
    "gru in half": replace(LSTM, cell_mode=RNNMode.GRU, data_type=DataType.HALF, math_prec=DataType.FLOAT),
    "one bias": replace(LSTM, cell_mode=RNNMode.RNN_TANH, bias_mode=RNNBiasMode.SINGLE_REC_BIAS),
    "skips": replace(LSTM, input_size=8, input_mode=RNNInputMode.SKIP_INPUT, bias_mode=RNNBiasMode.NO_BIAS),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_addresses_fill_the_space(name: str) -> None:
    """Each byte belongs to one matrix or bias."""
    network = NETWORKS[name]
    size, element = get_rnn_weight_space_size(network), 2 if network.data_type is DataType.HALF else 4
    taken = np.zeros(size, int)
    for pseudo_layer, number in product(range(4), network.weight_space.linear_layers):
        found = get_rnn_weight_params(network, pseudo_layer, size, SPACE, number)
        for dims, address in ((found.m_dims, found.m_addr), (found.b_dims, found.b_addr)):
            assert (address != 0) == (dims != ())
            first = address - SPACE if dims else 0
            taken[first : first + (int(np.prod(dims)) * element if dims else 0)] += 1
    assert (taken == 1).all()


def test_some_addresses() -> None:
    """PyTorch takes the gates of an input's, and of a state's, product for one matrix."""
    size = get_rnn_weight_space_size(LSTM)
    first, second, recurrent = (get_rnn_weight_params(LSTM, 0, size, SPACE, number) for number in (0, 1, 4))
    assert (first.m_dims, first.m_addr) == ((1, 8, 5), SPACE)
    assert (second.m_addr, recurrent.m_addr) == (SPACE + 4 * 40, SPACE + 4 * 160)
    assert (recurrent.m_dims, recurrent.b_dims) == ((1, 8, 8), (1, 8, 1))
    matrices = 2 * (32 * 5 + 32 * 8) + 2 * (32 * 16 + 32 * 8)
    assert (first.b_addr, recurrent.b_addr) == (SPACE + 4 * matrices, SPACE + 4 * (matrices + 32))


def test_offsets_without_a_space() -> None:
    size = get_rnn_weight_space_size(LSTM)
    placed, offsets = (get_rnn_weight_params(LSTM, 3, size, space, 5) for space in (SPACE, 0))
    assert (offsets.m_addr, offsets.b_addr) == (placed.m_addr - SPACE, placed.b_addr - SPACE)


def test_what_there_is_not() -> None:
    size = get_rnn_weight_space_size(LSTM)
    with raises(BadParamError, "get_rnn_weight_params.pseudo_layer", expected="0 to 3", got="4"):
        get_rnn_weight_params(LSTM, 4, size, SPACE, 0)
    with raises(BadParamError, "get_rnn_weight_params.lin_layer_id", expected="0 to 7", got="8"):
        get_rnn_weight_params(LSTM, 0, size, SPACE, 8)
    with raises(BadParamError, "get_rnn_weight_params.lin_layer_id", expected="0 to 7 or 8", got="9"):
        get_rnn_weight_params(NETWORKS["projection"], 0, size, SPACE, 9)
    with raises(
        SizeInsufficientError, "get_rnn_weight_params.weight_space_size", expected=f"{size}", got=f"{size - 1}"
    ):
        get_rnn_weight_params(LSTM, 0, size - 1, SPACE, 0)


@pytest.mark.parametrize("name", ["lstm", "projection", "gru in half", "one bias"])
def test_to_and_from_torch(name: str) -> None:
    network: RNNDescriptor = NETWORKS[name]
    storage = np.float16 if network.data_type is DataType.HALF else np.float32
    space = np.arange(network.weight_space.element_count).astype(storage)
    arrays = weights_to_torch(network, space)
    assert arrays["weight_ih_l1_reverse"].shape == (8 * network.weight_space.rnn.gates, 2 * network.proj_size)
    np.testing.assert_array_equal(weights_from_torch(network, arrays), space)
    with raises(ShapeMismatchError, "weights_from_torch.weight_hh_l0.shape", expected="[", got="[1, "):
        weights_from_torch(network, arrays | {"weight_hh_l0": arrays["weight_hh_l0"][:1]})
    with raises(BadParamError, "weights_from_torch.arrays", expected="weight_ih_l0, ", got="weight_hh_l0"):
        weights_from_torch(network, {name: array for name, array in arrays.items() if name != "weight_ih_l0"})
    with raises(ShapeMismatchError, "weights_to_torch.space.shape", expected="[", got="["):
        weights_to_torch(network, space[1:])

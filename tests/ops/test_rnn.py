"""Recurrent networks: sizes, the weight space, what is saved, and the references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops import philox
from lowdnn.ops.rnn import Clip, Rnn
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.ops.rnn_saved import reserve_space, reserve_space_bytes
from lowdnn.ops.rnn_weights import PROJECTION_ID, Region, WeightSpace
from lowdnn.rnn_enums import DirectionMode, RNNBiasMode, RNNInputMode, RNNMode
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError, UnsupportedLayoutError
from tests.support.errors import raises
from tests.support.recurrent import draw, tensors_of, training

LSTM = Rnn(RNNMode.LSTM, max_length=3, batch_size=3, input_size=2, hidden_size=4)
BOTH_WAYS = replace(LSTM, num_layers=2, direction_mode=DirectionMode.BIDIRECTIONAL)
GRU = replace(BOTH_WAYS, cell_mode=RNNMode.GRU)
LENGTHS = np.array([3, 2, 1])

NETWORKS = {
    "relu": replace(BOTH_WAYS, cell_mode=RNNMode.RNN_RELU),
    "tanh of a layer": replace(LSTM, cell_mode=RNNMode.RNN_TANH, bias_mode=RNNBiasMode.SINGLE_REC_BIAS),
    "lstm": BOTH_WAYS,
    "lstm with a projection": replace(BOTH_WAYS, projection_size=3, bias_mode=RNNBiasMode.SINGLE_INP_BIAS),
    "lstm with a clip": replace(BOTH_WAYS, clip=Clip(-0.3, 0.4), bias_mode=RNNBiasMode.NO_BIAS),
    "lstm with dropout": replace(BOTH_WAYS, dropout_probability=0.4),
    "lstm that skips": replace(BOTH_WAYS, input_size=4, input_mode=RNNInputMode.SKIP_INPUT),
    "gru": GRU,
    "gru with a recurrent bias": replace(GRU, bias_mode=RNNBiasMode.SINGLE_REC_BIAS, dropout_probability=0.3),
    "gru with an input bias": replace(GRU, bias_mode=RNNBiasMode.SINGLE_INP_BIAS),
    "gru that skips": replace(GRU, input_size=4, input_mode=RNNInputMode.SKIP_INPUT),
    "gru, reset before": replace(GRU, reset_after=False),
    "gru, reset before, a recurrent bias": replace(GRU, reset_after=False, bias_mode=RNNBiasMode.SINGLE_REC_BIAS),
}


def loss(forward: RnnForward, values: dict[str, NDArray[Any]]) -> float:
    """The loss that has the gradients; y is 0 past the end of a sequence."""
    found = forward.reference({port: values[port] for port in ports_of(forward)})
    gradients = {"y": "dy", "hy": "dhy", **({"cy": "dcy"} if forward.rnn.is_lstm else {})}
    return float(sum(np.sum(found[port] * values[gradient]) for port, gradient in gradients.items()))


def ports_of(operation: RnnForward) -> list[str]:
    names = ("x", "w", "hx", "cx", "seq_lengths", "dropout_seed", "dropout_offset")
    return [name for name in names if getattr(operation, name) is not None]


@pytest.mark.parametrize("layout", ["all steps", "padded", "packed"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_formula(name: str, layout: str) -> None:
    rnn, lengths = NETWORKS[name], None if layout == "all steps" else LENGTHS
    operations = training(rnn, lengths=lengths, is_packed=layout == "packed")
    rng = np.random.default_rng(3)
    values = draw(rng, operations, lengths)
    found, step = operations.reference(values), 1e-6
    for port, gradient in {"x": "dx", "w": "dw", "hx": "dhx", **({"cx": "dcx"} if rnn.is_lstm else {})}.items():
        for index in rng.choice(values[port].size, min(values[port].size, 25), replace=False):
            place = np.unravel_index(index, values[port].shape)
            moved = np.zeros(values[port].shape)
            moved[place] = step
            high, low = (loss(operations.forward, values | {port: values[port] + sign * moved}) for sign in (1, -1))
            np.testing.assert_allclose(found[gradient][place], (high - low) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_past_the_end_change_nothing(name: str) -> None:
    """Such rows may hold NaN; packed sequences give the same bits."""
    rnn, rng = NETWORKS[name], np.random.default_rng(4)
    padded, packed = (training(rnn, lengths=LENGTHS, is_packed=is_packed) for is_packed in (False, True))
    values, rows = draw(rng, padded, LENGTHS), np.arange(3)[:, None] < LENGTHS
    flat = {port: values[port][rows] for port in ("x", "dy")}
    for port in flat:
        values[port][~rows] = np.nan
    found, same = padded.reference(values), packed.reference(values | flat)
    for port in ("y", "dx"):
        assert (found[port][~rows] == 0).all()
        found[port] = found[port][rows]
    for port in found.keys() - flat.keys():
        np.testing.assert_array_equal(found[port], same[port], err_msg=port)
    filled = replace(padded.forward, padding_fill=-2.5).reference({p: values[p] for p in ports_of(padded.forward)})
    assert (filled["y"][~rows] == -2.5).all()


def test_the_formulas_step_by_step() -> None:
    """One layer of an LSTM and of a GRU, written out."""
    rng = np.random.default_rng(5)
    for cell in (RNNMode.LSTM, RNNMode.GRU):
        operations = training(replace(LSTM, cell_mode=cell))
        values = draw(rng, operations, None)
        rows, h, c = 4 * operations.forward.rnn.gates, values["hx"][0], values.get("cx", values["hx"])[0]
        w, r, b_w, b_r = np.split(values["w"], np.cumsum([rows * 2, rows * 4, rows]))
        outputs = []
        for x in values["x"]:
            u, v = x @ w.reshape(rows, 2).T + b_w, h @ r.reshape(rows, 4).T + b_r
            if cell is RNNMode.LSTM:
                i, f, g, o = np.split(u + v, 4, axis=1)
                c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
                h = np.tanh(c) / (1 + np.exp(-o))
            else:
                reset, update = (1 / (1 + np.exp(-(u + v)[:, at : at + 4])) for at in (0, 4))
                n = np.tanh(u[:, 8:] + reset * v[:, 8:])
                h = (1 - update) * n + update * h
            outputs.append(h)
        found = operations.forward.reference({port: values[port] for port in ports_of(operations.forward)})
        np.testing.assert_allclose(found["y"], outputs, rtol=1e-12)
        np.testing.assert_allclose(found["hy"][0], h, rtol=1e-12)
        if cell is RNNMode.LSTM:
            np.testing.assert_allclose(found["cy"][0], c, rtol=1e-12)


def test_elements_are_dropped_by_their_words() -> None:
    """Element i of all outputs between layers by word i; the states of the layers do not change."""
    dropping = training(NETWORKS["lstm with dropout"])
    values = draw(np.random.default_rng(6), dropping, None)
    found = dropping.reference(values)
    words = philox.words(7, 3, np.arange(found["outputs"].size, dtype=np.uint64)).reshape(found["outputs"].shape[1:])
    kept = found["outputs"][0] * (words < 0.6 * 2**32) / 0.6
    second = training(replace(LSTM, input_size=8, direction_mode=DirectionMode.BIDIRECTIONAL))
    of_both, of_second = WeightSpace(BOTH_WAYS), WeightSpace(second.forward.rnn)
    w = np.empty(of_second.element_count)
    for direction in range(2):
        for layer in of_second.linear_layers:
            for find in ("matrix", "bias"):
                to, source = getattr(of_second, find)(direction, layer), getattr(of_both, find)(2 + direction, layer)
                w[to.offset : to.end] = values["w"][source.offset : source.end]
    given = {"x": kept, "w": w, "hx": values["hx"][2:], "cx": values["cx"][2:]}
    np.testing.assert_allclose(second.forward.reference(given)["y"], found["y"], rtol=1e-12)


@pytest.mark.parametrize(("propagates", "expected"), [(True, np.nan), (False, -0.5)])
def test_a_clip_cuts_the_states_that_a_step_reads(propagates: bool, expected: float) -> None:
    """As cuDNN's library does: of the last states, which no step reads, only h is made of cut ones."""
    operations = training(replace(LSTM, max_length=1, clip=Clip(-0.5, 0.25, propagates)))
    values = draw(np.random.default_rng(7), operations, None)
    given = {port: values[port] for port in ports_of(operations.forward)}
    given["cx"][0, 0] = [np.nan, 100, -100, 0]
    found = operations.forward.reference(given)
    i, f, g, o = np.split(found["gates"][0, 0, 0], 4)
    cy = f * [expected, 0.25, -0.5, 0] + i * g
    np.testing.assert_allclose(found["cy"][0, 0], cy, rtol=1e-12)
    assert cy[1] > 0.25
    np.testing.assert_allclose(found["hy"][0, 0], o * np.tanh(np.clip(cy, -0.5, 0.25)), rtol=1e-12)


def test_the_plain_implementation_is_near() -> None:
    for name, rnn in NETWORKS.items():
        operations = training(rnn, DataType.BFLOAT16)
        values = draw(np.random.default_rng(8), operations, None)
        values = {
            port: value if value.dtype.kind == "i" else dtypes.rounded(value, DataType.BFLOAT16)
            for port, value in values.items()
        }
        given = {port: values[port] for port in ports_of(operations.forward)}
        plain, exact = operations.forward.rounded_reference(given)["y"], operations.forward.reference(given)["y"]
        error = np.abs(plain - exact).max()
        assert 0 < error < 0.1, name


def test_the_weight_space() -> None:
    space = WeightSpace(replace(BOTH_WAYS, projection_size=3))
    assert space.linear_layers == (0, 1, 2, 3, 4, 5, 6, 7, PROJECTION_ID)
    assert space.matrix(0, 0) == Region(0, (4, 2))
    assert space.matrix(0, 3) == Region(24, (4, 2))
    assert space.matrix(0, 4) == Region(32, (4, 3))
    assert space.matrix(0, 8) == Region(80, (3, 4))
    assert space.matrix(1, 0) == Region(92, (4, 2))
    assert space.matrix(2, 0) == Region(184, (4, 6))
    assert space.bias(0, 0) == Region(space.layers[3].projection.end, (4,))  # type: ignore[union-attr]
    assert space.bias(0, 5) == Region(space.layers[3].projection.end + 20, (4,))  # type: ignore[union-attr]
    assert space.bias(0, 8) is None
    assert space.element_count == 184 + 2 * (16 * 6 + 16 * 3 + 12) + 4 * 32


@pytest.mark.parametrize("name", NETWORKS)
def test_linear_layers_fill_the_weight_space(name: str) -> None:
    space = WeightSpace(NETWORKS[name])
    regions = [
        region
        for find in (space.matrix, space.bias)
        for pseudo_layer in range(4 if space.rnn.num_layers == 2 else 1)
        for linear_layer in space.linear_layers
        if (region := find(pseudo_layer, linear_layer)) is not None
    ]
    ends = [0, *(region.end for region in sorted(regions, key=lambda region: region.offset))]
    assert [region.offset for region in sorted(regions, key=lambda region: region.offset)] == ends[:-1]
    assert ends[-1] == space.element_count


def test_modes_without_matrices_and_biases() -> None:
    skips = WeightSpace(NETWORKS["lstm that skips"])
    assert [skips.matrix(layer, 0) is None for layer in range(4)] == [True, True, False, False]
    assert skips.matrix(0, 4) == Region(0, (4, 4))
    one = WeightSpace(replace(GRU, bias_mode=RNNBiasMode.SINGLE_REC_BIAS))
    assert [one.bias(0, layer) is None for layer in range(6)] == [True] * 3 + [False] * 3
    other = WeightSpace(NETWORKS["gru with an input bias"])
    assert [other.bias(0, layer) is None for layer in range(6)] == [False] * 3 + [True] * 3


def test_the_reserve_space() -> None:
    """Tensors begin at multiples of 256 bytes, behind seed and offset; gradients of gates lie where gates do."""
    found = reserve_space(replace(BOTH_WAYS, projection_size=3, dropout_probability=0.5), DataType.HALF)
    assert {name: saved.offset_bytes for name, saved in found.items()} == {
        "dropout_seed": 0, "dropout_offset": 8, "gates": 256, "cells": 1536, "outputs": 2304, "unprojected": 2560,
        "dgates": 256, "dprojected": 3072,
    }  # fmt: skip
    assert reserve_space_bytes(replace(BOTH_WAYS, projection_size=3, dropout_probability=0.5), DataType.HALF) == 3288


def test_a_single_layer_drops_nothing() -> None:
    rnn = replace(LSTM, dropout_probability=0.5)
    assert not rnn.drops
    assert "dropout_seed" not in reserve_space(rnn, DataType.HALF)


def test_what_a_network_checks() -> None:
    with raises(BadParamError, "rnn.batch_size", expected="1 to 2147483647", got="0"):
        replace(LSTM, batch_size=0)
    with raises(BadParamError, "rnn.projection_size", expected="1 to 3", got="4"):
        replace(LSTM, projection_size=4)
    with raises(BadParamError, "rnn.projection_size", expected="none in a GRU", got="3"):
        replace(GRU, projection_size=3)
    with raises(BadParamError, "rnn.input_size", expected="the hidden size 4 with SKIP_INPUT", got="2"):
        replace(LSTM, input_mode=RNNInputMode.SKIP_INPUT)
    with raises(BadParamError, "rnn.clip", expected="none in a GRU", got="-1 to 1"):
        replace(GRU, clip=Clip(-1, 1))
    with raises(BadParamError, "rnn.clip", expected="lower <= upper", got="1 and -1"):
        Clip(1, -1)
    with raises(BadParamError, "rnn.dropout_probability", expected="0 to 1", got="1.5"):
        replace(LSTM, dropout_probability=1.5)
    with raises(BadParamError, "rnn.reset_after", expected="true but for a GRU", got="False"):
        replace(LSTM, reset_after=False)


def test_what_an_operation_checks() -> None:
    lengths, forward = np.array([3, 3, 3]), training(BOTH_WAYS).forward
    tensors = tensors_of(BOTH_WAYS, DataType.DOUBLE, lengths, is_packed=True)
    with raises(ShapeMismatchError, "rnn_forward.x.dims", expected="[3, 3, 2]", got="[3, 3, 8]"):
        replace(forward, x=forward.y)
    with raises(ShapeMismatchError, "rnn_forward.w.dims", expected="[704]", got="[959]"):
        replace(forward, w=replace(forward.w, dims=(959,)))
    with raises(ShapeMismatchError, "rnn_forward.dims", expected="the same rows in all sequences", got="x [9, 2]"):
        replace(forward, x=tensors["x"], seq_lengths=tensors["seq_lengths"])
    with raises(BadParamError, "rnn_forward.seq_lengths", expected="a tensor with a packed x", got="none"):
        replace(forward, x=tensors["x"], y=tensors["y"])
    with raises(BadParamError, "rnn_forward.cells", expected="a tensor in training, of a LSTM", got="none"):
        replace(forward, cells=None)
    with raises(BadParamError, "rnn_forward.dropout_seed", expected="a tensor with dropout", got="none"):
        replace(forward, rnn=replace(BOTH_WAYS, dropout_probability=0.5))
    with raises(UnsupportedDataTypeError, "rnn_forward.w.data_type", expected="DOUBLE", got="FLOAT"):
        replace(forward, w=replace(forward.w, data_type=DataType.FLOAT))
    with raises(UnsupportedLayoutError, "rnn_forward.gates.strides", expected="row-major", got="[1, "):
        assert forward.gates is not None
        replace(forward, gates=replace(forward.gates, strides=(1, *forward.gates.strides[1:])))
    with raises(BadParamError, "rnn_forward.rnn.uses_tf32", expected="false but for FLOAT", got="DOUBLE"):
        replace(forward, rnn=replace(BOTH_WAYS, uses_tf32=True))
    with raises(BadParamError, "rnn_backward_data.hx", expected="none of a LSTM", got="tensor"):
        replace(training(BOTH_WAYS).backward_data, hx=forward.hx)


@pytest.mark.parametrize("name", NETWORKS)
def test_graphs_are_read_back_equal(name: str) -> None:
    """Graphs differ by key in every field of the network."""
    operations = training(NETWORKS[name], lengths=LENGTHS)
    keys = set()
    for operation in (operations.forward, operations.backward_data, operations.backward_weights):
        graph = OperationGraph((operation,))
        assert OperationGraph.from_json(graph.to_json()).operations == (operation,)
        keys.add(graph.key)
    assert len(keys) == 3


def test_keys_differ_by_network() -> None:
    graphs = [OperationGraph((training(rnn).forward,)) for rnn in NETWORKS.values()]
    clips = [replace(BOTH_WAYS, clip=Clip(-1, upper, propagates)) for upper in (1, 2) for propagates in (True, False)]
    graphs += [OperationGraph((training(rnn).forward,)) for rnn in clips]
    assert len({graph.key for graph in graphs}) == len(graphs)

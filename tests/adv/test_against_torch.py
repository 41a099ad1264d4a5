"""Results and gradients of PyTorch's modules in float64, recorded with PyTorch 2.13, from their parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.adv import RNNDataLayout, RNNMode, weights_from_torch, weights_to_torch
from lowdnn.adv.rnn_descriptors import RNNDescriptor
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType, MathType
from lowdnn.ops.base import inputs_of
from lowdnn.rnn_enums import DirectionMode, RNNAlgo, RNNBiasMode, RNNInputMode
from tests.support.recurrent import training
from tests.support.rnn_step import Step

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("torch_rnn.json").read_text())
STEPS, BATCH, INPUT, HIDDEN, LAYERS = 3, 2, 3, 2, 2


def descriptor(recorded: dict[str, Any]) -> RNNDescriptor:
    return RNNDescriptor(
        RNNAlgo.STANDARD,
        RNNMode[recorded["cell"]],
        RNNBiasMode.DOUBLE_BIAS,
        DirectionMode(recorded["directions"] - 1),
        RNNInputMode.LINEAR_INPUT,
        DataType.DOUBLE,
        DataType.DOUBLE,
        MathType.DEFAULT_MATH,
        INPUT,
        HIDDEN,
        recorded["projection"] or HIDDEN,
        LAYERS,
    )


@pytest.mark.parametrize("name", RECORDED)
def test_the_reference_agrees(name: str) -> None:
    recorded = RECORDED[name]
    network = descriptor(recorded)
    lengths = None if recorded["lengths"] is None else np.array(recorded["lengths"])
    rnn = network.network(STEPS, BATCH, is_training=True)
    operations = training(rnn, lengths=lengths, is_packed=lengths is not None)
    parameters = {name: np.array(values) for name, values in recorded["parameters"].items()}
    given = {"w": weights_from_torch(network, parameters)}
    given |= {port: np.array(values) for port, values in recorded["given"].items()}
    if lengths is not None:
        given["seq_lengths"] = lengths
    tensors = inputs_of(operations.forward) | inputs_of(operations.backward_data)
    shaped = {port: values.reshape(tensors[port].dims) for port, values in given.items()}
    found = operations.reference(shaped)
    for port, values in recorded["results"].items():
        np.testing.assert_allclose(found[port].reshape(-1), values, rtol=1e-9, atol=1e-11, err_msg=port)
    for parameter, values in weights_to_torch(network, found["dw"]).items():
        np.testing.assert_allclose(values, recorded["gradients"][parameter], rtol=1e-9, atol=1e-11, err_msg=parameter)


@pytest.mark.parametrize("name", RECORDED)
def test_calls_on_weights_of_a_module_give_what_it_gives(handle: Handle, name: str) -> None:
    recorded = RECORDED[name]
    network, lengths = descriptor(recorded), recorded["lengths"]
    one = Step(handle, network, RNNDataLayout.SEQ_MAJOR_PACKED, STEPS, tuple(lengths or (STEPS,) * BATCH))
    parameters = {name: np.array(values) for name, values in recorded["parameters"].items()}
    drawn = one.values
    given = {port: np.array(recorded["given"][port]).reshape(drawn[port].shape) for port in recorded["given"]}
    found = one.run(one.memory(**given, w=weights_from_torch(network, parameters)))
    for port, values in recorded["results"].items():
        np.testing.assert_allclose(found[port].reshape(-1), values, rtol=1e-9, atol=1e-11, err_msg=port)
    for parameter, values in weights_to_torch(network, found["dw"]).items():
        np.testing.assert_allclose(values, recorded["gradients"][parameter], rtol=1e-9, atol=1e-11, err_msg=parameter)

"""Results and gradients of PyTorch's modules in float64, recorded with PyTorch 2.13, from their parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.adv import (
    DirectionMode,
    RNNAlgo,
    RNNBiasMode,
    RNNDataLayout,
    RNNDescriptor,
    RNNInputMode,
    RNNMode,
    weights_from_torch,
    weights_to_torch,
)
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType, MathType
from lowdnn.ops.base import inputs_of
from tests.support.rnn_step import Step

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("torch_rnn.json").read_text())
STEPS, BATCH, INPUT, HIDDEN, LAYERS = 3, 2, 3, 2, 2


@pytest.mark.parametrize("name", RECORDED)
def test_results_and_gradients(handle: Handle, name: str) -> None:
    """Of the reference, and of a step on the device with the parameters in a weight space."""
    recorded = RECORDED[name]
    network, lengths = _network(recorded), tuple(recorded["lengths"] or (STEPS,) * BATCH)
    layout = RNNDataLayout.SEQ_MAJOR_PACKED if recorded["lengths"] else RNNDataLayout.SEQ_MAJOR_UNPACKED
    step = Step(handle, network, layout, STEPS, lengths)
    parameters = {name: np.array(values) for name, values in recorded["parameters"].items()}
    given = {"w": weights_from_torch(network, parameters)}
    tensors = inputs_of(step.operations.forward) | inputs_of(step.operations.backward_data)
    given |= {port: np.array(values).reshape(tensors[port].dims) for port, values in recorded["given"].items()}
    memory = step.memory(**given)
    for found in (step.operations.reference(step.values | given), step.run(memory)):
        for port, values in recorded["results"].items():
            _check(found[port].reshape(-1), values, port)
        for parameter, values in weights_to_torch(network, found["dw"]).items():
            _check(values, recorded["gradients"][parameter], parameter)


def _network(recorded: dict[str, Any]) -> RNNDescriptor:
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


def _check(found: NDArray[Any], expected: Any, name: str) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11, err_msg=name)

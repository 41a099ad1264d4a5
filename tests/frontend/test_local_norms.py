"""Normalisations over neighbours in ``pygraph``, end to end, and where the backend leaves them out."""

from __future__ import annotations

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend.catalogue import create
from lowdnn.backend.handle import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.base import outputs_of
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.lrn import LrnBackward, LrnForward
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.errors import raises

FLOAT = cudnn.data_type.FLOAT
DIMS = (2, 6, 5, 4)
PARAMETERS = {"lrn_n": 3, "lrn_alpha": 0.5, "lrn_beta": 1.5, "lrn_k": 1.0}


@pytest.mark.parametrize(
    ("method", "ports"),
    [
        ("lrn", {"x": "input"}),
        ("lrn_backward", {"dy": "grad", "x": "input"}),
        ("divisive_normalization", {"x": "input"}),
        ("divisive_normalization", {"x": "input", "means": "means"}),
        ("divisive_normalization_backward", {"dy": "grad", "x": "input"}),
        ("divisive_normalization_backward", {"dy": "grad", "x": "input", "means": "means"}),
    ],
)
def test_methods_compute_what_their_operations_say(handle: Handle, method: str, ports: dict[str, str]) -> None:
    rng = np.random.default_rng(5)
    values = {port: rng.standard_normal(DIMS).astype(np.float32) for port in ports}
    graph = pygraph("local", FLOAT, FLOAT, FLOAT, handle)
    arrays = {port: cudnn.from_numpy(array, handle) for port, array in values.items()}
    given = {port: graph.tensor_like(array) for port, array in arrays.items()}
    made = getattr(graph, method)(**{ports[port]: tensor for port, tensor in given.items()}, **PARAMETERS)
    found = [tensor.set_output(True) for tensor in (made if isinstance(made, tuple) else (made,)) if tensor is not None]
    graph.build([cudnn.heur_mode.A])
    results = {tensor: cudnn.from_numpy(np.zeros(DIMS, np.float32), handle) for tensor in found}
    workspace = cudnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    graph.execute({given[port]: array for port, array in arrays.items()} | results, workspace)
    (operation,) = graph._lowered().operations
    assert (operation.lrn_n, operation.lrn_alpha, operation.lrn_beta, operation.lrn_k) == tuple(PARAMETERS.values())
    expected = operation.reference({port: array.astype(np.float64) for port, array in values.items()})
    assert len(found) == len(outputs_of(operation)) == 1 + ("means" in ports and "dy" in ports)
    for tensor, port in zip(found, outputs_of(operation), strict=True):
        np.testing.assert_allclose(results[tensor].numpy(), expected[port], rtol=1e-5, atol=1e-5)


def test_checks_name_the_method_and_its_parameter() -> None:
    graph = pygraph("local", FLOAT, FLOAT, FLOAT, sm_version=90)
    graph.lrn(graph.tensor(DIMS), lrn_n=17).set_output(True)
    with raises(BadParamError, "lrn.lrn_n", expected="1 to 16", got="17"):
        graph.validate()


@pytest.mark.parametrize(
    "operation", [LrnForward, LrnBackward, DivisiveNormalizationForward, DivisiveNormalizationBackward]
)
def test_the_backend_has_no_descriptor_of_them(operation: type) -> None:
    for asked in (operation, operation.__name__):
        with pytest.raises(NotSupportedError, match="cuDNN has no descriptor of this operation; write it with pygraph"):
            create(asked)

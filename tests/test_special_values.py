"""Pointwise modes on the values where rounding, overflow, signs and NaN rules show: every pair of them."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.backend.handle import Handle
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.compare import EXACT
from lowdnn.cases.oracle import evaluate
from lowdnn.cli.execution import run_graph
from lowdnn.enums import DataType, HeurMode, PointwiseMode
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, compute_types, input_ports, is_backward
from lowdnn.ops.tolerance import ToleranceClass
from tests.support.data import special_values
from tests.support.tolerance import assert_close, tolerance


@pytest.mark.parametrize(
    ("compute_type", "data_type"),
    [
        (DataType.FLOAT, DataType.FLOAT),
        (DataType.INT32, DataType.INT32),
        (DataType.INT64, DataType.INT64),
        (DataType.BOOLEAN, DataType.INT32),
        (DataType.INT32, DataType.FLOAT),
    ],
)
def test_every_pair(compute_type: DataType, data_type: DataType) -> None:
    values = special_values(data_type)
    builder = CaseBuilder()
    left, right = (builder.tensor((values.size**2,), data_type) for _ in range(2))
    mask = builder.tensor(left.dims, DataType.BOOLEAN)
    operands = {"x": left, "b": right, "t": mask, "dy": right}
    for mode in _modes(compute_type):
        arithmetic = Pointwise(mode, compute_type, axis=0)
        builder.pointwise(arithmetic, *[operands[port] for port in input_ports(mode)], store=compute_type)
    graph = builder.graph()
    inputs = {
        left.uid: np.repeat(values, values.size),
        right.uid: np.tile(values, values.size),
        mask.uid: np.arange(values.size**2) % 3 == 0,
    }
    with Handle.open("emulated") as handle:
        plan = rank(graph, handle.arch, HeurMode.A, handle.engines).candidates[0].plan
        outputs = run_graph(handle, graph, plan, inputs).outputs
    is_float = dtypes.info(compute_type).kind is dtypes.Kind.FLOAT
    allowed = tolerance(ToleranceClass.POINTWISE, compute_type) if is_float else EXACT
    expected = evaluate(graph, inputs)
    for operation in graph.operations:
        assert isinstance(operation, PointwiseOperation)
        uid = operation.output.uid
        assert_close(outputs[uid], expected[uid], compute_type, allowed, operation.mode.name)


def _modes(compute_type: DataType) -> list[PointwiseMode]:
    """All modes of a compute type but the gradients, in which infinite and flat meet."""
    return [mode for mode in PointwiseMode if compute_type in compute_types(mode) and not is_backward(mode)]

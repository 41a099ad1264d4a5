"""Gradients of norms with rows of any size: x and mean times 2^k and inverse / 2^k give dx / 2^k, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.norm.norm_rows import NormRows
from lowdnn.enums import KnobType
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import run_plan

ENGINE = NormRows()

CASES = [
    ("dims=11x96 mode=layer", {}),
    ("dims=64x256 mode=layer", {}),
    ("dims=5x1000 mode=rms scale=scale", {}),
    ("dims=7x97 mode=rms scale=scale dtype=bf16", {}),
    ("dims=3x12x5x7 mode=group groups=3", {}),
    ("dims=4x16x5x4 mode=batch layout=nhwc", {}),
    ("dims=4x6x5x4 mode=batch", {KnobType.THREADS_PER_ROW: 8, KnobType.MULTIPLY: 1, KnobType.TILE_CGA_M: 1}),
    ("dims=3x8x9x9 mode=instance", {}),
]


@pytest.mark.parametrize("power", [100, -70])
@pytest.mark.parametrize(("line", "choices"), CASES)
def test_gradients_scale_with_their_rows(device: Runtime, line: str, choices: dict[KnobType, int], power: int) -> None:
    """The square of inverse would be 2^-200, or 2^140: neither is a number of FLOAT."""
    case, seed = parse_case(f"norm {line} dir=bwd"), fresh_seed()
    graph, inputs = case.graph(), dict(case.inputs(seed, exact=False))
    (norm,) = (operation for operation in graph.operations if isinstance(operation, NormBackward))
    plan = ENGINE.plan(graph, SM_90A, choices)
    before = run_plan(device, plan, graph, inputs)
    for tensor, exponent in ((norm.x, power), (norm.mean, power), (norm.inv_variance, -power)):
        if tensor is not None:
            numbers = np.ldexp(dtypes.to_float64(inputs[tensor.uid], tensor.data_type), exponent)
            inputs[tensor.uid] = dtypes.from_float64(numbers, tensor.data_type)
    after = run_plan(device, plan, graph, inputs)
    for uid, found in after.items():
        tensor = graph.tensors[uid]
        scaled = np.ldexp(dtypes.to_float64(found, tensor.data_type), power if tensor is norm.dx else 0)
        expected = dtypes.to_float64(before[uid], tensor.data_type)
        np.testing.assert_array_equal(scaled, expected, err_msg=f"seed {seed}: {tensor.label}")

"""``batch_norm``: results agree with the reference, in few passes, whatever the mean."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.norm.batch_norm import BatchNorm
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.ops.test_bn_parts import finalize, weights
from tests.support.data import fresh_seed
from tests.support.running import check_case, check_outputs

ENGINE = BatchNorm()


def check(device: Runtime, line: str) -> Plan:
    return check_case(device, ENGINE, f"norm {line}")


@pytest.mark.parametrize(
    "line",
    [
        "dims=4x16x5x4 mode=batch layout=nhwc running=yes epilogue=residual+relu",
        "dims=4x6x5x4 mode=batch dtype=bf16 stats=bf16",
        "dims=4x6x5x4 mode=batch dir=bwd dtype=bf16 stats=bf16 epilogue=relu",
    ],
)
def test_against_the_reference(device: Runtime, line: str) -> None:
    check(device, line)


def test_large_means_cost_nothing(device: Runtime) -> None:
    check(device, "dims=4x16x5x4 mode=batch layout=nhwc running=yes epilogue=residual+relu mean=1000")


def test_nan_and_infinity_stay_in_their_channel(device: Runtime) -> None:
    case = parse_case("norm dims=4x16x5x4 mode=batch layout=nhwc running=yes epilogue=residual+relu")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    x = inputs[1]
    x[1, 3, 2, 2], x[0, 5, 1, 1], x[2, 7, 0, 3] = np.nan, np.inf, -np.inf
    check_outputs(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs, 80)


@pytest.mark.parametrize("operation", [finalize(), weights()], ids=["finalize", "weights"])
def test_parts_of_batch_norm(device: Runtime, operation: BnFinalize | BnBackwardWeights) -> None:
    graph = OperationGraph([operation])
    rng = np.random.default_rng(fresh_seed())
    given = [tensor for tensor in graph.inputs if tensor.constant_value is None]
    inputs = {tensor.uid: rng.uniform(0.5, 1.5, tensor.dims).astype(np.float32) for tensor in given}
    if isinstance(operation, BnFinalize):
        inputs[operation.sum_of_squares.uid] *= 100
    check_outputs(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs, 30)


@pytest.mark.parametrize(("direction", "elements_moved"), [("fwd", 3.2), ("bwd", 6.1)])
def test_large_activations_are_read_few_times(direction: str, elements_moved: float) -> None:
    """Forward reads x twice and writes y once; backward reads dy three times, x twice, and writes dx once."""
    graph = parse_case(f"norm dims=256x256x56x56 mode=batch layout=nhwc dtype=bf16 dir={direction}").graph()
    plan = ENGINE.plan(graph, SM_90A, {})
    assert plan.work.bytes < elements_moved * graph.tensors[1].span_bytes


def test_refusals_name_what_they_found() -> None:
    refusal = ENGINE.refuse(parse_case("norm dims=4x6x5x4 mode=instance").graph(), SM_90A)
    assert refusal is not None
    assert "expected BATCH_NORM, got INSTANCE_NORM" in refusal.reason
    refusal = ENGINE.refuse(parse_case("norm dims=4x6x5x4 mode=batch before=relu").graph(), SM_90A)
    assert refusal is not None
    assert "expected none before x" in refusal.reason

"""Gradients in fp8 against those of the numbers that their tensors stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.cases import parse_case
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_fp8_backward import LARGEST, NUMBERS, SdpaFp8Backward
from lowdnn.status import BadParamError, NotSupportedError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

CASE = parse_case("sdpa_bwd b=2 h=4 hk=2 hv=1 q=9 kv=13 d=16 right=2 lengths=both dtype=e4m3 d_o=e5m2")
GRAPH = CASE.graph()


def operation(**changes: Any) -> SdpaFp8Backward:
    (found,) = GRAPH.operations
    assert isinstance(found, SdpaFp8Backward)
    return replace(found, **changes) if changes else found


def values() -> dict[str, Any]:
    """Inputs whose sequences have queries and keys."""
    lengths = [tensor.uid for tensor in (operation().seq_len_q, operation().seq_len_kv) if tensor]
    drawn = CASE.inputs(fresh_seed(), exact=False)
    while not np.prod([drawn[uid] for uid in lengths], axis=0).any():
        drawn = CASE.inputs(fresh_seed(), exact=False)
    return {
        port: np.full(t.dims, t.constant_value)
        if t.constant_value is not None
        else dtypes.to_values(drawn[t.uid], t.data_type).astype(float)
        for port, t in inputs_of(operation()).items()
    }


def test_reference_is_that_of_what_the_tensors_stand_for() -> None:
    """Without rounding, a scale and a descale make one factor of weights and of gradients of scores."""
    op, inputs = operation(), values()
    numbers = {name: inputs.pop(f"numbers[{index}]").item() for index, name in enumerate(NUMBERS)}
    own = {tensor.uid: port for port, tensor in inputs_of(op).items()}
    plain = SdpaBackward(
        **{name: getattr(op, name) for name in vars(op) if name not in ("numbers", "largest")},
    )
    real = {port: numbers.get(f"descale_{port}", 1) * array for port, array in inputs.items()}
    expected, given = (
        plain.reference(real),
        inputs
        | {
            own[tensor.uid]: np.full((1, 1, 1, 1), numbers[name])
            for name, tensor in zip(NUMBERS, op.numbers, strict=True)
        },
    )
    found = op.reference(given)
    factors = dict.fromkeys(("dq", "dk"), numbers["scale_dp"] * numbers["descale_dp"])
    factors["dv"] = numbers["scale_s"] * numbers["descale_s"]
    for index, port in enumerate(LARGEST[:3]):
        wanted = numbers[f"scale_{port}"] * factors[port] * expected[port]
        # Some of the sums cancel.
        np.testing.assert_allclose(found[port], wanted, rtol=1e-12, atol=1e-15 * np.abs(wanted).max())
        assert found[f"largest[{index}]"].item() == pytest.approx(np.abs(factors[port] * expected[port]).max())
    forward = op.forward(given)
    np.testing.assert_allclose(forward["o"] * numbers["descale_o"], plain.forward(real)["o"], rtol=1e-12)


def test_the_rounded_reference_is_off_by_what_fp8_loses() -> None:
    op, inputs = operation(), values()
    exact, rounded = op.reference(inputs), op.rounded_reference(inputs)
    for port in ("dq", "dk", "dv"):
        error = np.abs(rounded[port] - exact[port]).max()
        assert 2.0**-10 * np.abs(exact[port]).max() < error < 2.0**-2 * np.abs(exact[port]).max()


def test_it_is_part_of_a_graph_in_json() -> None:
    assert OperationGraph.from_json(GRAPH.to_json()).operations == GRAPH.operations


def test_checks_name_the_number() -> None:
    op = operation()
    with raises(BadParamError, "sdpa_fp8_backward.numbers", expected="descale_q, descale_k", got="11 tensors"):
        operation(numbers=op.numbers[1:])
    wide = replace(op.numbers[4], dims=(2, 1, 1, 1))
    with raises(BadParamError, "sdpa_fp8_backward.descale_d_o.dims", expected="one element", got="[2, 1, 1, 1]"):
        operation(numbers=(*op.numbers[:4], wide, *op.numbers[5:]))
    narrow = replace(op.largest[3], data_type=DataType.HALF)
    with raises(UnsupportedDataTypeError, "sdpa_fp8_backward.amax_dp.data_type", expected="FLOAT", got="HALF"):
        operation(largest=(*op.largest[:3], narrow))
    with raises(NotSupportedError, "sdpa_fp8_backward.dbias", expected="none"):
        operation(dbias=replace(op.numbers[0], uid=99, dims=(1, 1, 9, 13), strides=(117, 117, 13, 1)))

"""``rope``: rotary position embedding and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.rope.rope import Rope
from lowdnn.enums import DataType, KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case, run_plan

ENGINE = Rope()


def plan_of(line: str) -> Plan:
    return ENGINE.plan(parse_case(line).graph(), SM_90A, {})


@pytest.mark.parametrize(
    "line",
    [
        "rope b=2 h=5 s=7 d=64 dtype=bf16",
        "rope b=2 h=5 s=7 d=64 layout=bshd dtype=fp16 dir=bwd scale=0.5",
        "rope b=1 h=2 s=9 d=192 size=64 layout=sbhd dtype=bf16 out=fp32",
        "rope b=1 h=2 s=6 d=10 size=6 first=130000 dtype=fp32",
        "rope b=2 h=3 s=7 d=16 size=8 layout=bhds dtype=fp64 dir=bwd",
    ],
)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, ENGINE, line)


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_heads_of_a_thread(device: Runtime, heads: int) -> None:
    """The heads need not fill the last thread."""
    check_case(device, ENGINE, "rope b=2 h=5 s=7 d=32 size=16 dtype=bf16", {KnobType.MULTIPLY: heads})


def test_accesses_are_as_wide_as_rows_allow() -> None:
    def widths(line: str) -> tuple[object, ...]:
        parameters = dict(plan_of(line).kernels[0].parameters)
        return tuple(parameters[name] for name in ("VECTOR", "X_WIDTH", "Y_WIDTH", "FREQ_WIDTH"))

    assert widths("rope b=1 h=8 s=100 d=128 dtype=bf16") == (8, 8, 8, 4)
    assert widths("rope b=1 h=8 s=100 d=192 size=64 layout=bshd dtype=fp16") == (8, 8, 8, 4)
    assert widths("rope b=1 h=8 s=100 d=128 dtype=fp32") == (4, 4, 4, 4)
    assert widths("rope b=1 h=8 s=100 d=20 size=4 dtype=fp32") == (2, 2, 2, 2)
    assert widths("rope b=1 h=8 s=100 d=16 dtype=bf16 layout=bhds") == (8, 0, 0, 4)


def test_few_rows_are_spread_over_the_device() -> None:
    assert dict(plan_of("rope b=1 h=32 s=8192 d=128").choices) == {KnobType.MULTIPLY: 4}
    assert dict(plan_of("rope b=8 h=32 s=1 d=128").choices) == {KnobType.MULTIPLY: 1}
    assert dict(plan_of("rope b=64 h=1 s=8192 d=128").choices) == {KnobType.MULTIPLY: 1}


def test_elements_before_the_pairs_are_only_scaled(device: Runtime) -> None:
    """Infinity in one half of them does not reach the other."""
    case = parse_case("rope b=1 h=1 s=2 d=24 size=8 scale=2 dtype=fp32")
    graph, inputs = case.graph(), case.inputs(5, exact=False)
    x = next(tensor for tensor in graph.inputs if tensor.name == "x")
    inputs[x.uid][..., 3] = np.inf
    (y,) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs).values()
    np.testing.assert_array_equal(y[..., :16], 2 * inputs[x.uid][..., :16])
    assert np.isfinite(y[..., 16:]).all()


def test_what_is_refused() -> None:
    builder = CaseBuilder()
    x, freqs = builder.tensor((1, 2, 3, 8), DataType.HALF), builder.tensor((3, 1, 1, 8), DataType.FLOAT)
    builder.rope(builder.rope(x, freqs), freqs)
    assert "expected one RopeForward or RopeBackward" in str(ENGINE.refuse(builder.graph(), SM_90A))

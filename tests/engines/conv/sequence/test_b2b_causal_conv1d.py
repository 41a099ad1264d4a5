"""``b2b_causal_conv1d`` and its gradient: back-to-back gated causal convolutions along sequences."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.driver import open_driver
from lowdnn.engines.base import Engine
from lowdnn.engines.conv.sequence.b2b_causal_conv1d import B2BCausalConv1dEngine
from lowdnn.engines.conv.sequence.b2b_causal_conv1d_backward import B2BCausalConv1dBackwardEngine
from lowdnn.engines.conv.sequence.gradients import MOST_SUMS
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_case, check_exact, check_outputs

FORWARD, BACKWARD = B2BCausalConv1dEngine(), B2BCausalConv1dBackwardEngine()


def engine_of(line: str) -> Engine:
    return BACKWARD if "dir=bwd" in line else FORWARD


def plan_of(line: str) -> Plan:
    return engine_of(line).plan(parse_case(line).graph(), SM_90A, {})


@paired(
    ("direction", ("fwd", "bwd")),
    ("layout", ("row", "nhwc", "padded", "transposed")),
    ("dtype", ("fp32", "fp16", "bf16", "fp64")),
    ("projection", (1, 3, 4, 9)),
    ("mixer", (1, 7, 8, 20)),
    ("length", (1, 8, 61, 300)),
)
def test_pairs(
    device: Runtime, direction: str, layout: str, dtype: str, projection: int, mixer: int, length: int
) -> None:
    words = f"b=2 c=2 l={length} proj={projection} mixer={mixer} layout={layout} dtype={dtype}"
    line = f"b2b_causal_conv1d {words} dir={direction}"
    check_case(device, engine_of(line), line)


@paired(("policy", POLICIES), ("direction", ("fwd", "bwd")), ("chunk", (64, 512)))
def test_policies(policy: str, direction: str, chunk: int) -> None:
    """Several blocks of a row, the last of which is not full; blocks of several warps."""
    case = parse_case(f"b2b_causal_conv1d b=1 c=1 l=600 proj=4 mixer=11 dir={direction} dtype=fp32")
    runtime, line = Runtime(open_driver("emulated", policy=policy)), f"dir={direction}"
    try:
        choices = {KnobType.TILE_SIZE: chunk}
        check_exact(runtime, engine_of(line), case.graph(), length=case.exact_length, choices=choices)
    finally:
        runtime.close()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("projection", [1, 3])
def test_what_is_not_finite_stays_in_its_channel(device: Runtime, direction: str, projection: int) -> None:
    """NaN of x and infinite weights change no other channel, and no position before a sequence has a gate of NaN."""
    line = f"b2b_causal_conv1d b=2 c=3 l=90 proj={projection} mixer=5 dir={direction} dtype=fp32"
    case = parse_case(line)
    graph, inputs = case.graph(), case.inputs(3, exact=False)
    for tensor in graph.inputs:
        if tensor.name == "x":
            inputs[tensor.uid][0, 4, 70] = np.nan
        if tensor.name == "weights_proj":
            inputs[tensor.uid][1, 0] = np.inf
        if tensor.name == "weights_mixer":
            inputs[tensor.uid][2, 1] = np.inf
    check_outputs(device, engine_of(line).plan(graph, SM_90A, {}), graph, inputs, case.length, line)


def test_blocks_have_as_many_positions_as_there_are() -> None:
    def chunk(line: str) -> int:
        return dict(plan_of(line).choices)[KnobType.TILE_SIZE]

    assert chunk("b2b_causal_conv1d b=1 c=4 l=8192 proj=4 mixer=128 dtype=bf16") == 1024
    assert chunk("b2b_causal_conv1d b=1 c=4 l=100 proj=4 mixer=128 dtype=bf16") == 128
    assert chunk("b2b_causal_conv1d b=1 c=4 l=8192 proj=4 mixer=128 dir=bwd dtype=bf16") == 512


def test_the_workspace_is_small_beside_the_tensors() -> None:
    plan = plan_of("b2b_causal_conv1d b=8 c=4096 l=8192 proj=4 mixer=7 dir=bwd dtype=bf16")
    assert plan.workspace_bytes < 2 * 3 * 8 * 4096 * 8192 / 10


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_filters_without_room_are_refused(direction: str) -> None:
    line = f"b2b_causal_conv1d b=1 c=2 l=64 proj=4 mixer=40000 dir={direction} dtype=fp32"
    refusal = str(engine_of(line).refuse(parse_case(line).graph(), SM_90A))
    assert "weights_mixer.dims: expected filters for 232448 bytes of shared memory, got 4 and 40000 taps" in refusal
    long = parse_case(f"b2b_causal_conv1d b=1 c=1 l={2**31} proj=4 mixer=4 dir={direction}").graph()
    assert "expected at most 1073741824 positions" in str(engine_of(line).refuse(long, SM_90A))


@pytest.mark.parametrize(
    ("taps", "port"), [("proj=512 mixer=4", "weights_proj"), ("proj=4 mixer=512", "weights_mixer")]
)
def test_more_sums_than_a_launch_has_are_refused(taps: str, port: str) -> None:
    line = f"b2b_causal_conv1d b=1 c={2**30} l=1 {taps} dir=bwd dtype=fp32"
    refusal = str(engine_of(line).refuse(parse_case(line).graph(), SM_90A))
    assert f"{port}.dims: expected gradients of at most {MOST_SUMS} sums, got " in refusal

"""``lrn``: cross-channel local response normalisation and its gradient."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.lrn.lrn import LrnEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.ops.lrn import LrnForward
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case

ENGINE = LrnEngine()


@pytest.mark.parametrize(
    "line",
    [
        "lrn dims=2x7x3x5 dtype=bf16",
        "lrn dims=2x24x3x5 layout=nhwc dtype=fp16 n=10",
        "lrn dims=1x9x2x3x4 n=16 dtype=fp64",
        "lrn dims=2x7x3x5 dtype=bf16 dir=bwd",
        "lrn dims=2x24x3x5 layout=nhwc dtype=fp32 n=4 dir=bwd",
        "lrn dims=2x24x3x5 layout=padded dtype=fp16 out=fp32 n=16 dir=bwd",
    ],
)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, ENGINE, line)


FEW = ("lrn dims=1x18x2x3 dtype=bf16", "lrn dims=1x16x2x3 layout=nhwc dtype=fp32 dir=bwd")


@pytest.mark.parametrize("line", FEW)
def test_under_every_policy(scheduled: Runtime, line: str) -> None:
    check_case(scheduled, ENGINE, line, {KnobType.MULTIPLY: 8})


@pytest.mark.parametrize("line", FEW)
def test_under_the_race_detector(racing: Runtime, line: str) -> None:
    check_case(racing, ENGINE, line, {KnobType.MULTIPLY: 8})


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("layout", ["row", "nhwc"])
@pytest.mark.parametrize("run", [1, 2, 4, 8, 16])
def test_channels_of_a_thread(device: Runtime, run: int, layout: str, direction: str) -> None:
    """The channels need not fill the last run."""
    line = f"lrn dims=2x20x2x3 n=5 layout={layout} dtype=bf16 dir={direction}"
    check_case(device, ENGINE, line, {KnobType.MULTIPLY: run})


def test_accesses_are_as_wide_as_channels_allow() -> None:
    def width(line: str) -> object:
        plan = ENGINE.plan(parse_case(line).graph(), SM_90A, {KnobType.MULTIPLY: 8})
        return dict(plan.kernels[0].parameters)["X_WIDTH"]

    assert width("lrn dims=2x64x8x8 layout=nhwc dtype=bf16") == 8
    assert width("lrn dims=2x12x8x8 layout=nhwc dtype=bf16") == 4
    assert width("lrn dims=2x13x8x8 layout=nhwc dtype=bf16") == 1
    assert width("lrn dims=2x64x8x8 dtype=bf16") == 0


def test_few_channels_are_spread_over_the_device() -> None:
    def run(line: str) -> int:
        return dict(ENGINE.plan(parse_case(line).graph(), SM_90A, {}).choices)[KnobType.MULTIPLY]

    assert run("lrn dims=128x96x55x55 dtype=bf16") == 8
    assert run("lrn dims=1x8x8x8 dtype=bf16") == 1


def test_what_is_refused() -> None:
    builder = CaseBuilder()
    x, y = (builder.tensor((1, 2, 3, 8), DataType.HALF, is_virtual=virtual) for virtual in (False, True))
    z = builder.tensor((1, 2, 3, 8), DataType.HALF)
    builder.add(LrnForward(x, y))
    builder.add(LrnForward(y, z))
    assert "expected one LrnForward or LrnBackward" in str(ENGINE.refuse(builder.graph(), SM_90A))

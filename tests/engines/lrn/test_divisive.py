"""``divisive_normalization``: divisive normalisation and its gradients."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.lrn.divisive import DivisiveNormalization
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case

ENGINE = DivisiveNormalization()
GRADIENTS = "means=yes dmeans=yes dir=bwd"


def plan_of(line: str) -> Plan:
    return ENGINE.plan(parse_case(line).graph(), SM_90A, {})


@pytest.mark.parametrize(
    "line",
    [
        "divisive dims=2x2x19x40 n=4 dtype=bf16",
        "divisive dims=1x35x9x10 n=3 layout=nhwc dtype=fp16 means=yes",
        "divisive dims=1x2x5x4x6 n=3 dtype=fp64 means=yes",
        "divisive dims=1x1x3x4x5 n=16 dtype=fp64",
        "divisive dims=2x2x19x40 n=5 dtype=bf16 dir=bwd",
        f"divisive dims=1x35x9x10 n=3 layout=nhwc dtype=fp32 {GRADIENTS}",
        f"divisive dims=1x2x6x9x5 n=2 dtype=fp32 {GRADIENTS}",
        f"divisive dims=1x1x18x5 n=16 layout=padded dtype=fp64 {GRADIENTS}",
    ],
)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, ENGINE, line)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_windows_that_reach_far_take_two_launches(device: Runtime, dtype: str) -> None:
    assert len(check_case(device, ENGINE, f"divisive dims=1x2x3x4x5 n=16 dtype={dtype} {GRADIENTS}").launches) == 2
    assert len(plan_of(f"divisive dims=1x2x3x4x5 n=5 dtype={dtype} {GRADIENTS}").launches) == 1


FEW = (
    "divisive dims=1x2x9x10 n=4 dtype=bf16",
    f"divisive dims=1x2x9x10 n=4 dtype=fp32 {GRADIENTS}",
    f"divisive dims=1x1x2x3x4 n=16 dtype=fp32 {GRADIENTS}",
)


@pytest.mark.parametrize("line", FEW)
def test_under_every_policy(scheduled: Runtime, line: str) -> None:
    check_case(scheduled, ENGINE, line)


@pytest.mark.parametrize("line", FEW)
def test_under_the_race_detector(racing: Runtime, line: str) -> None:
    check_case(racing, ENGINE, line)


def test_tiles_follow_the_layout() -> None:
    def tile(line: str) -> tuple[object, ...]:
        parameters = dict(plan_of(line).kernels[0].parameters)
        return tuple(parameters[f"TILE_{axis}"] for axis in "DHWC")

    assert tile("divisive dims=8x64x56x56 dtype=bf16") == (1, 16, 32, 1)
    assert tile("divisive dims=8x64x56x56 layout=nhwc dtype=bf16") == (1, 8, 8, 32)
    assert tile("divisive dims=8x64x8x56x56 dtype=bf16") == (4, 8, 32, 1)
    assert tile("divisive dims=8x64x56x56 layout=nhwc n=16 dtype=fp64") == (1, 4, 4, 16)

"""A sweep ends with the case whose kernel loses the context, and goes on behind other errors."""

from __future__ import annotations

import pytest

from lowdnn.backend.handle import Handle
from tests.sweeps.checking import failures

#: Two engines take it.
_LINE = "norm dims=4x3x2x2 mode=batch"


def test_a_lost_context_ends_the_test_with_its_case() -> None:
    faults = "launch:1-=ILLEGAL_ADDRESS, context_synchronize:1-=ILLEGAL_ADDRESS"
    with (
        Handle.open("emulated", faults=faults) as handle,
        pytest.raises(pytest.fail.Exception, match="CUDA_ERROR_ILLEGAL_ADDRESS: the context is lost") as caught,
    ):
        failures(handle, _LINE, 1, "all")
    assert str(caught.value).count("lowdnn run") == 1


def test_other_errors_are_collected() -> None:
    with Handle.open("emulated", faults="launch:1-=LAUNCH_OUT_OF_RESOURCES") as handle:
        wrong = failures(handle, _LINE, 1, "all")
    assert len(wrong) > 1
    assert all("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" in report for report in wrong)

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from lowdnn.driver import open_driver
from lowdnn.driver.base import DeviceAttribute
from lowdnn.status import AttributeTypeError, BadParamError, EmulatedDeviceWarning, SublibraryLoadingFailedError
from tests.support.errors import raises


def has_gpu() -> bool:
    try:
        return open_driver("cuda").device_count() > 0
    except SublibraryLoadingFailedError:
        return False


def test_auto_takes_the_gpu_or_warns() -> None:
    if has_gpu():
        assert open_driver("auto").kind == "cuda"
        return
    with pytest.warns(EmulatedDeviceWarning, match=r"no GPU .*sm_80") as caught:
        driver = open_driver("auto", arch="sm_80")
    assert driver.kind == "emulated"
    assert driver.device_attribute(0, DeviceAttribute.COMPUTE_CAPABILITY_MAJOR) == 8
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_cuda_without_a_gpu_says_what_is_missing() -> None:
    if has_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises(SublibraryLoadingFailedError, match=r"libcuda\.so\.1"):
        open_driver("cuda")


def test_unknown_kind() -> None:
    with pytest.raises(BadParamError, match="'opencl'"):
        open_driver("opencl")


@pytest.mark.parametrize("argument", ["policy", "faults"])
@pytest.mark.parametrize("given", [5, None, b"lockstep"])
def test_what_is_no_string(argument: str, given: Any) -> None:
    with raises(AttributeTypeError, f"open_driver.{argument}", expected="a string", got=repr(given)):
        open_driver("emulated", **{argument: given})


def test_importing_lowdnn_loads_no_cuda() -> None:
    code = (
        "import sys, lowdnn, lowdnn.driver, lowdnn.runtime.runtime; print([m for m in sys.modules if m[:4] == 'cuda'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

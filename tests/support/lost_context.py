"""Whether a kernel's fault has taken a device's context with it: every later call of the process fails then."""

from __future__ import annotations

from lowdnn.driver import open_driver
from lowdnn.driver.base import DriverError
from lowdnn.driver.results import KERNEL_FAULTS
from lowdnn.runtime.context import Context


def fault_of(context: Context) -> str:
    """The name of the fault that every call on ``context`` fails with; empty where it is of use."""
    try:
        context.synchronize()
    except DriverError as error:
        return _name_of(error)
    return ""


def fault_of_gpu() -> str:
    """The name of the fault that every call on the GPU's primary context fails with; empty where it is of use."""
    try:
        with Context(open_driver("cuda")) as context:
            return fault_of(context)
    except DriverError as error:
        return _name_of(error)


def _name_of(error: DriverError) -> str:
    return error.name if error.result in KERNEL_FAULTS else ""

"""CUresult: the members that the emulated driver answers with, with the driver's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from lowdnn.driver.base import DriverError


class CuResult(IntEnum):
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    NO_BINARY_FOR_GPU = 209
    INVALID_PTX = 218
    UNSUPPORTED_PTX_VERSION = 222
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    NOT_FOUND = 500
    ILLEGAL_ADDRESS = 700
    LAUNCH_OUT_OF_RESOURCES = 701
    LAUNCH_TIMEOUT = 702
    ASSERT = 710
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    LAUNCH_FAILED = 719
    COOPERATIVE_LAUNCH_TOO_LARGE = 720
    NOT_SUPPORTED = 801
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_UNJOINED = 904
    CAPTURED_EVENT = 907
    GRAPH_EXEC_UPDATE_FAILURE = 910
    INVALID_CLUSTER_SIZE = 912
    UNKNOWN = 999


def driver_error(
    call: str,
    result: int,
    arguments: object = "",
    explanation: str = "",
    report: Mapping[str, object] | None = None,
) -> DriverError:
    """The error for ``result``; a number that is not listed here is CUDA_ERROR_UNKNOWN."""
    known = CuResult(result) if result in CuResult._value2member_map_ else CuResult.UNKNOWN
    return DriverError(call, int(known), f"CUDA_ERROR_{known.name}", str(arguments), explanation, report)

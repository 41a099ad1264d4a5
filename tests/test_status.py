from __future__ import annotations

import pytest

from lowdnn import status
from lowdnn.status import EXCEPTIONS, BadParamError, LowdnnError, NotSupportedError, Status


def test_every_failure_has_one_exception() -> None:
    assert set(EXCEPTIONS) == set(Status) - {Status.SUCCESS}
    assert all(cls.status is code for code, cls in EXCEPTIONS.items())


@pytest.mark.parametrize("code", [code for code in Status if code >= 2000])
def test_exceptions_derive_from_their_category(code: Status) -> None:
    assert issubclass(EXCEPTIONS[code], EXCEPTIONS[code.category])
    assert code.category == code // 1000 * 1000


def test_codes_below_2000_are_their_own_category() -> None:
    assert Status.SUCCESS.category is Status.SUCCESS
    assert Status.RUNTIME_IN_PROGRESS.category is Status.RUNTIME_IN_PROGRESS


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (status.BadParamError, ValueError),
        (status.OutOfBoundError, IndexError),
        (status.AttributeTypeError, TypeError),
        (status.NotSupportedError, NotImplementedError),
        (status.HostAllocationFailedError, MemoryError),
        (status.DeviceAllocationFailedError, MemoryError),
        (status.ExecutionFailedError, RuntimeError),
    ],
)
def test_exceptions_are_also_what_python_would_raise(error: type[LowdnnError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


def test_message_form() -> None:
    error = BadParamError.at("tensor 'x'.dims", expected="extents >= 0", got=[1, -2], hint="fix it")
    assert str(error) == "BAD_PARAM tensor 'x'.dims: expected extents >= 0, got [1, -2]; fix it"
    assert str(NotSupportedError.at("a.b", expected=1, got=2)) == "NOT_SUPPORTED a.b: expected 1, got 2"
    assert error.category is Status.BAD_PARAM


def test_names_and_aliases_are_cudnn_s() -> None:
    assert Status(3007).c_name == "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"
    assert Status.ARCH_MISMATCH is Status.NOT_SUPPORTED_ARCH_MISMATCH
    assert Status.EXECUTION_FAILED_CURAND == 5004

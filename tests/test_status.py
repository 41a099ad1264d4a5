from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest

from lowdnn import status
from lowdnn.driver.base import DriverError
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
        (status.LowdnnError, RuntimeError),
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


def every_error() -> list[LowdnnError]:
    """One error of each class that derives from LowdnnError, wherever it is declared."""
    classes: list[type[LowdnnError]] = [LowdnnError]
    for cls in classes:
        classes += cls.__subclasses__()
    plain: list[LowdnnError] = [cls.at("a.b", expected=1, got=2) for cls in classes if not issubclass(cls, DriverError)]
    report = {"kind": "out-of-bounds", "block": (0, 1, 2)}
    return [*plain, *(DriverError("cuX", result, "N", "1, 2", "because", report) for result in (1, 2, 218, 700))]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_errors_are_pickled_and_copied_unchanged(error: LowdnnError) -> None:
    error.add_note("noted")
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for found in (*copies, copy.copy(error), copy.deepcopy(error)):
        assert type(found) is type(error)
        assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
        assert (found.status, getattr(found, "msg", "")) == (error.status, getattr(error, "msg", ""))


def raising(result: int) -> None:
    raise DriverError("cuX", result, "CUDA_ERROR_Y", "4", "why", {"kind": "k"})


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_errors_come_back_from_a_pool(start: str) -> None:
    with multiprocessing.get_context(start).Pool(1) as pool:
        for result in (2, 700):
            with pytest.raises(DriverError, match=r"cuX\(4\): CUDA_ERROR_Y") as caught:
                pool.apply_async(raising, (result,)).get(timeout=60)
            assert (caught.value.result, caught.value.report) == (result, {"kind": "k"})
            assert isinstance(caught.value, MemoryError) is (result == 2)

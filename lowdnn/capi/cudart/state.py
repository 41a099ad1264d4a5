"""The state of the stand-in: the emulated driver, and the last error of each thread."""

from __future__ import annotations

import ctypes
import threading
from typing import Final, cast

from lowdnn.capi.cudart.referenced import UserObjects
from lowdnn.capi.state import State
from lowdnn.driver.base import DriverError
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.results import CuResult
from lowdnn.runtime.context import Context
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError

#: The device that every thread has: the first of the emulated driver.
DEVICE: Final = 0


class LastError(threading.local):
    """code: the cudaError_t of the thread's last failed call; reading sets it to 0.  text: the failure's message."""

    def __init__(self) -> None:
        self.code = 0
        self.text_of = 0
        self.text = ctypes.create_string_buffer(1)

    def remember(self, code: int, text: str) -> None:
        self.code = self.text_of = code
        self.text = ctypes.create_string_buffer(text.encode(errors="backslashreplace"))


class RuntimeState:
    """last_error: the last error of the calling thread. counts: numbers of calls of the runtime's functions.
    user_objects: the objects to which the program has references.
    """

    def __init__(self, state: State) -> None:
        self.last_error = LastError()
        self.user_objects = UserObjects()
        self.counts = state.counts
        self._state = state
        self._lock = threading.Lock()
        self._context: Context | None = None

    def check_device(self) -> None:
        """Raises NotSupportedError for another device than the emulated one: CUDA's own runtime manages its memory."""
        kind = self._state.device_kind
        if kind != "emulated":
            hint = "let CUDA's own runtime be loaded"
            raise NotSupportedError.at("install_runtime.driver", expected="emulated", got=kind, hint=hint)

    @property
    def driver(self) -> EmulatedDriver:
        """The driver, opened at the first call as in CUDA's own runtime: a child that is forked before has its own."""
        self.check_device()
        return cast(EmulatedDriver, self._state.driver)

    def entered(self) -> EmulatedDriver:
        """The driver, with the primary context current in the calling thread, as every call of a runtime has it."""
        driver = self.driver
        if not driver.context_get_current():
            with self._lock:
                if self._context is None:
                    self._context = Context(driver, DEVICE)
            driver.context_set_current(self._context.handle)
        return driver

    def close(self) -> None:
        """Gives the primary context back; memory that was not freed is lost where no handle holds it."""
        with self._lock:
            held, self._context = self._context, None
        if held is not None:
            held.close()


def code_of(error: BaseException) -> int:
    """The cudaError_t of an exception; runtime and driver share the numbers."""
    if isinstance(error, DriverError):
        return error.result
    if isinstance(error, NotSupportedError):
        return CuResult.NOT_SUPPORTED
    if isinstance(error, BadParamError):
        return CuResult.INVALID_VALUE
    return CuResult.OUT_OF_MEMORY if isinstance(error, MemoryError) else CuResult.UNKNOWN


def text_of(name: str, error: BaseException) -> str:
    """The text that cudaGetErrorString gives for a failure of the function ``name``."""
    return f"{name}: {error}" if isinstance(error, LowdnnError) else f"{name}: {type(error).__name__}: {error}"

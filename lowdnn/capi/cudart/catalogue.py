"""The library libcudart.so.13 of the stand-in: its functions, and what stands behind them."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from lowdnn.capi.cudart import devices, graphs, memory, streams, user_objects
from lowdnn.capi.cudart.state import RuntimeState, code_of, text_of
from lowdnn.capi.errors import Call
from lowdnn.capi.prototypes import prototype
from lowdnn.capi.signatures import Function, read_functions
from lowdnn.capi.stubs.fallbacks import Action, Fallback, Fallbacks
from lowdnn.capi.stubs.interface import Interface
from lowdnn.capi.stubs.plain import MODULES, PlainStubs
from lowdnn.driver.results import CuResult
from lowdnn.status import NotSupportedError

#: The SONAME, and the version of the names.
RUNTIME_NAME: Final = "libcudart.so.13"

_REFUSED_HEADER = "refused"
_FALLBACKS = Fallbacks(
    {"cudaGetErrorString": Fallback(Action.RETURN_ADDRESS, 0)},
    Fallback(Action.RETURN_NUMBER, CuResult.NOT_INITIALIZED),
    b"lowdnn.capi: nothing stands behind this library; call lowdnn.capi.install_runtime()\0",
)

CALLS: Mapping[str, Call] = {**devices.CALLS, **memory.CALLS, **streams.CALLS, **graphs.CALLS, **user_objects.CALLS}


@cache
def functions() -> Mapping[str, Function]:
    """The functions by name."""
    return read_functions("cudart.txt")


@cache
def cudart() -> Interface:
    """The interface of libcudart.so.13."""
    return Interface(RUNTIME_NAME, tuple(sorted(functions())), "lowdnn_cudart_table", _FALLBACKS)


def runtime_library(machine: str | None = None) -> bytes:
    """The file of the library for ``machine``, this computer's if left out."""
    return cudart().written(PlainStubs(MODULES[machine or platform.machine()], _FALLBACKS))


def callbacks(state: RuntimeState) -> dict[str, Any]:
    """A C function pointer for each function."""
    errors: dict[str, Callable[..., int]] = {
        "cudaGetErrorString": _error_strings(state),
        "cudaGetLastError": _last_error(state, is_reset=True),
        "cudaPeekAtLastError": _last_error(state, is_reset=False),
    }
    return {
        name: prototype(function)(errors.get(name) or _guarded(name, _call(function), state))
        for name, function in functions().items()
    }


def _call(function: Function) -> Call:
    return _refused(function.name) if function.header == _REFUSED_HEADER else CALLS[function.name]


def _refused(name: str) -> Call:
    def refuse(_: RuntimeState, *arguments: object) -> None:
        hint = "run kernels of your own on a GPU"
        raise NotSupportedError.at(name, expected="a call that the emulated device has", got="another one", hint=hint)

    return refuse


def _guarded(name: str, call: Callable[..., object], state: RuntimeState) -> Callable[..., int]:
    """The function in Python behind the C function ``name``: it returns a cudaError_t and never raises."""
    count = state.counts.counter(name)

    def returned(*arguments: Any) -> int:
        try:
            count()
            call(state, *arguments)
        except BaseException as error:
            code = code_of(error)
            state.last_error.remember(code, text_of(name, error))
            return code
        return CuResult.SUCCESS

    return returned


def _last_error(state: RuntimeState, is_reset: bool) -> Callable[[], int]:
    """The thread's last error. is_reset: whether it is then cleared."""

    def last_error() -> int:
        code = state.last_error.code
        if is_reset:
            state.last_error.code = CuResult.SUCCESS
        return code

    return last_error


def _error_strings(state: RuntimeState) -> Callable[[int], int]:
    """The address of the message of the thread's last error, if that has this number; otherwise of the number's name.

    The text of an error stays until the thread's next one.
    """
    keep = ctypes.CDLL(None).strdup
    keep.restype, keep.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    names: dict[int, int] = {int(result): keep(_words(result).encode()) for result in CuResult}
    unknown = names[CuResult.UNKNOWN]

    def error_string(code: int) -> int:
        last = state.last_error
        if code and code == last.text_of:
            return ctypes.addressof(last.text)
        return names.get(code, unknown)

    return error_string


def _words(result: CuResult) -> str:
    return "no error" if result is CuResult.SUCCESS else result.name.lower().replace("_", " ")

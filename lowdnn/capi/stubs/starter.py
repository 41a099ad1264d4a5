"""The library starts Python at the first call of a function, and connects itself to lowdnn.

A process that has an interpreter uses that one. The first thread starts it; others wait. A call out of the starting
thread itself, and every call after a start that failed, gets what the stub answers alone. The steps are the same on
each processor, whose ``Code`` encodes them.
Source: Python/C API Reference Manual; dlopen(3) and dlsym(3).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Final, Protocol

#: Functions of the C library; the loader writes their addresses into slots of these numbers.
IMPORTS: Final = ("dlopen", "dlsym", "sched_yield")
#: Functions of Python, found at the start.
PYTHON: Final = (
    "Py_IsInitialized",
    "Py_SetProgramName",
    "Py_InitializeEx",
    "PyRun_SimpleString",
    "PyEval_SaveThread",
    "PyGILState_Ensure",
    "PyGILState_Release",
)
#: 0: not started; ``_DONE``; else the address of the starting thread's control block.
_STATE: Final = "state"
_DONE: Final = 1
_SLOTS: Final = (*IMPORTS, _STATE, *PYTHON)
SLOT_BYTES: Final = 8
SLOTS_BYTES: Final = SLOT_BYTES * len(_SLOTS)
#: The state as the library exports it, and its offset in the slots.
STATE_NAME: Final = "lowdnn_capi_start"
STATE_OFFSET: Final = SLOT_BYTES * _SLOTS.index(_STATE)

_NOW_AND_GLOBAL: Final = 0x102


class Register(Enum):
    FIRST = auto()
    """The first argument of a call; it may be the same as RESULT."""
    SECOND = auto()
    RESULT = auto()
    """The register that holds what a call returned."""
    HELD = auto()
    """A value that calls keep."""
    THREAD = auto()
    """The address of the calling thread's control block, from ``save`` on."""


class Code(Protocol):
    """Instructions of one processor, one after the other. Slots and constants have 8 bytes and are named."""

    def save(self) -> None:
        """Begins a function that keeps every register that may hold arguments."""

    def restore(self) -> None:
        """Ends the function: all those registers are as they were."""

    def copy(self, to: Register, source: Register) -> None: ...

    def number(self, to: Register, value: int) -> None:
        """A number of 16 bits."""

    def address(self, to: Register, constant: str) -> None:
        """The address of a constant."""

    def load(self, to: Register, slot: str) -> None:
        """The content of a slot; what was stored before it is seen afterwards."""

    def store(self, slot: str, source: Register) -> None:
        """Other threads that load it see what was stored before."""

    def claim(self, slot: str, label: str) -> None:
        """Writes THREAD to a slot that is 0, in one step for all threads, and jumps. Changes RESULT."""

    def truncate(self, register: Register) -> None:
        """A C ``int`` may have anything in the upper half of its register, which becomes 0."""

    def call(self, slot: str) -> None:
        """Calls the function whose address the slot has."""

    def jump(self, label: str) -> None: ...

    def jump_if(self, register: Register, label: str, *, equals: Register | int) -> None:
        """Compares 64 bits, with a number of 7 bits or with another register."""

    def label(self, name: str) -> None: ...

    def content(self) -> bytes: ...


def forbid_start(library: ctypes.CDLL) -> None:
    """No call starts Python from now on, also after the end of the interpreter that the library is connected to."""
    with suppress(ValueError):  # a library that starts none
        ctypes.c_uint64.in_dll(library, STATE_NAME).value = _DONE


def slot_addresses(slots: int) -> Mapping[str, int]:
    """The slots by name, in ``SLOTS_BYTES`` zeroed bytes at the address ``slots``."""
    return {name: slots + SLOT_BYTES * index for index, name in enumerate(_SLOTS)}


def starter(code: Code) -> bytes:
    """The function ``start``. It keeps every register that holds arguments.

    The constants of ``code`` are ``library`` (the file of libpython), ``program`` (in wide characters, the Python whose
    packages are taken), ``code`` (what it runs), and the names of ``PYTHON``.
    """
    code.save()
    _enter_once(code)
    _find_python(code)
    _run_python(code)
    code.label("done")
    code.number(Register.RESULT, _DONE)
    code.store(_STATE, Register.RESULT)
    code.label("out")
    code.restore()
    return code.content()


def _enter_once(code: Code) -> None:
    code.claim(_STATE, "first")
    code.label("wait")
    code.load(Register.RESULT, _STATE)
    code.jump_if(Register.RESULT, "out", equals=_DONE)
    code.jump_if(Register.RESULT, "out", equals=Register.THREAD)
    code.call("sched_yield")
    code.jump("wait")
    code.label("first")


def _find_python(code: Code) -> None:
    code.number(Register.HELD, 0)  # for dlsym: among all that is loaded
    _look_up(code, PYTHON[0])
    code.jump_if(Register.RESULT, "load", equals=0)
    code.jump("found")
    code.label("load")
    code.address(Register.FIRST, "library")
    code.number(Register.SECOND, _NOW_AND_GLOBAL)
    code.call("dlopen")
    code.jump_if(Register.RESULT, "done", equals=0)
    code.copy(Register.HELD, Register.RESULT)
    code.label("found")
    for name in PYTHON:
        _look_up(code, name)
        code.jump_if(Register.RESULT, "done", equals=0)
        code.store(name, Register.RESULT)


def _look_up(code: Code, name: str) -> None:
    code.copy(Register.FIRST, Register.HELD)
    code.address(Register.SECOND, name)
    code.call("dlsym")


def _run_python(code: Code) -> None:
    code.call("Py_IsInitialized")
    code.truncate(Register.RESULT)
    code.jump_if(Register.RESULT, "new", equals=0)
    code.call("PyGILState_Ensure")
    code.copy(Register.HELD, Register.RESULT)
    _run_text(code)
    code.copy(Register.FIRST, Register.HELD)
    code.call("PyGILState_Release")
    code.jump("done")
    code.label("new")
    code.address(Register.FIRST, "program")
    code.call("Py_SetProgramName")
    code.number(Register.FIRST, 0)  # no handlers of signals
    code.call("Py_InitializeEx")
    _run_text(code)
    code.call("PyEval_SaveThread")


def _run_text(code: Code) -> None:
    code.address(Register.FIRST, "code")
    code.call("PyRun_SimpleString")

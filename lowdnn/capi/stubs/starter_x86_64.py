"""Code for x86-64 by which the library starts Python at the first call of a function, and connects itself to lowdnn.

A process that has an interpreter uses that one. The first thread starts it; others wait. A call out of the starting
thread itself, and every call after a start that failed, gets what the stub answers alone.
Source: AMD64 Architecture Programmer's Manual, volume 3; System V ABI, AMD64 supplement; Python/C API Reference Manual.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

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
#: 0: not started; 1: done; else the address of the starting thread's control block.
_STATE: Final = "state"
_SLOTS: Final = (*IMPORTS, _STATE, *PYTHON)
SLOT_BYTES: Final = 8
SLOTS_BYTES: Final = SLOT_BYTES * len(_SLOTS)

_NOW_AND_GLOBAL = 0x102


def starter(at: int, slots: int, constants: Mapping[str, int]) -> bytes:
    """The code of ``start`` at address ``at``. It keeps every register that holds arguments.

    slots: the address of ``SLOTS_BYTES`` zeroed bytes.  constants: the addresses of texts by name. These are
    ``library`` (the file of libpython), ``program`` (in wide characters, the Python whose packages are taken), ``code``
    (what it runs), and the names of ``PYTHON``.
    """
    slot = {name: slots + SLOT_BYTES * index for index, name in enumerate(_SLOTS)}
    code = _Code(at, slot, constants)
    _save(code)
    _enter_once(code)
    _find_python(code)
    _run_python(code)
    code.label("done")
    code.add("48c705", slot=_STATE, then="01000000")  # mov qword [state], 1
    code.label("out")
    _restore(code)
    return code.content()


class _Code:
    """Instructions one after the other, with jumps to labels and references to slots and constants."""

    def __init__(self, at: int, slots: Mapping[str, int], constants: Mapping[str, int]) -> None:
        self._at = at
        self._slots, self._constants = slots, constants
        self._bytes = bytearray()
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def add(self, opcode: str, *, slot: str = "", constant: str = "", then: str = "") -> None:
        """``opcode`` in hexadecimal, the distance to a slot or constant if one is named, and what follows that."""
        self._bytes += bytes.fromhex(opcode)
        if slot or constant:
            target = self._slots[slot] if slot else self._constants[constant]
            end = self._at + len(self._bytes) + 4 + len(then) // 2
            self._bytes += struct.pack("<i", target - end) + bytes.fromhex(then)

    def call(self, name: str) -> None:
        self.add("ff15", slot=name)  # call [slot]

    def jump(self, opcode: str, label: str) -> None:
        """A jump with a distance of 32 bits."""
        self._bytes += bytes.fromhex(opcode) + bytes(4)
        self._jumps.append((len(self._bytes), label))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._bytes)

    def content(self) -> bytes:
        for end, label in self._jumps:
            self._bytes[end - 4 : end] = struct.pack("<i", self._labels[label] - end)
        return bytes(self._bytes)


_JUMP, _IF_ZERO, _IF_NOT_ZERO = "e9", "0f84", "0f85"
_TEST_RAX = "4885c0"
#: Displacements from rsp, as ModRM, SIB and byte of movups for xmm0 to xmm7.
_VECTORS: Final[Sequence[str]] = [f"{0x44 + 8 * index:02x}24{16 * index:02x}" for index in range(8)]


def _save(code: _Code) -> None:
    code.add("554889e5")  # push rbp; mov rbp, rsp
    code.add("5756525141504151534154")  # push rdi, rsi, rdx, rcx, r8, r9, rbx, r12
    code.add("4881ec800000004883e4f0")  # sub rsp, 128; and rsp, -16
    for place in _VECTORS:
        code.add(f"0f11{place}")  # movups [rsp + 16 i], xmm i


def _restore(code: _Code) -> None:
    for place in _VECTORS:
        code.add(f"0f10{place}")  # movups xmm i, [rsp + 16 i]
    code.add("488d65c0")  # lea rsp, [rbp - 64]
    code.add("415c5b41594158595a5e5f5dc3")  # pop r12, rbx, r9, r8, rcx, rdx, rsi, rdi, rbp; ret


def _enter_once(code: _Code) -> None:
    code.add("64488b1c2500000000")  # mov rbx, fs:[0]
    code.add("31c0")  # xor eax, eax
    code.add("f0480fb11d", slot=_STATE)  # lock cmpxchg [state], rbx
    code.jump(_IF_ZERO, "first")
    code.label("wait")
    code.add("488b05", slot=_STATE)  # mov rax, [state]
    code.add("4883f801")  # cmp rax, 1
    code.jump(_IF_ZERO, "out")
    code.add("4839d8")  # cmp rax, rbx
    code.jump(_IF_ZERO, "out")
    code.call("sched_yield")
    code.jump(_JUMP, "wait")
    code.label("first")


def _find_python(code: _Code) -> None:
    code.add("31ff")  # xor edi, edi: among all that is loaded
    code.add("488d35", constant=PYTHON[0])  # lea rsi, [name]
    code.call("dlsym")
    code.add("4531e4")  # xor r12d, r12d
    code.add(_TEST_RAX)
    code.jump(_IF_NOT_ZERO, "found")
    code.add("488d3d", constant="library")  # lea rdi, [library]
    code.add("be" + struct.pack("<I", _NOW_AND_GLOBAL).hex())  # mov esi, mode
    code.call("dlopen")
    code.add(_TEST_RAX)
    code.jump(_IF_ZERO, "done")
    code.add("4989c4")  # mov r12, rax
    code.label("found")
    for name in PYTHON:
        code.add("4c89e7")  # mov rdi, r12
        code.add("488d35", constant=name)  # lea rsi, [name]
        code.call("dlsym")
        code.add(_TEST_RAX)
        code.jump(_IF_ZERO, "done")
        code.add("488905", slot=name)  # mov [slot], rax


def _run_python(code: _Code) -> None:
    code.call("Py_IsInitialized")
    code.add("85c0")  # test eax, eax
    code.jump(_IF_NOT_ZERO, "running")
    code.add("488d3d", constant="program")  # lea rdi, [program]
    code.call("Py_SetProgramName")
    code.add("31ff")  # xor edi, edi: no handlers of signals
    code.call("Py_InitializeEx")
    code.add("488d3d", constant="code")  # lea rdi, [code]
    code.call("PyRun_SimpleString")
    code.call("PyEval_SaveThread")
    code.jump(_JUMP, "done")
    code.label("running")
    code.call("PyGILState_Ensure")
    code.add("4189c4")  # mov r12d, eax
    code.add("488d3d", constant="code")  # lea rdi, [code]
    code.call("PyRun_SimpleString")
    code.add("4489e7")  # mov edi, r12d
    code.call("PyGILState_Release")

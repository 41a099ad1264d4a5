"""Handles, streams, errors, versions and the log, as C callers see them."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from typing import Any

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.capi import errors
from lowdnn.capi.calls.catalogue import CALLS, support
from lowdnn.capi.loading import Binding
from lowdnn.capi.log_callback import CALLBACK, LogCallback
from lowdnn.capi.memory import Address
from lowdnn.capi.prototypes import is_opaque
from lowdnn.capi.refusals import reason_of
from lowdnn.capi.signatures import UNDOCUMENTED, exported_names, functions
from lowdnn.capi.state import State
from lowdnn.enums import ErrQueryMode, Severity
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import NotSupportedError, Status
from tests.support.capi import Caller

#: Functions that return no status.
WITHOUT_STATUS = {name for name, function in functions().items() if function.result.base != "Status"}


def test_a_handles_life(caller: Caller, binding: Binding, device: Runtime) -> None:
    handle = caller.handle()
    assert isinstance(binding.state.objects.get(handle, Handle, ""), Handle)
    with Stream.create(device.context) as stream:
        caller.call("cudnnSetStream", handle, stream.handle)
        assert caller.output("cudnnGetStream", handle) == stream.handle
        caller.call("cudnnSetStream", handle, 0)
    assert caller.output("cudnnGetStream", handle) is None
    for mode in ErrQueryMode:
        status = ctypes.c_int(-1)
        caller.call("cudnnQueryRuntimeError", handle, ctypes.byref(status), int(mode), 0)
        assert status.value == Status.SUCCESS
    caller.call("cudnnDestroy", handle)
    for call in ("cudnnDestroy", "cudnnSetStream"):
        assert caller.status(call, handle, 0) is Status.BAD_PARAM
        assert (
            f"{call}.handle: expected a pointer to a Handle, got {handle:#x}, where nothing is" in caller.last_error()
        )
    assert caller.handle() != handle


def test_versions(caller: Caller) -> None:
    library = caller.library
    assert (library.cudnnGetVersion(), library.cudnnGetCudartVersion()) == (92800, 13000)
    assert library.cudnnGetMaxDeviceVersion() == 1210
    assert [caller.output("cudnnGetProperty", kind, kind=ctypes.c_int) for kind in range(3)] == [9, 28, 0]
    assert caller.status("cudnnGetProperty", 3, None) is Status.BAD_PARAM
    assert "cudnnGetProperty.type: expected 0, 1 or 2, got 3" in caller.last_error()
    for part in ("Graph", "Ops", "Cnn", "Adv", "SubquadraticOps"):
        caller.call(f"cudnn{part}VersionCheck")


def test_error_strings(caller: Caller) -> None:
    text = caller.library.cudnnGetErrorString
    text.restype = ctypes.c_char_p
    assert [text(int(status)) for status in Status] == [status.c_name.encode() for status in Status]
    assert text(77) == text(-1) == b"CUDNN_STATUS_UNKNOWN"


def test_null_pointers(caller: Caller) -> None:
    """Every call that works, with zeros alone: no call takes a NULL handle, descriptor or output."""
    destroys = {name for name in CALLS if name.startswith("cudnnDestroy") and name != "cudnnDestroy"}
    takes_null = {"cudnnSetCallback", *(name for name in CALLS if name.endswith("VersionCheck"))}
    for name in destroys:
        caller.call(name, 0)
    for name in sorted(CALLS.keys() - takes_null - destroys):
        status = caller.status(name, *[0] * len(functions()[name].arguments))
        assert status is Status.BAD_PARAM_NULL_POINTER, f"{name}: {status.name} {caller.last_error()}"
        assert caller.last_error().startswith(f"{name}: BAD_PARAM_NULL_POINTER {name}.")


def test_calls_match_their_signatures(binding: Binding) -> None:
    for name, call in CALLS.items():
        count = call.__code__.co_argcount  # type: ignore[attr-defined]
        assert count == 1 + len(functions()[name].arguments), name


def test_functions_that_are_not_there_refuse_by_name(caller: Caller) -> None:
    missing = set(exported_names()) - set(CALLS) - WITHOUT_STATUS
    assert missing >= set(UNDOCUMENTED)
    known = support()
    assert known.keys() == functions().keys()
    assert {name for name, reason in known.items() if reason} == missing - set(UNDOCUMENTED)
    for name in missing:
        assert caller.status(name) is Status.NOT_SUPPORTED
        reason = known.get(name) or reason_of(name)
        text = f"{name}: NOT_SUPPORTED {name}: expected a function that lowdnn has, got one for {reason}"
        assert caller.last_error() == text
    assert known["cudnnGnnAggSimpleBackward"] == "graph neural networks"


def test_the_last_error_is_the_threads_own_and_is_cut_off(caller: Caller) -> None:
    assert caller.last_error() == ""
    caller.status("cudnnDestroy", 0)
    mine = caller.last_error()
    assert "cudnnDestroy.handle: expected a pointer, got NULL" in mine
    seen: list[str] = []

    def other() -> None:
        seen.append(caller.last_error())
        caller.status("cudnnSetStream", 16, 0)
        seen.append(caller.last_error())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen[0] == ""
    assert "cudnnSetStream.handle" in seen[1]
    caller.call("cudnnGraphVersionCheck")
    assert caller.last_error() == mine, "a call that succeeds leaves the last error"
    assert caller.last_error(10) == mine[:9]
    caller.library.cudnnGetLastErrorString(None, ctypes.c_size_t(5))


def test_nothing_that_a_call_raises_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    raised: list[BaseException] = [KeyError("x"), MemoryError(), KeyboardInterrupt(), SystemExit(3), RecursionError()]
    state = State()

    def call(_: State) -> None:
        raise raised[0]

    behind = errors.guarded("cudnnX", call, state)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(behind)
    while raised:
        is_memory = isinstance(raised[0], MemoryError)
        expected = Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED if is_memory else Status.INTERNAL_ERROR
        assert function() == expected
        assert state.last_error.message.startswith(f"cudnnX: INTERNAL_ERROR {type(raised[0]).__name__}".encode())
        raised.pop(0)

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    raised.append(Unprintable())
    assert function() == Status.INTERNAL_ERROR
    raised[0] = NotSupportedError("what\udc80ever")
    assert function() == Status.NOT_SUPPORTED
    assert state.last_error.message == b"cudnnX: NOT_SUPPORTED what\\udc80ever"
    assert capsys.readouterr().err == "", "ctypes reports what escapes"


def test_the_log(caller: Caller) -> None:
    told: list[tuple[Any, ...]] = []

    @CALLBACK
    def log(severity: int, user_data: Address, record: Any, message: bytes) -> None:
        found = record.contents
        told.append((severity, user_data, found.status, found.cudnn_version, found.pid, found.tid, message))

    function = ctypes.cast(log, ctypes.c_void_p).value
    caller.call("cudnnSetCallback", 1 << Severity.ERROR, 99, function)
    assert caller.status("cudnnDestroy", 0) is Status.BAD_PARAM_NULL_POINTER
    caller.call("cudnnGraphVersionCheck")
    facts = (92800, os.getpid(), threading.get_native_id())
    assert told == [(Severity.ERROR, 99, 2002, *facts, caller.last_error().encode())]
    caller.call("cudnnSetCallback", 1 << Severity.INFO, 98, function)
    assert told.pop() == (Severity.INFO, 98, 0, *facts, b"cudnnSetCallback")
    caller.status("cudnnDestroy", 0)
    assert len(told) == 1
    mask, user_data, address = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
    caller.call("cudnnGetCallback", *map(ctypes.byref, (mask, user_data, address)))
    assert (mask.value, user_data.value, address.value) == (1 << Severity.INFO, 98, function)
    caller.call("cudnnSetCallback", 0, 0, 0)
    told.clear()
    caller.status("cudnnDestroy", 0)
    assert told == []


def test_another_thread_may_end_the_log_at_any_time() -> None:
    """The log that was asked whether it wants a message is the one that is told."""
    told: list[tuple[Any, ...]] = []

    class Log(LogCallback):
        def wants(self, severity: Severity) -> bool:
            state.log = LogCallback()  # as cudnnSetCallback with NULL, and its call would be of address 0
            return True

        def tell(self, *message: Any) -> None:
            told.append(message[:3])

    def call(_: State, status: Status) -> None:
        if status:
            raise NotSupportedError("no\udc80")

    state = State()
    behind = errors.guarded("cudnnX", call, state)
    for status in (Status.SUCCESS, Status.NOT_SUPPORTED):
        state.log = Log(mask=~0, function=1)
        assert behind(status) == status
    assert told == [
        (Severity.INFO, Status.SUCCESS, "cudnnX"),
        (Severity.ERROR, Status.NOT_SUPPORTED, "cudnnX: NOT_SUPPORTED no\udc80"),
    ]


def test_logs_of_threads_and_logs_that_raise(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, bytes]] = []
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)

    @CALLBACK
    def log(_: int, __: Address, record: Any, message: bytes) -> None:
        told.append((record.contents.tid, message))
        raise KeyError("of a log")

    expected: set[tuple[int, bytes]] = set()

    def fail(first: int) -> None:
        for pointer in range(first, first + 1600, 16):
            assert caller.status("cudnnSetStream", pointer, 0) is Status.BAD_PARAM
            expected.add((threading.get_native_id(), caller.last_error().encode()))

    caller.call("cudnnSetCallback", 1 << Severity.ERROR, 0, ctypes.cast(log, ctypes.c_void_p).value)
    threads = [threading.Thread(target=fail, args=(0x7000_0000 + 1600 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == len(raised) == len(expected) == 800
    assert set(told) == expected
    function = ctypes.cast(log, ctypes.c_void_p).value
    LogCallback(~0, 0, function or 0).tell(Severity.ERROR, Status.NOT_SUPPORTED, "no\udc80", 0.0)
    assert told[-1][1] == b"no\\udc80"


def test_random_pointers_are_refused(caller: Caller, binding: Binding) -> None:
    """Handles and descriptors that nobody returned; outputs are memory that the test owns. Streams are CUDA's."""
    rng = random.Random()
    handle = caller.handle()
    room = ctypes.create_string_buffer(1 << 12)
    bases = {name: {argument.type.base for argument in functions()[name].arguments} - {"Stream"} for name in CALLS}
    names = [name for name in CALLS if any(map(is_opaque, bases[name]))]
    for _ in range(2000):
        name = rng.choice([name for name in names if name not in ("cudnnSetCallback", "cudnnGetCallback")])
        kinds = [argument.type for argument in functions()[name].arguments]
        arguments: list[Any] = [
            room if kind.pointers else rng.choice((0, 8, handle + 8, 2**40)) if is_opaque(kind.base) else 1
            for kind in kinds
        ]
        status = caller.status(name, *arguments)
        # Creating needs no pointer to anything known, and destroying NULL does nothing.
        is_free = name.startswith(("cudnnCreate", "cudnnBackendCreate")) or arguments == [0]
        assert is_free or status.category is Status.BAD_PARAM, (name, arguments, status)
    assert isinstance(binding.state.objects.get(handle, Handle, ""), Handle)

"""Counts of calls by function: each call once, from any thread, whatever its status."""

from __future__ import annotations

import ctypes
import threading

from lowdnn.capi.loading import Binding
from tests.support.capi import Caller


def test_each_call_counts_once(caller: Caller, binding: Binding) -> None:
    counts = binding.state.counts
    assert counts.by_name() == {}
    handle = caller.handle()
    for _ in range(3):
        caller.status("cudnnSetStream", handle + 1, 0)
    caller.library.cudnnGetErrorString.restype = ctypes.c_char_p
    assert caller.library.cudnnGetErrorString(0) == b"CUDNN_STATUS_SUCCESS"
    assert "cudnnSetStream" in caller.last_error()
    caller.status("cudnnCTCLoss")
    expected = {
        "cudnnCTCLoss": 1,
        "cudnnCreate": 1,
        "cudnnGetErrorString": 1,
        "cudnnGetLastErrorString": 1,
        "cudnnSetStream": 3,
    }
    assert counts.by_name() == expected
    caller.call("cudnnDestroy", handle)
    assert counts.by_name() == expected | {"cudnnDestroy": 1}
    assert [*counts.by_name()] == sorted(counts.by_name())


def test_threads_lose_no_call(caller: Caller, binding: Binding) -> None:
    def work() -> None:
        for _ in range(2000):
            caller.library.cudnnGraphVersionCheck()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    readings = [binding.state.counts.by_name().get("cudnnGraphVersionCheck", 0) for _ in range(50)]
    for thread in threads:
        thread.join()
    assert readings == sorted(readings)
    assert binding.state.counts.by_name() == {"cudnnGraphVersionCheck": 8000}

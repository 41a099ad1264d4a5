"""Streams, captures and events."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from lowdnn.capi.cudart.state import RuntimeState
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, write_outputs, write_pointer
from lowdnn.driver.base import CaptureMode, EventFlags, StreamFlags
from lowdnn.status import BadParamError, NotSupportedError


class CaptureStatus(IntEnum):
    """cudaStreamCaptureStatus."""

    NONE = 0
    ACTIVE = 1


def create_stream(state: RuntimeState, stream: Address) -> None:
    create_stream_with(state, stream, StreamFlags.DEFAULT)


def create_stream_with(state: RuntimeState, stream: Address, flags: int) -> None:
    checked(stream, "cudaStreamCreate.pStream")
    if flags not in (*StreamFlags, 0):
        raise BadParamError.at("cudaStreamCreate.flags", expected="0 or 1", got=flags)
    write_pointer(stream, state.entered().stream_create(StreamFlags(flags)), "cudaStreamCreate.pStream")


def destroy_stream(state: RuntimeState, stream: Address) -> None:
    state.entered().stream_destroy(stream or 0)


def synchronize_stream(state: RuntimeState, stream: Address) -> None:
    state.entered().stream_synchronize(stream or 0)


def query_stream(state: RuntimeState, stream: Address) -> None:
    """Returns success, since the emulated device has always completed all work."""
    state.entered().stream_query(stream or 0)


def wait_event(state: RuntimeState, stream: Address, event: Address, flags: int) -> None:
    state.entered().stream_wait_event(stream or 0, event or 0)


def begin_capture(state: RuntimeState, stream: Address, mode: int) -> None:
    if mode not in (*CaptureMode,):
        raise BadParamError.at("cudaStreamBeginCapture.mode", expected="0 to 2", got=mode)
    state.entered().stream_begin_capture(stream or 0, CaptureMode(mode))


def end_capture(state: RuntimeState, stream: Address, graph: Address) -> None:
    checked(graph, "cudaStreamEndCapture.pGraph")
    write_pointer(graph, state.entered().stream_end_capture(stream or 0), "cudaStreamEndCapture.pGraph")


def is_capturing(state: RuntimeState, stream: Address, status: Address) -> None:
    write_outputs((status, "i", _capture_status(state, stream), "cudaStreamIsCapturing.pCaptureStatus"))


def capture_info(
    state: RuntimeState,
    stream: Address,
    status: Address,
    number: Address,
    graph: Address,
    dependencies: Address,
    edges: Address,
    count: Address,
) -> None:
    """Writes the status, a number of the capture and its graph, but not the nodes before the next one."""
    where = "cudaStreamGetCaptureInfo"
    found = state.entered().graph_calls.captured(stream or 0)
    if found and (dependencies or edges or count):
        expected = "NULL for a stream that is captured"
        raise NotSupportedError.at(f"{where}.dependencies_out", expected=expected, got="a pointer")
    write_outputs((status, "i", CaptureStatus.ACTIVE if found else CaptureStatus.NONE, f"{where}.captureStatus_out"))
    for address in (number, graph):
        if found and address:
            write_pointer(address, found, where)


def create_event(state: RuntimeState, event: Address) -> None:
    create_event_with(state, event, EventFlags.DEFAULT)


def create_event_with(state: RuntimeState, event: Address, flags: int) -> None:
    checked(event, "cudaEventCreate.event")
    if not 0 <= flags <= EventFlags.BLOCKING_SYNC | EventFlags.DISABLE_TIMING:
        raise BadParamError.at("cudaEventCreate.flags", expected="0 to 3", got=flags)
    write_pointer(event, state.entered().event_create(EventFlags(flags)), "cudaEventCreate.event")


def destroy_event(state: RuntimeState, event: Address) -> None:
    state.entered().event_destroy(event or 0)


def record_event(state: RuntimeState, event: Address, stream: Address) -> None:
    state.entered().event_record(event or 0, stream or 0)


def synchronize_event(state: RuntimeState, event: Address) -> None:
    state.entered().event_synchronize(event or 0)


def query_event(state: RuntimeState, event: Address) -> None:
    """Returns success; see ``query_stream``."""
    state.entered().event_query(event or 0)


def elapsed_time(state: RuntimeState, time_ms: Address, start: Address, end: Address) -> None:
    """Time on the device's own clock, which counts the work that it was given."""
    checked(time_ms, "cudaEventElapsedTime.ms")
    found = state.entered().event_elapsed_ms(start or 0, end or 0)
    write_outputs((time_ms, "f", found, "cudaEventElapsedTime.ms"))


def _capture_status(state: RuntimeState, stream: Address) -> CaptureStatus:
    return CaptureStatus.ACTIVE if state.entered().stream_is_capturing(stream or 0) else CaptureStatus.NONE


CALLS: Mapping[str, Call] = {
    "cudaStreamCreate": create_stream,
    "cudaStreamCreateWithFlags": create_stream_with,
    "cudaStreamDestroy": destroy_stream,
    "cudaStreamSynchronize": synchronize_stream,
    "cudaStreamQuery": query_stream,
    "cudaStreamWaitEvent": wait_event,
    "cudaStreamBeginCapture": begin_capture,
    "cudaStreamEndCapture": end_capture,
    "cudaStreamIsCapturing": is_capturing,
    "cudaStreamGetCaptureInfo": capture_info,
    "cudaEventCreate": create_event,
    "cudaEventCreateWithFlags": create_event_with,
    "cudaEventDestroy": destroy_event,
    "cudaEventRecord": record_event,
    "cudaEventSynchronize": synchronize_event,
    "cudaEventQuery": query_event,
    "cudaEventElapsedTime": elapsed_time,
}

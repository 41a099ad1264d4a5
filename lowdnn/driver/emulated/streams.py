"""Streams, captures and events of the emulated device: work runs at once, or is recorded.

The device runs everything in the order of the calls, so a stream needs no queue. A capturing stream appends its work to
a graph; a stream that waits for an event recorded in a capture joins it, as on a GPU. Each function raises DriverError
as the driver call does that it carries out.
"""

from __future__ import annotations

from lowdnn.driver.base import CaptureMode
from lowdnn.driver.emulated.graphs import Graph, OtherWork, Work
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.emulated.state import Capture, DeviceState, EventState, StreamState, find
from lowdnn.driver.results import CuResult

#: The handles of the legacy default stream.
_LEGACY = (0, 1)


def stream_of(state: DeviceState, stream: int) -> StreamState:
    return find(state.streams, "stream", stream)


def submit(state: DeviceState, stream: int, work: Work) -> None:
    """Runs the work, or appends it to the graph that the stream is captured to."""
    found = stream_of(state, stream)
    capture = found.capture
    if capture is not None:
        node = state.add(capture.graph.nodes, work)
        found.passed.add(node)
    elif isinstance(work, OtherWork):
        work.run()
        state.machine.clock.copy(work.size_bytes)
    else:
        state.machine.launch(work.function, work.config, work.parameters)


def begin_capture(state: DeviceState, stream: int, mode: CaptureMode) -> None:
    found = stream_of(state, stream)
    if stream in _LEGACY:
        raise driver_error("cuStreamBeginCapture", CuResult.STREAM_CAPTURE_UNSUPPORTED, f"{stream:#x}")
    if found.capture is not None:
        raise driver_error("cuStreamBeginCapture", CuResult.ILLEGAL_STATE, f"{stream:#x}", "a capture is under way")
    found.capture = Capture(Graph(), stream, mode)
    state.captures.append(found.capture)


def graph_handle(state: DeviceState, capture: Capture) -> int:
    """The handle of the graph that is captured."""
    if not capture.handle:
        capture.handle = state.add(state.graphs, capture.graph)
    return capture.handle


def end_capture(state: DeviceState, stream: int) -> int:
    """Ends the capture for every stream that has joined it; returns the graph."""
    capture = stream_of(state, stream).capture
    if capture is None or capture.origin != stream:
        raise driver_error("cuStreamEndCapture", CuResult.ILLEGAL_STATE, f"{stream:#x}")
    is_joined = stream_of(state, stream).passed == set(capture.graph.nodes)
    handle = graph_handle(state, capture)
    _forget(state, capture)
    if capture.invalid:
        raise driver_error("cuStreamEndCapture", CuResult.STREAM_CAPTURE_INVALIDATED, f"{stream:#x}")
    if not is_joined:
        explanation = "another stream of the capture has work that the first one has not waited for"
        raise driver_error("cuStreamEndCapture", CuResult.STREAM_CAPTURE_UNJOINED, f"{stream:#x}", explanation)
    state.graphs[handle] = capture.graph
    return handle


def destroy_stream(state: DeviceState, stream: int) -> None:
    """Ends a stream, and with it a capture that began there."""
    capture = find(state.streams, "cuStreamDestroy", stream).capture
    if capture is not None and capture.origin == stream:
        _forget(state, capture)
    del state.streams[stream]


def _forget(state: DeviceState, capture: Capture) -> None:
    state.captures.remove(capture)
    state.graphs.pop(capture.handle, None)
    for joined in state.streams.values():
        if joined.capture is capture:
            joined.capture, joined.passed = None, set()


def refuse_in_capture(capture: Capture | None, call: str) -> None:
    """Breaks the capture, if there is one, with a call that cannot be part of it."""
    if capture is not None:
        capture.invalid = True
        raise driver_error(call, CuResult.STREAM_CAPTURE_UNSUPPORTED, explanation="a stream is being captured")


def refuse_in_any_capture(state: DeviceState, call: str) -> None:
    """As above, for a call with an effect outside its stream: only relaxed captures allow it."""
    strict = (capture for capture in state.captures if capture.mode is not CaptureMode.RELAXED)
    refuse_in_capture(next(strict, None), call)


def check_stream(state: DeviceState, stream: int, call: str) -> None:
    """Refuses to ask or to wait for a stream that is captured, or for any while one is; all work is done."""
    refuse_in_capture(stream_of(state, stream).capture, call)
    refuse_in_any_capture(state, call)


def check_event(state: DeviceState, event: int, call: str) -> None:
    """Refuses to ask or to wait for an event of a capture, or for any while a stream is captured; all work is done."""
    found = find(state.events, call, event)
    if found.capture in state.captures:
        found.capture.invalid = True
    _refuse_captured(state, found, call)
    refuse_in_any_capture(state, call)


def wait_event(state: DeviceState, stream: int, event: int) -> None:
    """A stream that waits for an event of a capture joins it."""
    waited, waiting = find(state.events, "cuStreamWaitEvent", event), stream_of(state, stream)
    if waited.capture in state.captures:
        waiting.capture = waited.capture
        waiting.passed |= waited.passed
    else:
        _refuse_captured(state, waited, "cuStreamWaitEvent")


def record_event(state: DeviceState, event: int, stream: int) -> None:
    recorded, recording = find(state.events, "cuEventRecord", event), stream_of(state, stream)
    recorded.capture, recorded.passed = recording.capture, frozenset(recording.passed)
    if recorded.capture is None:
        recorded.time_ns = state.machine.clock.record_event()


def elapsed_ms(state: DeviceState, start: int, end: int) -> float:
    """Time between two events on the device's clock."""
    call = "cuEventElapsedTime"
    first, last = (find(state.events, call, event) for event in (start, end))
    for one in (first, last):
        _refuse_captured(state, one, call)
    if not first.timed or not last.timed or first.time_ns is None or last.time_ns is None:
        raise driver_error(call, CuResult.INVALID_HANDLE, explanation="event not recorded, or untimed")
    return (last.time_ns - first.time_ns) * 1e-6


def _refuse_captured(state: DeviceState, event: EventState, call: str) -> None:
    """An event that was recorded in a capture tells nothing outside of it."""
    if event.capture is not None:
        result = CuResult.CAPTURED_EVENT if event.capture in state.captures else CuResult.INVALID_VALUE
        raise driver_error(call, result, explanation="the event was last recorded in a capture")

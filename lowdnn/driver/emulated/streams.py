"""Streams, captures and events of the emulated device: work runs at once, or is recorded.

The device runs everything in the order of the calls, so a stream needs no queue. A capturing stream appends its work to
a graph; a stream that waits for an event recorded in a capture joins it, as on a GPU. Each function raises DriverError
as the driver call does that it carries out.
"""

from __future__ import annotations

from lowdnn.driver.base import CaptureMode
from lowdnn.driver.emulated.graphs import Graph, OtherWork, Work
from lowdnn.driver.emulated.results import CuResult, driver_error
from lowdnn.driver.emulated.state import Capture, DeviceState, StreamState, find


def stream_of(state: DeviceState, stream: int) -> StreamState:
    return find(state.streams, "stream", stream)


def submit(state: DeviceState, stream: int, work: Work) -> None:
    """Runs the work, or appends it to the graph that the stream is captured to."""
    capture = stream_of(state, stream).capture
    if capture is not None:
        state.add(capture.graph.nodes, work)
    elif isinstance(work, OtherWork):
        work.run()
        state.machine.clock.copy(work.size_bytes)
    else:
        state.machine.launch(work.function, work.config, work.parameters)


def begin_capture(state: DeviceState, stream: int, mode: CaptureMode) -> None:
    found = stream_of(state, stream)
    if stream == 0 or found.capture is not None:
        raise driver_error("cuStreamBeginCapture", CuResult.STREAM_CAPTURE_UNSUPPORTED, f"{stream:#x}")
    found.capture = Capture(Graph(), stream, mode)
    state.captures.append(found.capture)


def end_capture(state: DeviceState, stream: int) -> Graph:
    """Ends the capture for every stream that has joined it."""
    capture = stream_of(state, stream).capture
    if capture is None or capture.origin != stream:
        raise driver_error("cuStreamEndCapture", CuResult.ILLEGAL_STATE, f"{stream:#x}")
    state.captures.remove(capture)
    for joined in state.streams.values():
        if joined.capture is capture:
            joined.capture = None
    if capture.invalid:
        raise driver_error("cuStreamEndCapture", CuResult.STREAM_CAPTURE_INVALIDATED, f"{stream:#x}")
    return capture.graph


def refuse_in_capture(capture: Capture | None, call: str) -> None:
    """Breaks the capture, if there is one, with a call that cannot be part of it."""
    if capture is not None:
        capture.invalid = True
        raise driver_error(call, CuResult.STREAM_CAPTURE_UNSUPPORTED, explanation="a stream is being captured")


def refuse_in_any_capture(state: DeviceState, call: str) -> None:
    """As above, for a call with an effect outside its stream: only relaxed captures allow it."""
    strict = (capture for capture in state.captures if capture.mode is not CaptureMode.RELAXED)
    refuse_in_capture(next(strict, None), call)


def wait_event(state: DeviceState, stream: int, event: int) -> None:
    waited = find(state.events, "cuStreamWaitEvent", event)
    if waited.capture in state.captures:
        stream_of(state, stream).capture = waited.capture


def record_event(state: DeviceState, event: int, stream: int) -> None:
    recorded = find(state.events, "cuEventRecord", event)
    recorded.capture = stream_of(state, stream).capture
    if recorded.capture is None:
        recorded.time_ns = state.machine.clock.record_event()


def elapsed_ms(state: DeviceState, start: int, end: int) -> float:
    """Time between two events on the device's clock."""
    call = "cuEventElapsedTime"
    first, last = (find(state.events, call, event) for event in (start, end))
    if not first.timed or not last.timed or first.time_ns is None or last.time_ns is None:
        raise driver_error(call, CuResult.INVALID_HANDLE, explanation="event not recorded, or untimed")
    return (last.time_ns - first.time_ns) * 1e-6

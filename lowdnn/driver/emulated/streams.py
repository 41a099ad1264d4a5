"""Streams, captures and events of the emulated devices: work goes into a stream's queue, or is recorded.

A capturing stream appends its work to a graph; a stream that waits for an event recorded in a capture joins it, as on a
GPU. Each function raises DriverError as the driver call does that it carries out.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowdnn.driver.base import CaptureMode
from lowdnn.driver.emulated.graphs import Graph, Work
from lowdnn.driver.emulated.queues import Marker, Task
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.emulated.state import Capture, DeviceState, EventState, StreamState, event_of, stream_of
from lowdnn.driver.results import CuResult

#: The handles of the legacy default stream.
_LEGACY = (0, 1)


def submit(state: DeviceState, stream: int, work: Work | Marker) -> Task | None:
    """Adds the work to the stream's queue, or to the graph that the stream is captured to; None where it has been done
    or captured."""
    found = stream_of(state, stream)
    if found.capture is None or isinstance(work, Marker):
        return state.system.queues.add(found.queue, work)
    found.passed.add(state.add(found.capture.graph.nodes, work))
    return None


def finish(state: DeviceState, call: str, device: int, tasks: Iterable[Task | None]) -> None:
    """Waits for tasks of a device, and raises the DriverError of its fault."""
    state.system.queues.finish(tasks)
    state.system.states[device].tell(call, "")


def check_own_stream(state: DeviceState, call: str, stream: int) -> None:
    """Raises DriverError for a stream of another device: kernels run in those of the current context."""
    device = stream_of(state, stream).device
    if device != state.number:
        explanation = f"the stream is of device {device}, the current context of device {state.number}"
        raise driver_error(call, CuResult.INVALID_HANDLE, f"{stream:#x}", explanation)


def begin_capture(state: DeviceState, stream: int, mode: CaptureMode) -> None:
    found = stream_of(state, stream)
    if stream in _LEGACY:
        raise driver_error("cuStreamBeginCapture", CuResult.STREAM_CAPTURE_UNSUPPORTED, f"{stream:#x}")
    if found.capture is not None:
        raise driver_error("cuStreamBeginCapture", CuResult.ILLEGAL_STATE, f"{stream:#x}", "a capture is under way")
    found.capture = Capture(Graph(), stream, mode, found.device)
    state.system.states[found.device].captures.append(found.capture)


def capture_mode(state: DeviceState) -> CaptureMode:
    """How far captures forbid calls of the calling thread."""
    mode: CaptureMode = getattr(state.system.capture_modes, "mode", CaptureMode.GLOBAL)
    return mode


def exchange_capture_mode(state: DeviceState, mode: CaptureMode) -> CaptureMode:
    former = capture_mode(state)
    state.system.capture_modes.mode = mode
    return former


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
    found = stream_of(state, stream, "cuStreamDestroy")
    if found.capture is not None and found.capture.origin == stream:
        _forget(state, found.capture)
    del state.system.states[found.device].streams[stream]
    state.system.queues.end(found.queue)


def _forget(state: DeviceState, capture: Capture) -> None:
    capture.ended = True
    states = state.system.states
    states[capture.device].captures.remove(capture)
    state.graphs.pop(capture.handle, None)
    for joined in [stream for one in states.values() for stream in one.streams.values()]:
        if joined.capture is capture:
            joined.capture, joined.passed = None, set()


def refuse_in_capture(capture: Capture | None, call: str) -> None:
    """Breaks the capture, if there is one, with a call that cannot be part of it."""
    if capture is not None:
        capture.invalid = True
        raise driver_error(call, CuResult.STREAM_CAPTURE_UNSUPPORTED, explanation="a stream is being captured")


def refuse_in_any_capture(state: DeviceState, call: str) -> None:
    """As above, for a call with an effect outside its stream: only relaxed captures and relaxed threads allow it."""
    if capture_mode(state) is CaptureMode.RELAXED:
        return
    strict = (capture for capture in state.captures if capture.mode is not CaptureMode.RELAXED)
    refuse_in_capture(next(strict, None), call)


def checked_stream(state: DeviceState, stream: int, call: str) -> StreamState:
    """A stream that is asked or waited for: not one that is captured, and none while one is."""
    found = stream_of(state, stream)
    refuse_in_capture(found.capture, call)
    refuse_in_any_capture(state, call)
    return found


def checked_event(state: DeviceState, event: int, call: str) -> EventState:
    """An event that is asked or waited for: not one of a capture, and none while a stream is captured."""
    found = event_of(state, call, event)
    if found.capture is not None and not found.capture.ended:
        found.capture.invalid = True
    _refuse_captured(found, call)
    refuse_in_any_capture(state, call)
    return found


def wait_event(state: DeviceState, stream: int, event: int) -> None:
    """Further work in the stream waits for the event; a stream that waits for an event of a capture joins it."""
    waited, waiting = event_of(state, "cuStreamWaitEvent", event), stream_of(state, stream)
    if waited.capture is not None and not waited.capture.ended:
        waiting.capture = waited.capture
        waiting.passed |= waited.passed
    else:
        _refuse_captured(waited, "cuStreamWaitEvent")
        if waited.task is not None:
            state.system.queues.add(waiting.queue, Marker(_nothing), (waited.task,))


def record_event(state: DeviceState, event: int, stream: int) -> None:
    recorded, recording = event_of(state, "cuEventRecord", event), stream_of(state, stream)
    if recorded.device != recording.device:
        explanation = f"the event is of device {recorded.device}, the stream of device {recording.device}"
        raise driver_error("cuEventRecord", CuResult.INVALID_HANDLE, f"{event:#x}, {stream:#x}", explanation)
    recorded.capture, recorded.passed = recording.capture, frozenset(recording.passed)
    if recorded.capture is None:

        def record() -> None:
            recorded.time_ns = recording.queue.clock.record_event()

        recorded.task = state.system.queues.add(recording.queue, Marker(record))


def destroy_event(state: DeviceState, event: int) -> None:
    event_of(state, "cuEventDestroy", event)
    for one in state.system.states.values():
        one.events.pop(event, None)


def elapsed_ms(state: DeviceState, start: int, end: int) -> float:
    """Time between two events on the device's clock."""
    call = "cuEventElapsedTime"
    first, last = (event_of(state, call, event) for event in (start, end))
    if first.device != last.device:
        explanation = f"events of devices {first.device} and {last.device}, which have clocks of their own"
        raise driver_error(call, CuResult.INVALID_HANDLE, f"{start:#x}, {end:#x}", explanation)
    for one in (first, last):
        _refuse_captured(one, call)
    if not all(state.system.queues.is_done(one.task) for one in (first, last)):
        raise driver_error(call, CuResult.NOT_READY, f"{start:#x}, {end:#x}")
    if not first.timed or not last.timed or first.time_ns is None or last.time_ns is None:
        raise driver_error(call, CuResult.INVALID_HANDLE, explanation="event not recorded, or untimed")
    return (last.time_ns - first.time_ns) * 1e-6


def _refuse_captured(event: EventState, call: str) -> None:
    """An event that was recorded in a capture tells nothing outside of it."""
    if event.capture is not None:
        result = CuResult.INVALID_VALUE if event.capture.ended else CuResult.CAPTURED_EVENT
        raise driver_error(call, result, explanation="the event was last recorded in a capture")


def _nothing() -> None:
    """The work of a wait."""

"""The functions of cudnn_graph.h that are not about descriptors: handles, streams, errors and versions."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.backend.handle import Handle
from lowdnn.capi.errors import Call
from lowdnn.capi.log_callback import LogCallback
from lowdnn.capi.memory import Address, checked, write_array, write_outputs, write_pointer
from lowdnn.capi.state import State
from lowdnn.enums import ErrQueryMode
from lowdnn.mirrored import MIRRORED_CUDNN_VERSION
from lowdnn.status import BadParamError, Status


def create(state: State, handle: Address) -> None:
    """A handle on the device of the current context. Raises what ``Handle.open`` raises."""
    checked(handle, "cudnnCreate.handle")
    write_pointer(handle, state.objects.add(state.open_handle()), "cudnnCreate.handle")


def destroy(state: State, handle: Address) -> None:
    """Waits for the device and closes the handle."""
    closed = state.objects.remove(handle, Handle, "cudnnDestroy.handle")
    try:
        closed.runtime.context.synchronize()
    finally:
        state.close_handle(closed)


def set_stream(state: State, handle: Address, stream: Address) -> None:
    state.objects.get(handle, Handle, "cudnnSetStream.handle").set_stream(stream or 0)


def get_stream(state: State, handle: Address, stream: Address) -> None:
    found = state.objects.get(handle, Handle, "cudnnGetStream.handle")
    write_pointer(stream, found.stream, "cudnnGetStream.streamId")


def set_callback(state: State, mask: int, user_data: Address, function: Address) -> None:
    """Registers ``function`` for the messages that ``mask`` selects, in every thread; NULL ends it."""
    state.tell(LogCallback(mask, user_data or 0, function or 0))


def get_callback(state: State, mask: Address, user_data: Address, function: Address) -> None:
    log = state.log
    write_outputs(
        (mask, "I", log.mask, "cudnnGetCallback.mask"),
        (user_data, "Q", log.user_data, "cudnnGetCallback.udata"),
        (function, "Q", log.function, "cudnnGetCallback.fptr"),
    )


def query_runtime_error(state: State, handle: Address, status: Address, mode: int, tag: Address) -> None:
    """No kernel of lowdnn reports errors by itself: SUCCESS. BLOCKING waits for the stream first, which may fail."""
    found = state.objects.get(handle, Handle, "cudnnQueryRuntimeError.handle")
    checked(status, "cudnnQueryRuntimeError.rstatus")
    if mode == ErrQueryMode.BLOCKING:
        found.synchronize()
    write_array(status, "i", (Status.SUCCESS,), "cudnnQueryRuntimeError.rstatus")


def get_property(_: State, kind: int, value: Address) -> None:
    """``value`` gets the major (kind 0), minor (1) or patch (2) number of the mirrored release."""
    if not 0 <= kind < len(MIRRORED_CUDNN_VERSION):
        raise BadParamError.at("cudnnGetProperty.type", expected="0, 1 or 2", got=kind)
    write_outputs((value, "i", MIRRORED_CUDNN_VERSION[kind], "cudnnGetProperty.value"))


def check_version(_: State) -> None:
    """The parts of cuDNN are one here, so their versions agree."""


CALLS: Mapping[str, Call] = {
    "cudnnCreate": create,
    "cudnnDestroy": destroy,
    "cudnnSetStream": set_stream,
    "cudnnGetStream": get_stream,
    "cudnnSetCallback": set_callback,
    "cudnnGetCallback": get_callback,
    "cudnnQueryRuntimeError": query_runtime_error,
    "cudnnGetProperty": get_property,
    "cudnnGraphVersionCheck": check_version,
    "cudnnOpsVersionCheck": check_version,
    "cudnnCnnVersionCheck": check_version,
    "cudnnAdvVersionCheck": check_version,
    "cudnnSubquadraticOpsVersionCheck": check_version,
}

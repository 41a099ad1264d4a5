"""Module-level functions of cudnn-frontend: handles, streams, versions, device properties."""

from __future__ import annotations

import sys

from lowdnn.backend.graph_descriptors import DeviceProperties
from lowdnn.backend.handle import Handle as BackendHandle
from lowdnn.checks import instance
from lowdnn.config import CompilePolicy
from lowdnn.frontend.handle import Handle
from lowdnn.mirrored import MIRRORED_CUDNN_VERSION, version_number
from lowdnn.runtime.bundle import Bundle
from lowdnn.runtime.plan_cache import PlanCache
from lowdnn.status import AttributeTypeError, BadParamError, LowdnnError


def create_handle(
    device: str | None = None,
    *,
    ordinal: int = 0,
    arch: str | None = None,
    policy: str | None = None,
    faults: str = "",
    compile_policy: CompilePolicy | str | None = None,
    bundle: Bundle | None = None,
    same_device_as: BackendHandle | None = None,
    same_driver_as: BackendHandle | None = None,
    plan_cache: PlanCache | None = None,
    watchdog_s: float | None = None,
) -> Handle:
    """A handle; without arguments on the device that LOWDNN_DEVICE names (``auto``: the GPU, else the emulated one).

    ``arch`` and ``policy`` choose architecture and scheduling policy of the emulated device. ``faults`` lets calls of
    the driver fail, for tests: ``mem_alloc:3=OUT_OF_MEMORY`` (``lowdnn.driver.fault_injection``).
    ``compile_policy`` (default: LOWDNN_COMPILE): a graph whose best plan would have to be compiled waits for it
    (``wait``), takes the best plan whose kernels are loaded or on disk (``avoid``), or takes that one until the better
    plan has been compiled meanwhile (``background``).
    ``bundle`` comes from ``lowdnn.load_bundle``: its graphs are planned by its choices, its kernels are not compiled.
    ``same_device_as``: a handle whose device the new one is for, in place of the arguments before. Handles of one
    GPU share memory, streams and events anyway; otherwise each handle has emulated devices of its own.
    ``same_driver_as``: a handle whose driver the new one shares, on its device ``ordinal``, in place of the other
    arguments before. Emulated devices reach each other's memory where they belong to one driver.
    ``plan_cache``: shared with other handles, as ``lowdnn.PlanCache`` says; by default one of the handle's own.
    ``watchdog_s`` (default: LOWDNN_WATCHDOG): an execute that takes more seconds is named in an event ``hang``, and
    goes on.
    """
    faults = instance(faults, str, "create_handle.faults")
    others = (device, arch, policy, compile_policy, bundle, faults or None, watchdog_s)
    if same_device_as is not None:
        _refuse_others("same_device_as", (*others, ordinal or None, same_driver_as))
        where = "create_handle.same_device_as"
        return Handle.beside(_checked(same_device_as, where), where, same_device_as.runtime.context.device, plan_cache)
    if same_driver_as is not None:
        _refuse_others("same_driver_as", others)
        where = "create_handle.same_driver_as"
        return Handle.beside(_checked(same_driver_as, where), where, ordinal, plan_cache)
    return Handle.open(
        device,
        ordinal=ordinal,
        arch=arch,
        policy=policy,
        faults=faults,
        compile_policy=compile_policy,
        bundle=bundle,
        plan_cache=plan_cache,
        watchdog_s=watchdog_s,
    )


def destroy_handle(handle: BackendHandle) -> None:
    """Closes the handle; its plans and tensors cannot be used any more."""
    _checked(handle).close()


def set_stream(handle: BackendHandle, stream: object) -> None:
    """Work on ``handle`` goes into ``stream``: an integer, or an object with ``__cuda_stream__``."""
    _checked(handle).set_stream(stream)


def get_stream(handle: BackendHandle) -> int:
    """The handle's CUstream as an integer."""
    _checked(handle).check_open("get_stream")
    return handle.stream


def backend_version() -> int:
    """major * 10000 + minor * 100 + patch of the cuDNN release whose API is mirrored."""
    return version_number()


def backend_version_string() -> str:
    """The mirrored version of cuDNN as ``major.minor.patch``."""
    return ".".join(map(str, MIRRORED_CUDNN_VERSION))


def sdpa_capabilities() -> frozenset[str]:
    """An empty set, since it would name kernels of cudnn-frontend that are not its backend's."""
    return frozenset()


def get_last_error_string() -> str:
    """The message of the error that the calling thread handles now (in an ``except`` block), or "".

    A handle keeps the message of its last error (``last_error``), and no other state is kept.
    """
    error = sys.exception()
    return str(error) if isinstance(error, LowdnnError) else ""


def create_device_properties(source: BackendHandle | str | bytes | int = 0) -> DeviceProperties:
    """The device that a pygraph plans for without a handle: of a handle, of this machine by its number, or from JSON.

    A number is that of the driver that LOWDNN_DEVICE names. JSON comes from ``device_properties.serialize``.
    """
    if isinstance(source, BackendHandle):
        return DeviceProperties(handle=source)
    if isinstance(source, int):
        return DeviceProperties(device_id=source)
    return DeviceProperties(json=_text(source))


def _refuse_others(name: str, others: tuple[object, ...]) -> None:
    """Raises BadParamError where arguments are given beside one that stands for them."""
    if any(given is not None for given in others):
        raise BadParamError.at(f"create_handle.{name}", expected="no other argument", got="others too")


def _text(source: object) -> str:
    where = "create_device_properties.source"
    if not isinstance(source, (str, bytes)):
        raise AttributeTypeError.at(where, expected="a Handle, a number or JSON", got=repr(source))
    try:
        return source if isinstance(source, str) else source.decode()
    except UnicodeDecodeError as error:
        raise BadParamError.at(where, expected="text in UTF-8", got=str(error)) from None


def _checked(handle: object, where: str = "handle") -> BackendHandle:
    return instance(handle, BackendHandle, where, "a Handle, which create_handle gives")

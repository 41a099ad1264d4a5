"""cudnn.Handle: the backend's handle, with the further methods of cudnn-frontend's."""

from __future__ import annotations

from functools import cached_property
from typing import Self

from lowdnn.backend.handle import Handle as BackendHandle
from lowdnn.checks import integer, optional
from lowdnn.config import Config
from lowdnn.frontend.device_info import DeviceInfo
from lowdnn.runtime.plan_cache import PlanCache
from lowdnn.runtime.runtime import Runtime


class Handle(BackendHandle):
    """A handle (``lowdnn.backend.handle.Handle``); ``create_handle`` makes one."""

    _number: int | None = None

    def __init__(
        self,
        backend_handle: int | None = None,
        ordinal: int | None = None,
        stream: object = None,
        *,
        plan_cache: PlanCache | None = None,
    ) -> None:
        """A handle on the device of this number (default: 0) of the driver that LOWDNN_DEVICE names.

        backend_handle: a cudnnHandle_t of another library, in whose place this handle works; kept as its number.
        stream: as in ``set_stream``.  plan_cache: shared with other handles; by default one of the handle's own.
        """
        device = 0 if ordinal is None else integer(ordinal, "Handle.ordinal", 0)
        number = None if backend_handle is None else integer(backend_handle, "Handle.backend_handle")
        cache = optional(plan_cache, PlanCache, "Handle.plan_cache")
        super().__init__(Runtime.open(device=device, config=Config.from_environment()), plan_cache=cache)
        self._number = number
        if stream is not None:
            try:
                self.set_stream(stream)
            except BaseException:
                self.close()
                raise

    @classmethod
    def beside(cls, other: BackendHandle, where: str, device: int, plan_cache: PlanCache | None = None) -> Self:
        """A handle on a device of another one's driver, with a stream, plans and a life of its own.

        where: the argument that the other one came in.  plan_cache: shared with other handles; by default one of the
        handle's own.
        """
        other.check_open(where)
        cache = optional(plan_cache, PlanCache, "create_handle.plan_cache")
        runtime = Runtime(
            other.runtime.driver,
            device=device,
            config=other.runtime.config,
            bundle=other.runtime.bundle,
        )
        handle = cls.__new__(cls)
        BackendHandle.__init__(handle, runtime, plan_cache=cache)
        return handle

    @property
    def backend_handle(self) -> int | None:
        """A number of the handle's own, or the one that it was given; None once it is closed."""
        if not self.is_open:
            return None
        return id(self) if self._number is None else self._number

    @cached_property
    def device(self) -> DeviceInfo:
        """The facts of the handle's device."""
        return DeviceInfo(self.runtime.context.device, self.runtime.driver)

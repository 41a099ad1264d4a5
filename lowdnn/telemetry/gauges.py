"""Gauges: the memory that lowdnn's objects hold, read from the objects in use, and the memory of their devices."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from lowdnn.driver.base import Driver, DriverError
from lowdnn.observer import subjects
from lowdnn.runtime.context import Context
from lowdnn.runtime.modules import ModuleCache
from lowdnn.runtime.workspace import Workspace
from lowdnn.runtime.workspace_pool import WorkspacePool
from lowdnn.telemetry import measures
from lowdnn.telemetry.registry import Registry


def read_gauges(registry: Registry) -> None:
    """Brings the gauges of ``registry`` up to date."""
    contexts = [context for context in subjects(Context) if context.liveness.is_usable]
    registry.gauge(measures.BUFFER_BYTES).set(sum(context.held_bytes for context in contexts))
    pools = [pool.size_bytes for pool in subjects(WorkspacePool) if pool.is_open]
    workspaces = [workspace.size_bytes for workspace in subjects(Workspace) if workspace.is_open]
    registry.gauge(measures.WORKSPACE_BYTES).set(sum(pools) + sum(workspaces))
    registry.gauge(measures.MODULE_BYTES).set(sum(modules.size_bytes for modules in subjects(ModuleCache)))
    for context in _one_of_each_device(contexts):
        try:
            with context.activated():
                free_bytes, total_bytes = context.driver.mem_get_info()
        except DriverError:
            continue  # after a fault of a kernel every call fails
        device = device_label(context.driver, context.device)
        registry.gauge(measures.FREE_BYTES, device).set(free_bytes)
        registry.gauge(measures.TOTAL_BYTES, device).set(total_bytes)


def device_label(driver: Driver, device: int) -> str:
    """The label of a device: its number, behind ``emulated:`` where it is one of the emulated driver."""
    return str(device) if driver.kind == "cuda" else f"{driver.kind}:{device}"


def _one_of_each_device(contexts: Iterable[Context]) -> list[Context]:
    found: list[Context] = []
    for context in contexts:
        if not any(context.is_of_device(other) for other in found):
            found.append(context)
    return found


class TorchFallbacks:
    """The calls that PyTorch's native kernels ran in place of lowdnn's, where ``lowdnn.torch`` is in use."""

    def __init__(self) -> None:
        self._seen = 0

    def read(self, registry: Registry) -> None:
        """Adds the calls since the last time."""
        face = sys.modules.get("lowdnn.torch")
        if face is None:
            return
        calls = sum(path.calls for path in face.counts() if path.reason)
        # ``lowdnn.torch.reset`` begins the counts anew.
        registry.counter(measures.FALLBACKS, "torch").add(calls - self._seen if calls >= self._seen else calls)
        self._seen = calls

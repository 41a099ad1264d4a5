"""The registry of what is taken over in this process; ``reset`` empties it."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from threading import RLock
from types import TracebackType
from typing import Any, Self

import torch

from lowdnn import checks
from lowdnn.forking import tell_after_fork
from lowdnn.status import BadParamError, NotInitializedError, NotSupportedError
from lowdnn.torch.catalog import OVERLOADS, operation_names
from lowdnn.torch.counts import PathCount, PathCounts
from lowdnn.torch.memory import CudaMemory, EmulatedMemory, Memory
from lowdnn.torch.operation import Overload
from lowdnn.torch.taken import Plans, kernel

#: The devices by the name that ``enable`` takes.
_MEMORIES: dict[str, Callable[[], Memory]] = {"cuda": CudaMemory, "emulated": EmulatedMemory}
#: The values of ``prefer`` that ``enable`` takes.
_PREFERENCES = ("fastest", "lowdnn")
#: The most overrides that are kept behind their removal.
_MOST_REMOVED = 64


class Enabled:
    """One ``enable``, which ``close`` or the end of a ``with`` block undoes."""

    def __init__(self, registry: Registry, device: str, overloads: tuple[Overload, ...], prefer: str) -> None:
        self.device = device
        self.prefer = prefer
        self.overloads = overloads
        self._registry = registry

    def close(self) -> None:
        """Gives the operations back that no other ``enable`` asks for. Closing twice does nothing."""
        self._registry.release(self)

    def __enter__(self) -> Self:
        self._registry.check_held(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()


class Registry:
    """The operations that are taken over, the plans of their calls, a handle for each device, and the counts."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._levels: list[Enabled] = []
        self._installed: dict[tuple[str, str], _Installed] = {}
        #: Overrides that other threads may still be running.
        self._removed: deque[object] = deque(maxlen=_MOST_REMOVED)
        self._memories: dict[str, Memory] = {}
        self._plans: dict[tuple[str, str], Plans] = {}
        self._counts = PathCounts()
        #: ``torch.ops.lowdnn``, and what it runs for CUDA tensors.
        self.library = torch.library.Library("lowdnn", "DEF")
        self._own: dict[str, Callable[..., Any]] = {}

    @property
    def is_enabled(self) -> bool:
        return bool(self._levels)

    def enable(self, device: str, operations: Iterable[str] | None, prefer: str) -> Enabled:
        chosen = _chosen(operations)
        if prefer not in _PREFERENCES:
            raise BadParamError.at("torch.enable.prefer", expected=" or ".join(_PREFERENCES), got=repr(prefer))
        with self._lock, warnings.catch_warnings():
            # torch says once in a process that a kernel is overridden, which is what the caller asks for.
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            memory = self._memory(device)
            level = Enabled(self, device, tuple(item for item in chosen if memory.dispatch_key in item.keys), prefer)
            self._levels.append(level)
            self._prefer(device)
            try:
                for overload in level.overloads:
                    self._take(overload, device, memory)
            except BaseException:
                self.release(level)
                raise
            return level

    def disable(self) -> None:
        with self._lock:
            if not self._levels:
                raise NotInitializedError.at("torch.disable", expected="operations taken over", got="none")
            self._levels[-1].close()

    def release(self, level: Enabled) -> None:
        with self._lock:
            if level not in self._levels:
                return
            self._levels.remove(level)
            self._prefer(level.device)
            wanted = {(other.device, overload.name) for other in self._levels for overload in other.overloads}
            for key in [(level.device, overload.name) for overload in level.overloads]:
                if key not in wanted and key in self._installed:
                    self._removed.append(self._installed.pop(key).remove())

    def check_held(self, level: Enabled) -> None:
        if level not in self._levels:
            raise NotInitializedError.at(
                "torch.Enabled",
                expected="an enable that is in force",
                got="one that is undone",
                hint="call enable again",
            )

    def reset(self) -> None:
        """Undoes every ``enable``; forgets plans and counts, and closes the handles."""
        with self._lock:
            while self._levels:
                self._levels[-1].close()
            memories, self._memories = [*self._memories.values()], {}
            self._plans.clear()
            self._own.clear()
            self._counts = PathCounts()
        for memory in memories:
            memory.close()

    def after_fork(self) -> None:
        """The child keeps what is taken over, and plans calls anew: handles of its parent are of no use to it."""
        self._lock = RLock()
        self._counts.after_fork()
        for memory in self._memories.values():
            memory.after_fork()
        for plans in self._plans.values():
            plans.after_fork()

    def counts(self) -> tuple[PathCount, ...]:
        return self._counts.snapshot()

    def own_kernel(self, overload: Overload, native: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel of an operation of ``library`` for CUDA tensors.  native: computes what lowdnn declines."""
        found = self._own.get(overload.name)
        if found is None:
            with self._lock:
                plans = self._plans_of(overload, "cuda", self._memory("cuda"))
                found = self._own[overload.name] = kernel(plans, native)
        return found

    def _prefer(self, device: str) -> None:
        """Follows the innermost level of a device, as long as there is one."""
        memory, levels = self._memories[device], [level for level in self._levels if level.device == device]
        if levels and memory.prefers_fastest != (levels[-1].prefer == "fastest"):
            memory.prefers_fastest = not memory.prefers_fastest
            for (kind, _), plans in self._plans.items():
                if kind == device:
                    plans.forget()

    def _memory(self, device: str) -> Memory:
        if not isinstance(device, str) or device not in _MEMORIES:
            raise BadParamError.at("torch.enable.device", expected=" or ".join(_MEMORIES), got=repr(device))
        if device == "cuda" and not torch.cuda.is_available():
            raise NotSupportedError.at(
                "torch.enable.device",
                expected="a GPU that torch sees",
                got="none",
                hint='device="emulated" takes CPU tensors over the emulated device',
            )
        found = self._memories.get(device)
        if found is None:
            tell_after_fork(self)
            found = self._memories[device] = _MEMORIES[device]()
        return found

    def _take(self, overload: Overload, device: str, memory: Memory) -> None:
        key = device, overload.name
        if key not in self._installed:
            self._installed[key] = _Installed(self._plans_of(overload, device, memory))

    def _plans_of(self, overload: Overload, device: str, memory: Memory) -> Plans:
        found = self._plans.get((device, overload.name))
        if found is None:
            found = self._plans[device, overload.name] = Plans(overload, memory, self._counts)
        return found


class _Installed:
    """An override in the dispatcher, on top of the kernel that was there."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._put()

    def remove(self) -> object:
        """Gives the operation back. Returns the override, which other threads may be running as long as it is kept."""
        own: object = torch.library.get_kernel(self._plans.overload.qualified_name, self._plans.memory.dispatch_key)
        self._library._destroy()
        # torch has a set of what is registered from Python. The kernel below the override is still one of these.
        torch.library._impls.update(self._registered)
        return own

    def _put(self) -> None:
        overload, key = self._plans.overload, self._plans.memory.dispatch_key
        native = _native(overload.qualified_name, key)
        # The keys that the call comes with say no more here; from the dispatcher they would cost it 0.3 us.
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        self._native = partial(overload.fallback, native, keys) if overload.fallback else partial(native, keys)
        namespace, name = overload.qualified_name.split("::")
        self._library = torch.library.Library(namespace, "IMPL")
        function = kernel(self._plans, self._call_native)
        self._registered = {f"{namespace}/{name}/{key}"} & torch.library._impls
        self._library.impl(name, function, key, allow_override=True)

    def _call_native(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._native(*args, **kwargs)
        except RuntimeError as error:
            if "invalidated" not in str(error):
                raise
        self._renew()
        return self._native(*args, **kwargs)

    def _renew(self) -> None:
        """Takes the kernel that is there now, where another library has withdrawn the one that was."""
        self._own = self.remove()
        self._put()


def _native(name: str, key: str) -> Callable[..., Any]:
    """The kernel that computes the operation now, whoever registered it."""
    if not hasattr(torch.library, "get_kernel"):
        raise NotSupportedError.at(
            "torch.__version__", expected="2.9 or newer, which has torch.library.get_kernel", got=torch.__version__
        )
    try:
        found: Callable[..., Any] = torch.library.get_kernel(name, key).call_boxed
    except RuntimeError:
        return _Missing(name, key)
    return found


class _Missing:
    """Stands for the native kernel of an operation that has none for this kind of tensors."""

    def __init__(self, name: str, key: str) -> None:
        self._text = f"{name} has no native kernel for {key}, and lowdnn declined the call: explain() says why"

    def __call__(self, *_: object, **__: object) -> object:
        raise NotImplementedError(self._text)


def _chosen(operations: Iterable[str] | None) -> tuple[Overload, ...]:
    if operations is None:
        return OVERLOADS
    where = "torch.enable.operations"
    names = (operations,) if isinstance(operations, str) else checks.sequence(operations, where, "names")
    if not names:
        raise BadParamError.at(where, expected="at least one name, or None for all", got="none")
    for name in names:
        if name not in operation_names():
            rule = "one of " + ", ".join(operation_names())
            raise BadParamError.at(where, expected=rule, got=repr(name))
    return tuple(overload for overload in OVERLOADS if overload.operation in names)


#: The process's own registry; the dispatcher that it changes is the process's, too.
REGISTRY = Registry()

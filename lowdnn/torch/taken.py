"""One operation in the dispatcher: the native kernel that was there, and what runs in its place.

A call is looked up by a short key, which has little of its tensors, and by Dynamo's check of all of them, which is C++;
then it is launched: on the host that costs a few microseconds. Where no check passes, shapes, strides, types and
devices make the whole key, and only a call with a new one is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from lowdnn.torch.counts import Count, PathCounts
from lowdnn.torch.memory import Memory
from lowdnn.torch.operation import Overload
from lowdnn.torch.planning import prepare
from lowdnn.torch.run import Run
from lowdnn.torch.settings import Settings, SettingsKey, reader
from lowdnn.torch.sketch import MAX_ALIGNMENT, Declined

#: Calls with different keys that one operation remembers; beyond them all are dropped.
_MAX_CALLS = 4096
#: Calls that are told apart by Dynamo's check, for one short key; the others are looked up by their whole key.
_MAX_ALIKE = 8

#: Says whether tensors have the facts that a call had.
Check = Callable[..., bool]
#: The shape of the first tensor, the number of tensors, the numbers, the settings and the alignment.
ShortKey = tuple[Any, ...]


class Plans:
    """The calls of one operation on one kind of memory: prepared, or declined.

    alike: the calls of a short key, each with the check of its tensors.
    """

    def __init__(self, overload: Overload, memory: Memory, counts: PathCounts) -> None:
        self.overload = overload
        self.memory = memory
        self._counts = counts
        self._known: dict[Any, Run | Count] = {}
        self._alike: dict[ShortKey, tuple[tuple[Check, Run | Count], ...]] = {}
        self.alike = self._alike.get

    def forget(self) -> None:
        """Plans all calls anew; those that other threads are in end as they were planned."""
        with self.memory.planning:
            self._clear()

    def after_fork(self) -> None:
        """Forgets all calls. Their plans are kept: to give them back may need locks that no thread holds any more."""
        self._of_parent = dict(self._known)
        self._clear()

    def find(
        self, short: ShortKey, tensors: tuple[Any, ...], numbers: tuple[Any, ...], alignment: int, settings: SettingsKey
    ) -> Run | Count:
        """Looks a call up by all facts of its tensors, and plans one with a new key."""
        key = (short, *[(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors])
        found = self._known.get(key)
        if found is None:
            with self.memory.planning:
                found = self._known.get(key) or self._planned(key, tensors, numbers, alignment, settings)
        self._remember(key, short, tensors, found)
        return found

    def _planned(
        self, key: Any, tensors: tuple[Any, ...], numbers: tuple[Any, ...], alignment: int, settings: SettingsKey
    ) -> Run | Count:
        name = self.overload.name
        if torch._C._get_tracing_state() is not None:
            # Sizes are tensors now, and the trace has what the native kernel calls.
            return self._counts.of(name, "recorded by torch.jit.trace")
        if self.memory.is_capturing(tensors[0].device):
            # A plan that is not loaded yet waits: loading is no part of a CUDA graph.
            return self._counts.of(name, "first called inside of a CUDA graph's capture")
        found: Run | Count
        try:
            prepared = prepare(self.overload, tensors, numbers, alignment, Settings(*settings), self.memory)
            found = Run(prepared, self.memory, tensors[0].device, self._counts.of(name, ""))
        except Declined as declined:
            found = self._counts.of(name, str(declined))
        if len(self._known) >= _MAX_CALLS:
            self._clear()
        self._known[key] = found
        return found

    def _remember(self, key: Any, short: ShortKey, tensors: tuple[Any, ...], found: Run | Count) -> None:
        """Leaves the next call like this one to Dynamo's check, which never takes one tensor in two places."""
        if len(self._alike.get(short, ())) >= _MAX_ALIKE or len(set(map(id, tensors))) < len(tensors):
            return
        guards = torch._C._dynamo.guards.TensorGuards
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        with self.memory.planning:
            if self._known.get(key) is found:
                self._alike[short] = (*self._alike.get(short, ()), (check, found))

    def _clear(self) -> None:
        self._known.clear()
        self._alike.clear()


def kernel(plans: Plans, native: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the dispatcher calls with the arguments of the operation.

    native: computes what lowdnn declines, with the same arguments.
    """
    read, alike, find = plans.overload.read, plans.alike, plans.find
    settings_now = reader(plans.overload.kind, is_gpu=plans.memory.is_gpu)

    def called(*args: Any, **kwargs: Any) -> Any:
        tensors, numbers = read(*args, **kwargs) if kwargs else read(*args)
        pointers, bits = [], MAX_ALIGNMENT
        for tensor in tensors:
            pointer = tensor.data_ptr()
            pointers.append(pointer)
            bits |= pointer
        settings = settings_now()
        short = tensors[0].shape, len(tensors), numbers, settings, bits & -bits
        for check, known in alike(short, ()):
            if check(*tensors):
                found = known
                break
        else:
            found = find(short, tensors, numbers, bits & -bits, settings)
        if isinstance(found, Run):
            return found.call(tensors, args, pointers)
        found.tick()
        return native(*args, **kwargs)

    hide_from_compiler(called.__code__)
    return called


def hide_from_compiler(code: CodeType) -> None:
    """Keeps ``torch.compile`` from tracing these frames and all below, as it does behind a graph break.

    ``torch.compiler.disable`` would cost each call a microsecond.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))

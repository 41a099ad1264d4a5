"""One operation in the dispatcher: the native kernel that was there, and what runs in its place.

A call is looked up by its shapes, strides, types, numbers, settings and alignment, and then launched: on the host that
costs a few microseconds. Only a call with a new key is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof
from operator import attrgetter, methodcaller
from types import CodeType
from typing import Any

import torch
from torch.autograd import profiler

from lowdnn.torch.counts import Count, PathCounts
from lowdnn.torch.memory import Allocate, Launch, Memory
from lowdnn.torch.operation import Constant, Overload, Piece
from lowdnn.torch.planning import Prepared, prepare
from lowdnn.torch.settings import Settings, SettingsKey, reader
from lowdnn.torch.sketch import MAX_ALIGNMENT, Declined

#: Calls with different keys that one operation remembers; beyond them all are dropped.
_MAX_CALLS = 4096

#: A prepared call: from its tensors, its numbers and the tensors' addresses to its results.
Call = Callable[[tuple[Any, ...], tuple[Any, ...], list[int]], Any]

_facts = attrgetter("shape", "dtype", "device")
_strides = methodcaller("stride")
_address = methodcaller("data_ptr")


class Plans:
    """The calls of one operation on one kind of memory, by key: prepared, or declined."""

    def __init__(self, overload: Overload, memory: Memory, counts: PathCounts) -> None:
        self.overload = overload
        self.memory = memory
        self._counts = counts
        self._known: dict[Any, Run | Count] = {}
        self.get: Callable[[Any], Run | Count | None] = self._known.get

    def forget(self) -> None:
        """Plans all calls anew; those that other threads are in end as they were planned."""
        with self.memory.planning:
            self._known.clear()

    def after_fork(self) -> None:
        """Forgets all calls. Their plans are kept: to give them back may need locks that no thread holds any more."""
        self._of_parent = dict(self._known)
        self._known.clear()

    def find(
        self, key: Any, tensors: tuple[Any, ...], numbers: tuple[Any, ...], alignment: int, settings: SettingsKey
    ) -> Run | Count:
        """Plans a call with a new key."""
        with self.memory.planning:
            found = self._known.get(key)
            if found is not None:
                return found
            name = self.overload.name
            if torch._C._get_tracing_state() is not None:
                # Sizes are tensors now, and the trace has what the native kernel calls.
                return self._counts.of(name, "recorded by torch.jit.trace")
            if self.memory.is_capturing(tensors[0].device):
                # A plan that is not loaded yet waits: loading is no part of a CUDA graph.
                return self._counts.of(name, "first called inside of a CUDA graph's capture")
            try:
                prepared = prepare(self.overload, tensors, numbers, alignment, Settings(*settings), self.memory)
                found = Run(prepared, self.memory, tensors[0].device, self._counts.of(name, ""))
            except Declined as declined:
                found = self._counts.of(name, str(declined))
            if len(self._known) >= _MAX_CALLS:
                self._known.clear()
            self._known[key] = found
            return found


class Run:
    """A prepared call, launched again and again.

    call: allocates the results of a call and launches it, from its tensors, its numbers and the tensors' addresses.
    """

    def __init__(self, prepared: Prepared, memory: Memory, device: Any, count: Count) -> None:
        self.prepared = prepared
        self.tick = count.tick
        self.call = self._bound(memory.allocator(device), memory.launcher(prepared.steps, device))

    def _bound(self, allocate: Allocate, launch: Launch) -> Call:
        """The hot path, with all that it needs at hand."""
        new = tuple((new.shape, new.strides, new.dtype) for new in self.prepared.new)
        collect, complete = _collector(self.prepared.result), self._complete if self._has_more else None
        tick, label = self.tick, self.prepared.label

        def call(tensors: tuple[Any, ...], numbers: tuple[Any, ...], pointers: list[int]) -> Any:
            tick()
            made = [allocate(shape, strides, dtype) for shape, strides, dtype in new]
            pointers += map(_address, made)
            values = None if complete is None else complete(numbers, pointers)
            if profiler._is_profiler_enabled:
                with torch.profiler.record_function(label):
                    launch(pointers)
            else:
                launch(pointers)
            del values  # the launches have read them
            return collect((*tensors, *made))

        return call

    @property
    def _has_more(self) -> bool:
        """Whether there are places behind those of tensors."""
        return bool(self.prepared.parts or self.prepared.addresses)

    def _complete(self, numbers: tuple[Any, ...], pointers: list[int]) -> list[Any]:
        """Adds the places of parts and of values; returns what has to be kept until the launch."""
        prepared = self.prepared
        for place, offset_bytes in prepared.parts:
            pointers.append(pointers[place] + offset_bytes)
        pointers.extend(prepared.addresses)
        values = []
        for place, number in prepared.given:
            # Each call has memory of its own for them, since other threads may be in the same one.
            values.append(type(prepared.values[place])(numbers[number]))
            pointers[place - len(prepared.addresses)] = addressof(values[-1])
        return values


def kernel(plans: Plans, native: Callable[..., Any]) -> Callable[..., Any]:
    """The function that the dispatcher calls: with the call's dispatch keys, and the arguments of the operation.

    native: computes what lowdnn declines, with the same arguments.
    """
    read, get, find = plans.overload.read, plans.get, plans.find
    settings_now = reader(plans.overload.kind, is_gpu=plans.memory.is_gpu)

    def called(keys: Any, *args: Any, **kwargs: Any) -> Any:
        tensors, numbers = read(*args, **kwargs)
        pointers = [*map(_address, tensors)]
        bits = MAX_ALIGNMENT
        for pointer in pointers:
            bits |= pointer
        settings = settings_now()
        key = (numbers, settings, bits & -bits, *map(_facts, tensors), *map(_strides, tensors))
        found = get(key)
        if found is None:
            found = find(key, tensors, numbers, bits & -bits, settings)
        if type(found) is Run:
            return found.call(tensors, numbers, pointers)
        found.tick()
        return native(keys, *args, **kwargs)

    hide_from_compiler(called.__code__)
    return called


def hide_from_compiler(code: CodeType) -> None:
    """Keeps ``torch.compile`` from tracing these frames and all below, as it does behind a graph break.

    ``torch.compiler.disable`` would cost each call a microsecond.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


def _collector(result: Any) -> Callable[[tuple[Any, ...]], Any]:
    """A function that picks a call's results out of the tensors at all places."""
    if isinstance(result, int):
        return lambda tensors: tensors[result]
    if any(isinstance(place, (Constant, Piece, list)) for place in result):
        return lambda tensors: tuple([_picked(tensors, place) for place in result])
    return lambda tensors: tuple([None if place is None else tensors[place] for place in result])


def _picked(tensors: tuple[Any, ...], place: Any) -> Any:
    if isinstance(place, int):
        return tensors[place]
    if isinstance(place, Piece):
        return tensors[place.place].as_strided(place.shape, place.strides, place.first)
    if isinstance(place, list):
        return [_picked(tensors, part) for part in place]
    return None if place is None else place.value

"""A prepared call, launched again and again: the hot path, with all that it needs at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import profiler

from lowdnn.torch.counts import Count
from lowdnn.torch.memory import Memory
from lowdnn.torch.operation import Constant, Piece, Result
from lowdnn.torch.planning import Prepared

#: Launches a call from its tensors, the dispatcher's arguments and the tensors' addresses; returns its results.
Call = Callable[[tuple[Any, ...], tuple[Any, ...], list[int]], Any]
#: Gives the dispatcher's arguments' numbers an address on the host; returns what has to be kept until the launch.
Place = Callable[[tuple[Any, ...], list[int]], Any]

#: Numbers of calls that one prepared call keeps on the host; beyond them all are dropped.
_MAX_NUMBERS = 64


class Run:
    """A prepared call.

    call: allocates the results of a call and launches it. Any thread may be in it.
    """

    def __init__(self, prepared: Prepared, memory: Memory, device: Any, count: Count) -> None:
        self.prepared = prepared
        allocator, launch = memory.allocator(device), memory.launcher(prepared.steps, device)
        new = tuple((new.shape, new.strides, new.dtype) for new in prepared.new)
        constants, collect = _collector(prepared.result)
        parts, addresses, given = prepared.parts, prepared.addresses, _placer(prepared)
        tick, label = count.tick, prepared.label

        def call(tensors: tuple[Any, ...], arguments: tuple[Any, ...], pointers: list[int]) -> Any:
            tick()
            allocate, places = allocator(), [*tensors]
            for shape, strides, dtype in new:
                tensor = allocate(shape, strides, dtype)
                places.append(tensor)
                pointers.append(tensor.data_ptr())
            for place, offset_bytes in parts:
                pointers.append(pointers[place] + offset_bytes)
            pointers += addresses
            kept = given and given(arguments, pointers)
            if profiler._is_profiler_enabled:
                with torch.profiler.record_function(label):
                    launch(pointers)
            else:
                launch(pointers)
            del kept  # the launches have read it
            places += constants
            return collect(places)

        self.call: Call = call


def _placer(prepared: Prepared) -> Place | None:
    """None where a call has no numbers of its own. ``prepared.addresses`` are at the end of the addresses."""
    values = prepared.values
    given = [(place - len(values), number, _numbers_of(type(values[place]))) for place, number in prepared.given]

    def place_numbers(arguments: tuple[Any, ...], pointers: list[int]) -> Any:
        kept = []
        for place, number, numbers in given:
            value = numbers(arguments[number])
            kept.append(value)
            pointers[place] = addressof(value)
        return kept

    return place_numbers if given else None


def _numbers_of(kind: Callable[[float], Any]) -> Callable[[float], Any]:
    """Makes ctypes numbers of one kind. Nobody changes them, since other threads may be launching with them."""
    made: dict[float, Any] = {}

    def number(value: float) -> Any:
        found = made.get(value)
        if found is None:
            if len(made) >= _MAX_NUMBERS:
                made.clear()
            found = made[value] = kind(value)
        return found

    return number


def _collector(result: Result) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], Any]]:
    """(constants, a function that picks a call's results out of the tensors at all places and the constants)"""
    if isinstance(result, int):
        return (), itemgetter(result)
    if len(result) < 2 or any(isinstance(place, Piece | list) for place in result):
        return (), lambda places: tuple([_picked(places, place) for place in result])
    constants = tuple(_value(place) for place in result if not isinstance(place, int))
    behind = iter(range(-len(constants), 0))
    return constants, itemgetter(*[place if isinstance(place, int) else next(behind) for place in result])


def _picked(places: Sequence[Any], place: Result) -> Any:
    if isinstance(place, int):
        return places[place]
    if isinstance(place, Piece):
        return places[place.place].as_strided(place.shape, place.strides, place.first)
    if isinstance(place, list):
        return [_picked(places, part) for part in place]
    return _value(place)


def _value(constant: Constant | None) -> Any:
    return None if constant is None else constant.value

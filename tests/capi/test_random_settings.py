"""Random values for the descriptors' set functions: what is valid is read back, what is not changes nothing."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytest

from lowdnn.enums import DataType
from lowdnn.status import Status
from tests.support.capi import Caller

_LARGEST = 2**31 - 1
_NUMBERS = (-1, 0, 1, 1, 2, 2, 3, 3, 5, 7, 40, _LARGEST)
_STEPS = 150
#: Data types with a known size; the number of none.
_TYPES = (DataType.FLOAT, DataType.HALF, DataType.DOUBLE, DataType.INT8)


def array(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


class Drawn:
    """One setting: the function and its arguments, whether it is valid, and what is read back."""

    def __init__(self, name: str, arguments: tuple[Any, ...], *, is_valid: bool, values: tuple[int, ...]) -> None:
        self.name, self.arguments, self.is_valid, self.values = name, arguments, is_valid, values


def numbers(rng: random.Random, count: int, least: int) -> tuple[int, ...]:
    """Numbers, mostly valid ones."""
    if rng.random() < 0.6:
        return tuple(rng.randint(least, 6) for _ in range(count))
    return tuple(rng.choice(_NUMBERS) for _ in range(count))


def packed(dims: Sequence[int], *, is_nhwc: bool) -> tuple[int, ...]:
    order = [0, *range(2, len(dims)), 1] if is_nhwc else range(len(dims))
    strides, step = [0] * len(dims), 1
    for axis in reversed(order):
        strides[axis], step = step, step * dims[axis]
    return tuple(strides)


def fits(dims: Sequence[int], strides: Sequence[int]) -> bool:
    """Extents, strides and spans are in range."""
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(dims, strides, strict=True))
    return min(dims) >= 1 and all(0 <= s <= _LARGEST for s in strides) and max(span, prod(dims)) <= 2**63 // 16


def tensor(rng: random.Random) -> Drawn:
    count, data_type = rng.choice((2, 3, 4, 4, 5, 8, 9)), rng.choice((*_TYPES, 99))
    dims, strides, layout = numbers(rng, count, 1), numbers(rng, count, 0), rng.choice((0, 0, 1, 5))
    if rng.random() < 0.5:
        arguments = (data_type, count, array(dims), array(strides))
        name, is_layout = "cudnnSetTensorNdDescriptor", True
    else:
        arguments = (layout, data_type, count, array(dims))
        name, is_layout = "cudnnSetTensorNdDescriptorEx", layout < 2
        strides = packed(dims, is_nhwc=layout == 1)
    is_valid = 3 <= count <= 8 and data_type != 99 and is_layout and fits(dims, strides)
    return Drawn(name, arguments, is_valid=is_valid, values=(data_type, count, *dims, *strides))


def filters(rng: random.Random) -> Drawn:
    count, data_type, layout = rng.choice((2, 3, 4, 5, 8, 9)), rng.choice((*_TYPES, 99)), rng.choice((0, 1, 5))
    dims = numbers(rng, count, 1)
    is_valid = 3 <= count <= 8 and data_type != 99 and layout < 2 and fits(dims, (0,) * count)
    arguments = (data_type, layout, count, array(dims))
    return Drawn("cudnnSetFilterNdDescriptor", arguments, is_valid=is_valid, values=(data_type, layout, count, *dims))


def convolution(rng: random.Random) -> Drawn:
    count, mode, data_type = rng.choice((0, 1, 2, 3, 6, 7)), rng.choice((0, 1, 2)), rng.choice((*_TYPES, 99))
    pads, strides, dilations = numbers(rng, count, 0), numbers(rng, count, 1), numbers(rng, count, 1)
    is_valid = 1 <= count <= 6 and mode < 2 and data_type != 99
    is_valid = is_valid and min(pads) >= 0 and min(*strides, *dilations) >= 1
    arguments = (count, *map(array, (pads, strides, dilations)), mode, data_type)
    values = (count, *pads, *strides, *dilations, mode, data_type)
    return Drawn("cudnnSetConvolutionNdDescriptor", arguments, is_valid=is_valid, values=values)


def pooling(rng: random.Random) -> Drawn:
    count, mode, nan = rng.choice((0, 1, 2, 3, 6, 7)), rng.choice((0, 3, 4)), rng.choice((0, 1, 2))
    window, pads, strides = numbers(rng, count, 1), numbers(rng, count, 0), numbers(rng, count, 1)
    is_valid = 1 <= count <= 6 and mode < 4 and nan < 2 and min(*window, *strides) >= 1
    is_valid = is_valid and min(pads) >= 0
    arguments = (mode, nan, count, *map(array, (window, pads, strides)))
    values = (mode, nan, count, *window, *pads, *strides)
    return Drawn("cudnnSetPoolingNdDescriptor", arguments, is_valid=is_valid, values=values)


class Reader:
    """Reads what the get function of a kind writes, in its order; arrays have 8 elements."""

    def __init__(self, name: str, form: str) -> None:
        self.name, self.form = name, form

    def read(self, caller: Caller, descriptor: int) -> tuple[int, ...]:
        """form: a letter for each output, 1 for a number, c for the count, n for an array of so many."""
        rooms = [array([77] * (8 if letter == "n" else 1)) for letter in self.form]
        caller.call(self.name, descriptor, 8, *rooms)
        count = rooms[self.form.index("c")][0]
        found: list[int] = []
        for letter, room in zip(self.form, rooms, strict=True):
            found += room[:count] if letter == "n" else room[:]
            assert letter != "n" or set(room[count:]) <= {77}
        return tuple(found)


KINDS: dict[str, tuple[Callable[[random.Random], Drawn], Reader]] = {
    "Tensor": (tensor, Reader("cudnnGetTensorNdDescriptor", "1cnn")),
    "Filter": (filters, Reader("cudnnGetFilterNdDescriptor", "11cn")),
    "Convolution": (convolution, Reader("cudnnGetConvolutionNdDescriptor", "cnnn11")),
    "Pooling": (pooling, Reader("cudnnGetPoolingNdDescriptor", "11cnnn")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_settings(caller: Caller, kind: str) -> None:
    seed = random.randrange(2**32)
    rng, (draw, reader) = random.Random(seed), KINDS[kind]
    descriptor, outcomes = caller.output(f"cudnnCreate{kind}Descriptor"), set[bool]()
    last: tuple[int, ...] = ()
    for _ in range(_STEPS):
        drawn = draw(rng)
        status = caller.status(drawn.name, descriptor, *drawn.arguments)
        told = f"seed {seed}: {drawn.name} {drawn.values}: {status.name}"
        expected = (Status.SUCCESS,) if drawn.is_valid else (Status.BAD_PARAM, Status.NOT_SUPPORTED)
        assert status.category in expected, told
        last = drawn.values if drawn.is_valid else last
        outcomes.add(drawn.is_valid)
        assert not last or reader.read(caller, descriptor) == last, told
    assert outcomes == {True, False}

"""Parts of a random call: operands with their values, descriptors, numbers, and what the call has to give."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor, packed_strides

Array = NDArray[Any]

#: Types of vectors of channels: the numbers' type, and how many there are in one.
VECTORS = {DataType.INT8x4: (DataType.INT8, 4), DataType.INT8x32: (DataType.INT8, 32)}


@dataclass(eq=False)
class Operand:
    """An array in memory. offset: numbers in front of the first one.  values: float64, in logical order.

    strides: in elements, or in vectors of channels for a type of those.
    """

    port: str
    data_type: DataType
    values: Array
    strides: tuple[int, ...]
    is_filter: bool = False
    offset: int = 0

    @property
    def dims(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def placed(self) -> tuple[DataType, tuple[int, ...], tuple[int, ...]]:
        """The numbers' type, dims and strides in memory: vectors of v channels have dims N, C / v, v, spatial."""
        kind, vector = VECTORS.get(self.data_type, (self.data_type, 0))
        if not vector:
            return kind, self.dims, self.strides
        (n, c, *spatial), (n_stride, c_stride, *strides) = self.dims, (vector * stride for stride in self.strides)
        return kind, (n, c // vector, vector, *spatial), (n_stride, c_stride, 1, *strides)

    @property
    def span(self) -> int:
        """Numbers from the first one to the last one."""
        _, dims, strides = self.placed
        return 1 + sum((extent - 1) * stride for extent, stride in zip(dims, strides, strict=True))

    @property
    def tensor(self) -> Tensor:
        """The operand as an operation's reference sees it."""
        return Tensor(1, self.data_type, self.dims, packed_strides(self.dims), 16)


@dataclass(frozen=True)
class DescriptorOf:
    """The argument that describes an operand."""

    operand: Operand


@dataclass(frozen=True)
class AddressOf:
    """The argument that points to an operand's data. is_optional: it may be NULL, and is not looked at."""

    operand: Operand
    is_optional: bool = False


@dataclass(frozen=True)
class Scale:
    """alpha or beta: a double for results of type DOUBLE, otherwise a float."""

    value: float
    is_double: bool = False


@dataclass(frozen=True)
class Made:
    """A descriptor of another kind: cudnnCreate<kind>Descriptor, then the function ``name`` with ``arguments``.

    Tuples of integers stand for arrays of C integers.
    """

    kind: str
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Enum:
    """A member of an enum, by its number."""

    number: int


@dataclass(frozen=True)
class Count:
    """A number of 1 or more."""

    number: int


@dataclass(frozen=True)
class Room:
    """An address of memory that the call may use, and its bytes as the next argument."""

    size_bytes: int


@dataclass
class Call:
    """One call. arguments: those behind the handle.  expected: the expected values of each operand that is written,
    float64.

    tolerance: beside what the results' types round, relative to the largest number.
    has_handle: whether the call has a handle, or a stream in its place.
    """

    name: str
    arguments: list[Any]
    expected: Mapping[str, Array]
    tolerance: float = 0.0
    operands: list[Operand] = field(default_factory=list)
    has_handle: bool = True

    def __post_init__(self) -> None:
        for argument in self.arguments:
            if isinstance(argument, DescriptorOf | AddressOf) and argument.operand not in self.operands:
                self.operands.append(argument.operand)


class Draw:
    """Random choices of one call."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.data_type = self.rng.choice(
            (DataType.FLOAT, DataType.FLOAT, DataType.HALF, DataType.DOUBLE, DataType.BFLOAT16)
        )

    def happens(self, probability: float) -> bool:
        return self.rng.random() < probability

    def choose(self, choices: Any) -> Any:
        return self.rng.choice(list(choices))

    def dims(self, least: int = 4, most: int = 5) -> tuple[int, ...]:
        rank = self.rng.randint(least, most)
        return (self.rng.randint(1, 3), self.rng.randint(1, 5), *(self.rng.randint(1, 6) for _ in range(rank - 2)))

    def integers(self, dims: tuple[int, ...], least: int = -4, most: int = 4) -> Array:
        return self.numbers.integers(least, most + 1, dims).astype(np.float64)

    def normal(self, dims: tuple[int, ...], data_type: DataType | None = None) -> Array:
        return self.rounded(self.numbers.standard_normal(dims), data_type)

    def with_nan(self, values: Array, probability: float = 0.3) -> Array:
        """The values, with some NaN among them in some calls."""
        if self.happens(probability):
            values[self.numbers.random(values.shape) < 0.2] = np.nan
        return values

    def rounded(self, values: Array, data_type: DataType | None = None) -> Array:
        kind, _ = VECTORS.get(data_type or self.data_type, (data_type or self.data_type, 1))
        return dtypes.to_float64(dtypes.from_float64(values, kind), kind)

    def operand(
        self, port: str, values: Array, data_type: DataType | None = None, like: Operand | None = None
    ) -> Operand:
        """An operand in a random layout, or in that of ``like``."""
        _, vector = VECTORS.get(data_type or self.data_type, (None, 1))
        n, c, *spatial = values.shape
        strides = like.strides if like else self._strides((n, c // vector, *spatial))
        return Operand(port, data_type or self.data_type, values, strides, offset=self.choose((0, 0, 1, 3)))

    def filter(self, port: str, values: Array) -> Operand:
        order = (0, *range(2, values.ndim), 1) if self.happens(0.5) else None
        return Operand(port, self.data_type, values, packed_strides(values.shape, order), is_filter=True)

    def scales(self) -> tuple[float, float]:
        return self.choose(((1.0, 0.0), (1.0, 0.0), (-2.0, 0.0), (1.0, 1.0), (0.5, -3.0)))

    def scale(self, value: float) -> Scale:
        return Scale(value, self.data_type is DataType.DOUBLE)

    def old(self, dims: tuple[int, ...], beta: float, data_type: DataType | None = None) -> Array:
        """The values of a result before the call: NaN where it is not to be read."""
        return self.rounded(self.integers(dims), data_type) if beta else np.full(dims, np.nan)

    def _strides(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        form = self.rng.random()
        if form < 0.4:
            return packed_strides(dims)
        if form < 0.7:
            return packed_strides(dims, (0, *range(2, len(dims)), 1))
        order = self.rng.sample(range(len(dims)), len(dims))
        strides, step = [0] * len(dims), 1
        for axis in order:
            step *= self.choose((1, 1, 2)) if axis == order[0] else 1
            strides[axis] = step
            step *= dims[axis] + self.choose((0, 0, 1))
        return tuple(strides)


def blended(scales: tuple[float, float], result: Array, old: Array) -> Array:
    """alpha * result + beta * old, without reading old where beta is 0."""
    alpha, beta = scales
    with np.errstate(all="ignore"):
        return alpha * result + beta * old if beta else alpha * result


#: A function draws a call.
Family = Callable[[Draw], Call]

"""A graph that grows by one operation at a time, with the values of all its tensors.

An operation that its own checks refuse, or whose results are too large to compare, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.graph.expansion import expanded
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import HasPorts, Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.tensor import Tensor, packed_strides

T = TypeVar("T")
Dims = tuple[int, ...]
Array = NDArray[Any]

FLOATS = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE)
SMALL_FLOATS = (DataType.FP8_E4M3, DataType.FP8_E5M2)
INTEGERS = (DataType.INT8, DataType.UINT8, DataType.INT32, DataType.INT64)
ANY_TYPE = (*FLOATS, *SMALL_FLOATS, *INTEGERS, DataType.BOOLEAN)

#: The largest magnitude of values; behind larger ones errors of further operations say little.
_LARGEST = 1e3
#: The largest exact integer, whose products are exact in TF32 and their sums in FLOAT.
_LARGEST_EXACT = 512
_LARGEST_DRAWN_EXACT = 3
#: The most elements of a tensor, since the emulated device is slow.
_MOST_ELEMENTS = 4096


class UnfitError(Exception):
    """An operation whose results are too large, or not finite, or not exact where they have to be."""


@dataclass(frozen=True)
class Grown:
    """A graph, what its inputs hold (storage arrays by uid), and whether all of its values are exact integers."""

    graph: OperationGraph
    inputs: dict[int, Array]
    is_exact: bool


class Growth:
    """See the module's docstring.

    is_exact: values are small integers, so that every order of evaluation gives the same bits.
    zero: the name of the extent that is 0 (``extent``), or empty.  empty_share: the share of other extents that are 0.
    """

    def __init__(
        self, rng: np.random.Generator, *, is_exact: bool = False, zero: str = "", empty_share: float = 0.0
    ) -> None:
        self.rng = rng
        self.is_exact = is_exact
        self.operations: list[HasPorts] = []
        self.extents: list[str] = []
        self._zero = zero
        self._empty_share = empty_share
        self._next_uid = 1
        self._readable: list[Tensor] = []
        self._inputs: dict[int, Array] = {}
        self._values: dict[int, Array] = {}

    def grown(self) -> Grown:
        """The graph, whose last operation stores one of its results at least."""
        last = self.operations[-1]
        first = next(iter(outputs_of(last).values()))
        self.operations[-1] = with_tensors(last, {first.uid: replace(first, is_virtual=False)})
        return Grown(OperationGraph(expanded(self.operations)), self._inputs, self.is_exact)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def extent(self, name: str, most: int = 7, least: int = 1) -> int:
        """A random extent, ``least`` to ``most``, that the operation calls ``name``; 0 where the growth wants it so."""
        self.extents.append(name)
        drawn = 1 if self.chance(0.15) else int(self.rng.integers(least, most + 1))
        is_empty = name == self._zero or (self._empty_share > 0 and self.chance(self._empty_share))
        return 0 if is_empty else max(drawn, least)

    def float_type(self) -> DataType:
        return self.choose((DataType.FLOAT, DataType.FLOAT, *FLOATS))

    def input(
        self,
        dims: Dims,
        data_type: DataType,
        values: Array | None = None,
        *,
        strides: Dims | None = None,
        name: str = "x",
    ) -> Tensor:
        """A new input of the graph with ``values``, or random ones."""
        if prod(dims) > _MOST_ELEMENTS:
            raise UnfitError
        tensor = self._tensor(dims, data_type, strides or self._input_strides(dims), name=name)
        drawn = self._drawn(dims, data_type) if values is None else np.asarray(values, np.float64)
        return self._given(tensor, drawn)

    def packed_input(self, dims: Dims, data_type: DataType, values: Array, name: str) -> Tensor:
        """A packed input, such as lengths, offsets and tables, which kernels read without strides."""
        return self.input(dims, data_type, values, strides=packed_strides(dims), name=name)

    def scalar(self, rank: int, data_type: DataType, value: float, *, name: str = "") -> Tensor:
        """A number given by value at execute, or fixed in the graph."""
        ones = (1,) * rank
        if self.chance(0.5):
            return replace(self._tensor(ones, data_type, ones, name=name), constant_value=value)
        tensor = replace(self._tensor(ones, data_type, ones, name=name), is_by_value=True)
        return self._given(tensor, np.full(ones, value))

    def output(
        self,
        dims: Dims,
        data_type: DataType,
        *,
        is_stored: bool | None = None,
        strides: Dims | None = None,
        name: str = "y",
    ) -> Tensor:
        """A tensor that an operation writes, stored or virtual."""
        if prod(dims) > _MOST_ELEMENTS:
            raise UnfitError
        is_virtual = not (self.chance(0.4) if is_stored is None else is_stored)
        tensor = self._tensor(dims, data_type, strides or self._strides(dims), name=name)
        return replace(tensor, is_virtual=is_virtual)

    def accumulated(self, output: Tensor) -> None:
        """Gives ``output`` random contents before the run, which the operation reads."""
        self._inputs[output.uid] = dtypes.from_float64(self._drawn(output.dims, output.data_type), output.data_type)
        self._values[output.uid] = dtypes.to_values(self._inputs[output.uid], output.data_type)

    def value(self, new: Callable[[], Tensor], fits: Callable[[Tensor], bool] | None = None) -> Tensor:
        """A tensor of the graph that fits, recent ones more often, or a ``new`` one."""
        fitting = [tensor for tensor in self._readable if fits is None or fits(tensor)]
        if not fitting or self._zero or self.chance(0.2):
            return new()
        return fitting[int(max(self.rng.integers(len(fitting), size=2)))]

    def like(self, dims: Dims, data_type: DataType, name: str = "x") -> Tensor:
        """A tensor of these dims and this type: of the graph or a new one."""
        return self.value(
            lambda: self.input(dims, data_type, name=name),
            lambda tensor: (tensor.dims, tensor.data_type) == (dims, data_type),
        )

    def operands(self, operation: Operation) -> dict[str, Array]:
        """The values of what ``operation`` reads, by port."""
        return {port: self._value_of(tensor, {}) for port, tensor in inputs_of(operation).items()}

    def redraw(self, tensors: Mapping[str, Tensor], values: Mapping[str, Array]) -> None:
        """Gives new inputs other values, by the same keys."""
        for key, tensor in tensors.items():
            self._given(tensor, values[key])

    def add(self, operation: HasPorts) -> None:
        """Adds an operation. Raises UnfitError, and leaves the graph as it was."""
        self._check_places(operation)
        found: dict[int, Array] = {}
        for part in expanded((operation,)):
            operands = {port: self._value_of(tensor, found) for port, tensor in inputs_of(part).items()}
            outputs = outputs_of(part)
            operands |= {port: self._values[t.uid] for port, t in outputs.items() if t.uid in self._values}
            results = part.reference(operands)
            self._check_sums(part, operands)
            for port, tensor in outputs.items():
                found[tensor.uid] = dtypes.rounded(results[port], tensor.data_type)
                self._check(results[port], found[tensor.uid])
        self.operations.append(operation)
        for tensor in outputs_of(operation).values():
            self._values[tensor.uid] = found[tensor.uid]
            if np.isfinite(found[tensor.uid].astype(np.float64)).all():
                self._readable.append(tensor)

    def _value_of(self, tensor: Tensor, found: dict[int, Array]) -> Array:
        """The value of a tensor of the graph, of a part of a compound operation, or of a constant."""
        if tensor.constant_value is not None:
            return dtypes.rounded(np.full(tensor.dims, tensor.constant_value), tensor.data_type)
        return found[tensor.uid] if tensor.uid in found else self._values[tensor.uid]

    def _check(self, exact: Array, rounded: Array) -> None:
        if self._zero:
            return
        values = exact.astype(np.float64)
        if np.isnan(values).any() or (np.abs(values[np.isfinite(values)]) > _LARGEST).any():
            raise UnfitError
        if self.is_exact and ((np.abs(values) > _LARGEST_EXACT).any() or (values != rounded.astype(np.float64)).any()):
            raise UnfitError

    def _check_places(self, operation: HasPorts) -> None:
        """Refuses a norm beside a stored mask, which would be packed into bits; these have a step of their own."""
        for part in expanded((*self.operations, operation)):
            for tensor in inputs_of(part).values():
                held = self._inputs.get(tensor.uid)
                storage = dtypes.info(tensor.data_type).storage
                if held is not None and (held.shape, held.dtype) != (tensor.dims, storage):
                    raise UnfitError

    def _check_sums(self, operation: Operation, operands: dict[str, Array]) -> None:
        """Refuses sums that may grow too large: sums of magnitudes bound every partial sum."""
        if self.is_exact and not self._zero:
            bounds = operation.reference({port: np.abs(values) for port, values in operands.items()})
            if any((values.astype(np.float64) > 2**22).any() for values in bounds.values()):
                raise UnfitError

    def _given(self, tensor: Tensor, values: Array) -> Tensor:
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.strides)
        repeated = np.array(np.broadcast_to(values[first], tensor.dims))
        self._inputs[tensor.uid] = dtypes.from_float64(repeated, tensor.data_type)
        self._values[tensor.uid] = dtypes.to_values(self._inputs[tensor.uid], tensor.data_type)
        return tensor

    def _drawn(self, dims: Dims, data_type: DataType) -> Array:
        kind = dtypes.info(data_type).kind
        if self.is_exact or kind is not dtypes.Kind.FLOAT:
            largest = 1 if kind is dtypes.Kind.BOOLEAN else _LARGEST_DRAWN_EXACT
            is_signed = kind in (dtypes.Kind.FLOAT, dtypes.Kind.SIGNED)
            return self.rng.integers(-largest if is_signed else 0, largest + 1, dims).astype(np.float64)
        return self.rng.standard_normal(dims)

    def _tensor(self, dims: Dims, data_type: DataType, strides: Dims, *, name: str) -> Tensor:
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        least = dtypes.info(data_type).size_bytes
        return Tensor(uid, data_type, dims, strides, self.choose((16, 16, least)), name=name)

    def _strides(self, dims: Dims) -> Dims:
        """Strides with the axes in any order, packed or with unused elements behind an axis."""
        order = tuple(range(len(dims)))
        if self.chance(0.4):
            order = tuple(int(axis) for axis in self.rng.permutation(len(dims)))
        padded = list(dims)
        if self.chance(0.2) and dims:
            padded[order[-1]] += self.choose((1, 3, 8))
        return packed_strides(tuple(padded), order)

    def _input_strides(self, dims: Dims) -> Dims:
        """As ``_strides``; elements may repeat along an axis."""
        strides = self._strides(dims)
        repeated = int(self.rng.integers(len(dims))) if self.chance(0.07) else -1
        return tuple(0 if axis == repeated else stride for axis, stride in enumerate(strides))

"""Causal convolution along sequences, one filter for each channel: what the forward operation and its gradient share.

    z[b, d, l] = bias[d] + sum over j < K of weight[d, j] * x[b, d, l - (K - 1) + j]        y = activation(z)

x is (B, D, L), weight (D, K), bias (D,). Elements before a sequence's first are those of ``initial_states``
(N, D, K - 1), in their order, or 0. There are N = B sequences of L elements, unless one of these says otherwise:

* lengths (B,): sequence b is the first lengths[b] elements of batch b;
* offsets (N + 1,): B is 1, and sequence n has the elements offsets[n] up to offsets[n + 1], which ascend.

States may be slots of a pool, (S, D, K - 1): sequence n has slot state_indices[n]. A sequence whose index is not one of
0 to S - 1 is empty, whatever its lengths or offsets say.

Elements of x beyond all sequences do not count. There, y and the gradient of x are 0. The activations are IDENTITY and
SILU, z * sigmoid(z).
Sources: cudnn_subquadratic_ops.h; Gu and Dao, "Mamba: Linear-time sequence modeling with selective state spaces", 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.base import Values
from lowdnn.ops.norm import check_dims, check_float, compute_type_of
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, UnsupportedDataTypeError, UnsupportedShapeError
from lowdnn.subquadratic_enums import CausalConv1dActivation

#: Types of lengths and offsets.
INDEX_TYPES = (DataType.INT32, DataType.INT64)


@dataclass(frozen=True)
class CausalConv1d:
    """The operands of the forward operation, which its gradient has too."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    lengths: Tensor | None
    offsets: Tensor | None
    initial_states: Tensor | None
    activation: CausalConv1dActivation
    state_indices: Tensor | None = None
    slots: int | None = None  #: S

    @property
    def taps(self) -> int:
        """K."""
        return self.weight.dims[1]

    @property
    def count(self) -> int:
        """N, the number of sequences."""
        return self.x.dims[0] if self.offsets is None else self.offsets.dims[0] - 1

    @property
    def state_dims(self) -> tuple[int, int, int]:
        return self.count if self.slots is None else self.slots, self.x.dims[1], self.taps - 1

    @property
    def compute_type(self) -> DataType:
        """FLOAT, or DOUBLE where x is."""
        return compute_type_of(self.x)

    @property
    def has_silu(self) -> bool:
        return self.activation is CausalConv1dActivation.SILU

    @property
    def flops(self) -> int:
        """The operations of the sums."""
        return 2 * self.taps * self.x.element_count

    def check(self, where: str, others: Mapping[str, Tensor | None], states: Mapping[str, Tensor | None]) -> None:
        """Checks the operands, ``others`` of x's dims, and ``states``, where there are any.

        Raises UnsupportedShapeError, ShapeMismatchError, UnsupportedDataTypeError and BadParamError.
        """
        for port, tensor, rank in (("x", self.x, 3), ("weight", self.weight, 2)):
            if tensor.rank != rank:
                expected = "[batch, channels, length]" if rank == 3 else "[channels, filter length]"
                raise UnsupportedShapeError.at(f"{where}.{port}.dims", expected=expected, got=list(tensor.dims))
        channels = self.x.dims[1]
        if self.taps < 1:
            expected = f"[{channels}, a filter length of 1 or more]"
            raise UnsupportedShapeError.at(f"{where}.weight.dims", expected=expected, got=list(self.weight.dims))
        check_dims(where, (channels, self.taps), {"weight": self.weight})
        check_dims(where, (channels,), {"bias": self.bias})
        check_dims(where, self.x.dims, dict(others))
        self._check_sequences(where)
        states = {"initial_states": self.initial_states} | dict(states)
        self._check_states(where, states)
        floats = {"x": self.x, "weight": self.weight, "bias": self.bias, **others, **states}
        check_float(where, {port: tensor for port, tensor in floats.items() if tensor is not None})

    def sequences(self, values: Values) -> Iterator[tuple[int, int, slice]]:
        """(number, batch, elements) of each sequence; elements outside of x are not there."""
        batch, _, length = self.x.dims
        if self.offsets is None:
            lengths = values["lengths"].astype(np.int64) if self.lengths is not None else np.full(batch, length)
            bounds = [(b, 0, int(lengths[b])) for b in range(batch)]
        else:
            offsets = values["offsets"].astype(np.int64)
            bounds = [(0, int(offsets[n]), int(offsets[n + 1])) for n in range(self.count)]
        for number, (b, first, end) in enumerate(bounds):
            first, end = min(max(first, 0), length), min(max(end, 0), length)
            yield number, b, slice(first, max(first, end) if self.slot(values, number) is not None else first)

    def slot(self, values: Values, number: int) -> int | None:
        """The place of a sequence's states among all; None where its index lies outside of the pool."""
        if self.state_indices is None:
            return number
        slot = int(values["state_indices"][number])
        return slot if 0 <= slot < self.state_dims[0] else None

    def extended(self, values: Values, number: int, batch: int, elements: slice) -> NDArray[Any]:
        """A sequence (D, K - 1 + its length) behind the elements before it."""
        before = np.zeros(self.state_dims[1:])
        slot = self.slot(values, number)
        if self.initial_states is not None and slot is not None:
            before = values["initial_states"][slot]
        return np.concatenate([before, values["x"][batch, :, elements]], axis=1)

    def sums(self, values: Values, extended: NDArray[Any]) -> NDArray[Any]:
        """z of a sequence, (D, its length)."""
        z = sums_of(values["weight"], extended)
        return z + values["bias"][:, None] if self.bias is not None else z

    def _check_sequences(self, where: str) -> None:
        if self.lengths is not None and self.offsets is not None:
            raise BadParamError.at(f"{where}.offsets", expected="none beside lengths", got=self.offsets.label)
        check_dims(where, (self.x.dims[0],), {"lengths": self.lengths})
        if self.offsets is not None:
            if self.offsets.rank != 1 or self.offsets.dims[0] < 1:
                got = list(self.offsets.dims)
                raise UnsupportedShapeError.at(f"{where}.offsets.dims", expected="[sequences + 1]", got=got)
            if self.x.dims[0] != 1:
                expected = "a batch of 1 with offsets"
                raise UnsupportedShapeError.at(f"{where}.x.dims", expected=expected, got=list(self.x.dims))
        check_dims(where, (self.count,), {"state_indices": self.state_indices})
        indices = {"lengths": self.lengths, "offsets": self.offsets, "state_indices": self.state_indices}
        for port, tensor in indices.items():
            if tensor is not None and tensor.data_type not in INDEX_TYPES:
                found = tensor.data_type.name
                raise UnsupportedDataTypeError.at(f"{where}.{port}.data_type", expected="INT32 or INT64", got=found)

    def _check_states(self, where: str, states: Mapping[str, Tensor | None]) -> None:
        if self.state_indices is not None and self.slots is None:
            raise BadParamError.at(f"{where}.state_indices", expected="none without states", got="one")
        check_dims(where, self.state_dims, dict(states))
        for port, tensor in states.items():
            if tensor is not None and self.taps == 1:
                raise BadParamError.at(f"{where}.{port}", expected="none of a filter of length 1", got=tensor.label)
            if tensor is not None and tensor.data_type is not self.x.data_type:
                expected, got = f"{self.x.data_type.name}, as of x", tensor.data_type.name
                raise UnsupportedDataTypeError.at(f"{where}.{port}.data_type", expected=expected, got=got)


def sums_of(weight: NDArray[Any], extended: NDArray[Any]) -> NDArray[Any]:
    """(..., D, L): the sums over the taps of ``weight`` (D, K), of sequences behind the K - 1 elements before them."""
    taps = weight.shape[1]
    length = extended.shape[-1] - (taps - 1)
    z = np.zeros((*extended.shape[:-1], length))
    for j in range(taps):
        z = z + weight[:, j : j + 1] * extended[..., j : j + length]
    return z


def gradients_of(g: NDArray[Any], weight: NDArray[Any], extended: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The gradients of ``extended`` and of ``weight``, from ``g``, that of ``sums_of``."""
    gradient, length = np.zeros(extended.shape), g.shape[-1]
    dweight = np.zeros(weight.shape)
    for j in range(weight.shape[1]):
        gradient[..., j : j + length] += weight[:, j : j + 1] * g
        products = g * extended[..., j : j + length]
        dweight[:, j] = products.sum(axis=(*range(g.ndim - 2), g.ndim - 1))
    return gradient, dweight


def sigmoid(z: NDArray[Any]) -> NDArray[Any]:
    result: NDArray[Any] = 1 / (1 + np.exp(-z))
    return result

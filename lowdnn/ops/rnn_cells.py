"""One step of each cell of a recurrent network, and its gradient, for the references; formulas: ``rnn``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType
from lowdnn.ops.rnn import Clip, Rnn
from lowdnn.ops.rnn_weights import LayerRegions, Region
from lowdnn.rnn_enums import RNNMode

Array = NDArray[Any]

#: Explicit fraction bits of TF32.
_TF32_BITS = 10


class Arithmetic:
    """Exact arithmetic: nothing is rounded."""

    def product(self, a: Array, b: Array) -> Array:
        """a times the transpose of b."""
        found: Array = a @ b.T
        return found

    def input_product(self, a: Array, b: Array) -> Array:
        """The product with the input of a layer, or that which gives its gradient."""
        return self.product(a, b)

    def stored(self, values: Array) -> Array:
        """``values`` as they lie in memory."""
        return values


@dataclass(frozen=True)
class PlainArithmetic(Arithmetic):
    """The arithmetic of a plain implementation in ``data_type``.

    It sums in FLOAT or DOUBLE, and stores every product, gate and state in its own type.
    uses_tf32, inputs_use_tf32: whether recurrent products, and those with inputs, round their operands to TF32.
    """

    data_type: DataType
    uses_tf32: bool
    inputs_use_tf32: bool

    def product(self, a: Array, b: Array) -> Array:
        return self._product(a, b, self.uses_tf32)

    def input_product(self, a: Array, b: Array) -> Array:
        return self._product(a, b, self.inputs_use_tf32)

    def _product(self, a: Array, b: Array, uses_tf32: bool) -> Array:
        kind = np.float64 if self.data_type is DataType.DOUBLE else np.float32
        if uses_tf32:
            a, b = _to_tf32(a), _to_tf32(b)
        return self.stored((a.astype(kind) @ b.T.astype(kind)).astype(np.float64))

    def stored(self, values: Array) -> Array:
        return dtypes.rounded(values, self.data_type).astype(np.float64)


@dataclass(frozen=True)
class Weights:
    """The weights of one pseudo-layer; missing biases are 0. w: None where the input goes to the gates itself."""

    w: Array | None
    r: Array
    projection: Array | None
    input_bias: Array
    recurrent_bias: Array

    @classmethod
    def of(cls, space: Array, regions: LayerRegions) -> Weights:
        def values(region: Region) -> Array:
            return space[region.offset : region.end].reshape(region.dims)

        none = np.zeros(regions.r.dims[0])
        return cls(
            None if regions.w is None else values(regions.w),
            values(regions.r),
            None if regions.projection is None else values(regions.projection),
            none if regions.input_bias is None else values(regions.input_bias),
            none if regions.recurrent_bias is None else values(regions.recurrent_bias),
        )


@dataclass(frozen=True)
class State:
    """The state behind a step: h (B, S), c (B, H), the saved gates (B, blocks * H) and h before a projection (B, H)."""

    h: Array
    c: Array
    gates: Array
    unprojected: Array


@dataclass(frozen=True)
class Gradient:
    """Gradients of a step's gates (as ``rnn_saved`` has them), of the state before it, and of the projected h."""

    gates: Array
    h: Array
    c: Array
    projected: Array


@dataclass(frozen=True)
class Cell(ABC):
    """A cell with its weights. Blocks of H columns: ``_split``."""

    rnn: Rnn
    weights: Weights
    arithmetic: Arithmetic

    def of_input(self, x: Array) -> Array:
        """W x + bW for rows x."""
        w = self.weights.w
        product = np.tile(x, self.rnn.gates) if w is None else self.arithmetic.input_product(x, w)
        found: Array = product + self.weights.input_bias
        return found

    def input_gradient(self, gates: Array) -> Array:
        """The gradient of rows x from that of the gates (rows, blocks * H)."""
        sums = gates[..., : self.rnn.gates * self.rnn.hidden_size]
        if self.weights.w is None:
            return sum(_split(sums, self.rnn.gates), np.zeros(()))
        return self.arithmetic.input_product(sums, self.weights.w.T)

    @abstractmethod
    def step(self, of_input: Array, h: Array, c: Array) -> State:
        """The state behind a step, of rows of ``of_input`` and the states before."""

    @abstractmethod
    def backward(self, gates: Array, dh: Array, dc: Array, h: Array, c: Array, c_before: Array) -> Gradient:
        """The gradients of a step from dh and dc after it; h, c_before: the states before it, c: the one after it."""

    def _recurrent(self, h: Array) -> Array:
        found: Array = self.arithmetic.product(h, self.weights.r) + self.weights.recurrent_bias
        return found

    def _recurrent_gradient(self, sums: Array) -> Array:
        return self.arithmetic.product(sums, self.weights.r.T)


@dataclass(frozen=True)
class PlainCell(Cell):
    """RNN_RELU and RNN_TANH."""

    def step(self, of_input: Array, h: Array, c: Array) -> State:
        v = of_input + self._recurrent(h)
        h = self.arithmetic.stored(np.maximum(v, 0) if self._is_relu else np.tanh(v))
        return State(h, c, h, h)

    def backward(self, gates: Array, dh: Array, dc: Array, h: Array, c: Array, c_before: Array) -> Gradient:
        dv = self.arithmetic.stored(np.where(gates > 0, dh, 0) if self._is_relu else dh * (1 - gates**2))
        return Gradient(dv, self._recurrent_gradient(dv), dc, dh)

    @property
    def _is_relu(self) -> bool:
        return self.rnn.cell_mode is RNNMode.RNN_RELU


@dataclass(frozen=True)
class LstmCell(Cell):
    def step(self, of_input: Array, h: Array, c: Array) -> State:
        stored = self.arithmetic.stored
        v_i, v_f, v_g, v_o = _split(of_input + self._recurrent(h), 4)
        i, f, g, o = (stored(gate) for gate in (_sigmoid(v_i), _sigmoid(v_f), np.tanh(v_g), _sigmoid(v_o)))
        clip = self.rnn.clip
        c = f * _clipped(c, clip) + i * g
        unprojected = h = stored(o * np.tanh(_clipped(c, clip)))
        if self.weights.projection is not None:
            h = self.arithmetic.product(h, self.weights.projection)
        return State(h, c, np.concatenate([i, f, g, o], axis=-1), unprojected)

    def backward(self, gates: Array, dh: Array, dc: Array, h: Array, c: Array, c_before: Array) -> Gradient:
        i, f, g, o = _split(gates, 4)
        projected = self.arithmetic.stored(dh)
        if self.weights.projection is not None:
            dh = self.arithmetic.product(projected, self.weights.projection.T)
        clip = self.rnn.clip
        before, squashed = _clipped(c_before, clip), np.tanh(_clipped(c, clip))
        dc = dc + _where_unclipped(dh * o * (1 - squashed**2), c, clip)
        parts = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g**2), dh * squashed * o * (1 - o))
        dv = self.arithmetic.stored(np.concatenate(parts, axis=-1))
        return Gradient(dv, self._recurrent_gradient(dv), _where_unclipped(dc * f, c_before, clip), projected)


@dataclass(frozen=True)
class GruCell(Cell):
    """A GRU with the reset gate after the recurrent product."""

    def step(self, of_input: Array, h: Array, c: Array) -> State:
        (w_r, w_z, w_n), (u_r, u_z, u_n) = _split(of_input, 3), _split(self._recurrent(h), 3)
        stored = self.arithmetic.stored
        r, z, u_n = stored(_sigmoid(w_r + u_r)), stored(_sigmoid(w_z + u_z)), stored(u_n)
        n = stored(np.tanh(w_n + r * u_n))
        h = stored((1 - z) * n + z * h)
        return State(h, c, np.concatenate([r, z, n, u_n], axis=-1), h)

    def backward(self, gates: Array, dh: Array, dc: Array, h: Array, c: Array, c_before: Array) -> Gradient:
        r, z, n, u_n = _split(gates, 4)
        dn = dh * (1 - z) * (1 - n**2)
        parts = (dn * u_n * r * (1 - r), dh * (h - n) * z * (1 - z), dn, dn * r)
        dv = self.arithmetic.stored(np.concatenate(parts, axis=-1))
        dr, dz, _, du = _split(dv, 4)
        recurrent = self._recurrent_gradient(np.concatenate([dr, dz, du], axis=-1))
        return Gradient(dv, dh * z + recurrent, dc, dh)


@dataclass(frozen=True)
class ResetBeforeGruCell(Cell):
    """A GRU with the reset gate before the recurrent product."""

    def step(self, of_input: Array, h: Array, c: Array) -> State:
        stored, (w_r, w_z, w_n) = self.arithmetic.stored, _split(of_input, 3)
        (r_r, r_z, r_n), (b_r, b_z, b_n) = self._parts, _split(self.weights.recurrent_bias, 3)
        product = self.arithmetic.product
        r, z = stored(_sigmoid(w_r + product(h, r_r) + b_r)), stored(_sigmoid(w_z + product(h, r_z) + b_z))
        reset = stored(r * h)
        n = stored(np.tanh(w_n + product(reset, r_n) + b_n))
        h = stored((1 - z) * n + z * h)
        return State(h, c, np.concatenate([r, z, n, reset], axis=-1), h)

    def backward(self, gates: Array, dh: Array, dc: Array, h: Array, c: Array, c_before: Array) -> Gradient:
        (r, z, n, reset), (r_r, r_z, r_n) = _split(gates, 4), self._parts
        stored, product = self.arithmetic.stored, self.arithmetic.product
        dz, dn = stored(dh * (h - n) * z * (1 - z)), stored(dh * (1 - z) * (1 - n**2))
        dreset = product(dn, r_n.T)
        dr = stored(dreset * h * r * (1 - r))
        before = dh * z + dreset * r + product(dr, r_r.T) + product(dz, r_z.T)
        return Gradient(np.concatenate([dr, dz, dn, reset], axis=-1), before, dc, dh)

    @property
    def _parts(self) -> tuple[Array, ...]:
        """R by gate."""
        return tuple(np.split(self.weights.r, 3))


def cell_of(rnn: Rnn, weights: Weights, arithmetic: Arithmetic) -> Cell:
    kinds: dict[RNNMode, type[Cell]] = {RNNMode.LSTM: LstmCell, RNNMode.GRU: GruCell}
    kind = kinds.get(rnn.cell_mode, PlainCell)
    return (kind if rnn.reset_after else ResetBeforeGruCell)(rnn, weights, arithmetic)


def _split(values: Array, count: int) -> tuple[Array, ...]:
    return tuple(np.split(values, count, axis=-1))


def _sigmoid(v: Array) -> Array:
    found: Array = 0.5 * (1 + np.tanh(0.5 * v))
    return found


def _clipped(c: Array, clip: Clip | None) -> Array:
    if clip is None:
        return c
    cut = np.minimum(np.maximum(c, clip.lower), clip.upper)
    return cut if clip.propagates_nan else np.where(np.isnan(c), clip.lower, cut)


def _where_unclipped(dc: Array, c: Array, clip: Clip | None) -> Array:
    """``dc``, 0 where the clip cuts c."""
    if clip is None:
        return dc
    cut = _clipped(c, clip)
    return np.where((cut <= clip.lower) | (cut >= clip.upper), 0, dc)


def _to_tf32(values: Array) -> Array:
    """The nearest values of TF32, of two the even one."""
    fraction, exponent = np.frexp(values.astype(np.float64))
    found: Array = np.ldexp(np.rint(np.ldexp(fraction, _TF32_BITS + 1)), exponent - _TF32_BITS - 1)
    return found

"""Random causal convolutions along sequences, back-to-back ones and those with long filters, with their gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lowdnn import dtypes
from lowdnn.capi.graphs import MAX_ALIGNMENT
from lowdnn.engines.launch import ceil_div
from lowdnn.enums import DataType
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.tensor import packed_strides
from lowdnn.subquadratic_enums import CausalConv1dActivation
from tests.support.random_calls.operands import AddressOf, Array, Call, Count, Draw, Enum, Family, Operand, Room

#: Beside the rounding of results: sums of fp32, in kernels with a SiLU or with transforms, relative to the largest.
_TOLERANCE = 1e-4


class Sequences:
    """The sizes of a random call, and its operands in the order of ``ports``.

    shapes: the dims of each port without the ``d`` of gradients; other ports have those of x.  is_nwh: whether axes
    behind the first of x, and those of weights, change places in memory.
    """

    def __init__(self, draw: Draw, taps: tuple[int, ...], *, is_nwh: bool = False) -> None:
        self.draw, self.taps, self._is_nwh = draw, taps, is_nwh
        batch, channels, length = (draw.rng.randint(1, most) for most in (3, 5, 24))
        self.rows = (batch, channels, length)
        self.shapes: dict[str, tuple[int, ...]] = {"weight": (channels, taps[0]), "bias": (channels,)}
        self.operands: dict[str, Operand] = {}
        self.sum_type = DataType.DOUBLE if draw.data_type is DataType.DOUBLE else DataType.FLOAT

    @property
    def sizes(self) -> list[Any]:
        return [*map(Count, self.rows), *map(Count, self.taps), Enum(self.draw.data_type)]

    @property
    def values(self) -> dict[str, Array]:
        return {port: operand.values for port, operand in self.operands.items()}

    @property
    def tensors(self) -> dict[str, Any]:
        return {port: operand.tensor for port, operand in self.operands.items()}

    def put(self, *ports: str, data_type: DataType | None = None) -> None:
        """Operands of small integers. Gradients that are sums add to theirs."""
        for port in ports:
            dims = self.shapes.get(port, self.shapes.get(port.removeprefix("d"), self.rows))
            self.put_values(port, self.draw.integers(dims, -1, 1), data_type)

    def put_values(self, port: str, values: Array, data_type: DataType | None = None) -> None:
        order = (*range(values.ndim - 2), values.ndim - 1, values.ndim - 2)
        strides = packed_strides(values.shape, order if self._is_nwh and values.ndim > 1 else None)
        kind = data_type or self.draw.data_type
        self.operands[port] = Operand(port, kind, values, strides, offset=self.draw.choose((0, 0, 1, 3)))

    def call(self, name: str, expected: dict[str, Array], *others: Any) -> Call:
        """others: the arguments behind the sizes and the type."""
        addresses = [AddressOf(operand) for operand in self.operands.values()]
        return Call(name, [*addresses, *self.sizes, *others], expected, _TOLERANCE, has_handle=False)


def _sequences(draw: Draw, *, is_nwh: bool) -> tuple[Sequences, CausalConv1dActivation]:
    return Sequences(draw, (draw.choose((1, 2, 4, 9)),), is_nwh=is_nwh), draw.choose(CausalConv1dActivation)


def causal_forward(draw: Draw) -> Call:
    drawn, activation = _sequences(draw, is_nwh=(is_nwh := draw.happens(0.5)))
    drawn.put("x", "weight", "bias", "y")
    expected = CausalConv1dForward(**drawn.tensors, activation=activation).reference(drawn.values)
    return drawn.call(f"cudnnCausalConv1d{'Nwh' if is_nwh else ''}Forward", expected, Enum(activation))


def causal_backward(draw: Draw) -> Call:
    drawn, activation = _sequences(draw, is_nwh=(is_nwh := draw.happens(0.5)))
    drawn.put("x", "weight", "bias", "dy", "dx")
    drawn.put("dweight", "dbias", data_type=drawn.sum_type)
    found = CausalConv1dBackward(**drawn.tensors, activation=activation).reference(drawn.values)
    expected = {port: found[port] + (0 if port == "dx" else drawn.values[port]) for port in ("dx", "dweight", "dbias")}
    name = f"cudnnCausalConv1d{'Nwh' if is_nwh else ''}Backward"
    return drawn.call(name, expected, Enum(drawn.sum_type), Enum(activation))


def _back_to_back(draw: Draw) -> Sequences:
    projection, mixer = draw.choose((1, 2, 4)), draw.choose((1, 3, 8))
    drawn = Sequences(draw, (projection, mixer))
    batch, channels, length = drawn.rows
    drawn.shapes = {
        "x": (batch, 3 * channels, length),
        "weights_proj": (3 * channels, projection),
        "weights_mixer": (channels, mixer),
        "skip_bias": (channels,),
    }
    drawn.put("x", "weights_proj", "weights_mixer", "skip_bias", "y")
    return drawn


def back_to_back_forward(draw: Draw) -> Call:
    drawn = _back_to_back(draw)
    drawn.put("y_gated")
    expected = B2BCausalConv1dForward(**drawn.tensors).reference(drawn.values)
    return drawn.call("cudnnB2BCausalConv1dForward", expected)


def back_to_back_backward(draw: Draw) -> Call:
    drawn = _back_to_back(draw)
    forward = B2BCausalConv1dForward(**drawn.tensors, y_gated=drawn.operands["y"].tensor)
    drawn.operands["y"].values[...] = draw.rounded(forward.reference(drawn.values)["y"])
    drawn.put("dy", "dx")
    sums = ("dweights_proj", "dweights_mixer", "dskip_bias")
    drawn.put(*sums, data_type=drawn.sum_type)
    found = B2BCausalConv1dBackward(**drawn.tensors).reference(drawn.values)
    expected = {"dx": found["dx"], **{port: found[port] + drawn.values[port] for port in sums}}
    return drawn.call("cudnnB2BCausalConv1dBackward", expected, Enum(drawn.sum_type))


def _long(draw: Draw, *ports: str) -> Sequences:
    drawn = Sequences(draw, (draw.choose((1, 2, 7, 16, 40)),))
    drawn.put(*ports)
    return drawn


def convolved(x: Array, weight: Array) -> Array:
    """The sum over q of weight[:, q] * x, moved by q positions."""
    length = x.shape[2]
    moved = [np.pad(x, ((0, 0), (0, 0), (q, 0)))[:, :, :length] for q in range(weight.shape[1])]
    return np.einsum("dq,qbdl->bdl", weight, np.array(moved))


def gradients(x: Array, weight: Array, dy: Array) -> dict[str, Array]:
    """The gradient of x is the convolution of dy backwards in time."""
    length, taps = x.shape[2], weight.shape[1]
    sums = [(dy * np.pad(x, ((0, 0), (0, 0), (q, 0)))[:, :, :length]).sum((0, 2)) for q in range(taps)]
    return {"dx": convolved(dy[:, :, ::-1], weight)[:, :, ::-1], "dweight": np.array(sums).T}


def fft_forward(draw: Draw) -> Call:
    drawn = _long(draw, "x", "weight", "y")
    return drawn.call("cudnnFFTCausalConv1dForward", {"y": convolved(drawn.values["x"], drawn.values["weight"])})


def fft_backward(draw: Draw) -> Call:
    drawn = _long(draw, "x", "weight", "dy", "dx", "dweight")
    expected = gradients(drawn.values["x"], drawn.values["weight"], drawn.values["dy"])
    return drawn.call("cudnnFFTCausalConv1dBackward", expected)


def long_forward(draw: Draw) -> Call:
    drawn = _long(draw, "x", "weight", "y")
    expected = {"y": convolved(drawn.values["x"], drawn.values["weight"])}
    return drawn.call("cudnnLongFFTCausalConv1dForward", expected, Room(1 << 20), Room(1 << 16))


def long_backward(draw: Draw) -> Call:
    """With the reserve space as a forward call leaves it: x, and weight from an aligned place on."""
    drawn = _long(draw, "dy", "dx", "dweight")
    x, weight = draw.integers(drawn.rows, -1, 1), draw.integers(drawn.shapes["weight"], -1, 1)
    expected = gradients(x, weight, drawn.values["dy"])
    kept = _in_memory(draw, x), _in_memory(draw, weight)
    reserve = np.zeros(ceil_div(kept[0].size, MAX_ALIGNMENT) * MAX_ALIGNMENT + kept[1].size)
    reserve[: kept[0].size], reserve[reserve.size - kept[1].size :] = kept
    operand = Operand("reserve", DataType.UINT8, reserve, (1,))
    others = (Room(1 << 20), AddressOf(operand), prod(reserve.shape))
    return drawn.call("cudnnLongFFTCausalConv1dBackward", expected, *others)


def _in_memory(draw: Draw, values: Array) -> Array:
    """The bytes of the values, as numbers."""
    return dtypes.from_float64(values, draw.data_type).ravel().view(np.uint8).astype(np.float64)


FAMILIES: tuple[Family, ...] = (
    causal_forward, causal_backward, back_to_back_forward, back_to_back_backward, fft_forward, fft_backward,
    long_forward, long_backward,
)  # fmt: skip

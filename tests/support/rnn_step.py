"""A training step of a recurrent network through ``lowdnn.adv``, on the memory of a test's device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.adv import (
    PADDED_IO_ENABLED,
    DirectionMode,
    Dropout,
    ForwardMode,
    RNNAlgo,
    RNNBiasMode,
    RNNDataDescriptor,
    RNNDescriptor,
    RNNInputMode,
    RNNMode,
    WgradMode,
    get_rnn_temp_space_sizes,
    get_rnn_weight_space_size,
    rnn_backward_data,
    rnn_backward_weights,
    rnn_forward,
)
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType, MathType
from lowdnn.ops.base import outputs_of
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.rnn_enums import RNNDataLayout
from lowdnn.runtime.buffer import DeviceBuffer
from tests.support.recurrent import Training, draw, training
from tests.support.runtime import download, upload

Array = NDArray[Any]

LSTM = RNNDescriptor(
    RNNAlgo.STANDARD,
    RNNMode.LSTM,
    RNNBiasMode.DOUBLE_BIAS,
    DirectionMode.BIDIRECTIONAL,
    RNNInputMode.LINEAR_INPUT,
    DataType.FLOAT,
    DataType.FLOAT,
    MathType.DEFAULT_MATH,
    input_size=5,
    hidden_size=8,
    proj_size=8,
    num_layers=2,
    dropout_desc=Dropout(0.25, 4096),
)
#: A network that padded sequences of several lengths may have, in true fp32.
NETWORK = replace(LSTM, dropout_desc=None, aux_flags=PADDED_IO_ENABLED, math_type=MathType.FMA_MATH)

#: Outputs of a step, besides saved tensors.
RESULTS = ("y", "hy", "cy", "dx", "dhx", "dcx", "dw")


@dataclass
class Memory:
    """Arrays of values on the device, by port; ``spaces``: (address, bytes) by name."""

    buffers: dict[str, tuple[DeviceBuffer, tuple[int, ...]]]
    spaces: dict[str, tuple[int, int]]
    held: list[DeviceBuffer]

    def __getitem__(self, port: str) -> int:
        """The address, 0 where there is no such array."""
        return self.buffers[port][0].address if port in self.buffers else 0


@dataclass(frozen=True)
class Step:
    """A network on sequences. ``lengths``: None where all have the most steps. Values come from ``seed``."""

    handle: Handle
    rnn_desc: RNNDescriptor
    layout: RNNDataLayout
    max_length: int
    lengths: tuple[int, ...]
    seed: int = 0

    @property
    def x_desc(self) -> RNNDataDescriptor:
        return self._sequences(self.rnn_desc.input_size)

    @property
    def y_desc(self) -> RNNDataDescriptor:
        return self._sequences(self.operations.forward.rnn.output_size)

    @property
    def is_full(self) -> bool:
        return min(self.lengths) == self.max_length

    @property
    def operations(self) -> Training:
        rnn = self.rnn_desc.network(self.max_length, len(self.lengths), is_training=True)
        lengths = None if self.is_full else np.array(self.lengths)
        is_packed = self.layout is RNNDataLayout.SEQ_MAJOR_PACKED and not self.is_full
        return training(rnn, self.rnn_desc.data_type, lengths, is_packed=is_packed)

    @property
    def values(self) -> dict[str, Array]:
        """The values by port, as float64."""
        lengths = None if self.is_full else np.array(self.lengths)
        drawn = draw(np.random.default_rng(self.seed), self.operations, lengths)
        kind = self.rnn_desc.data_type
        return {
            port: values if values.dtype.kind == "i" else dtypes.rounded(values, kind).astype(np.float64)
            for port, values in drawn.items()
        }

    def memory(self, **others: Array) -> Memory:
        """The values, and results that are not written yet; ``others`` take the place of values."""
        values, outputs = self.values | others, {}
        for operation in (self.operations.forward, self.operations.backward_data, self.operations.backward_weights):
            outputs |= {port: np.full(t.dims, np.nan) for port, t in outputs_of(operation).items() if port in RESULTS}
        names = values.keys() - {"seq_lengths", "dropout_seed", "dropout_offset"}
        arrays = {name: values[name] for name in sorted(names)} | outputs
        buffers = {name: (self._upload(array, name), array.shape) for name, array in arrays.items()}
        sizes = get_rnn_temp_space_sizes(self.handle, self.rnn_desc, ForwardMode.TRAINING, self.x_desc)
        held = [DeviceBuffer.allocate(self.handle.runtime.context, size) for size in sizes]
        spaces = {
            name: (buffer.address, size) for name, buffer, size in zip(("work", "reserve"), held, sizes, strict=True)
        }
        return Memory(buffers, spaces, held)

    def forward(self, memory: Memory, mode: ForwardMode = ForwardMode.TRAINING, dev_lengths: int = 0) -> None:
        work, reserve = memory.spaces["work"], memory.spaces["reserve"]
        spaces = (*work[::-1], *(reserve[::-1] if mode is ForwardMode.TRAINING else (0, 0)))
        rnn_forward(
            self.handle, self.rnn_desc, mode, dev_lengths, self.x_desc, memory["x"], self.y_desc, memory["y"],
            self.states("h"), memory["hx"], memory["hy"], self.states("c"), memory["cx"], memory["cy"],
            self.weight_bytes, memory["w"], *spaces,
        )  # fmt: skip

    def backward_data(self, memory: Memory, dev_lengths: int = 0) -> None:
        rnn_backward_data(
            self.handle, self.rnn_desc, dev_lengths, self.y_desc, memory["y"], memory["dy"], self.x_desc, memory["dx"],
            self.states("h"), memory["hx"], memory["dhy"], memory["dhx"],
            self.states("c"), memory["cx"], memory["dcy"], memory["dcx"], self.weight_bytes, memory["w"],
            *memory.spaces["work"][::-1], *memory.spaces["reserve"][::-1],
        )  # fmt: skip

    def backward_weights(self, memory: Memory, mode: WgradMode = WgradMode.SET, dev_lengths: int = 0) -> None:
        rnn_backward_weights(
            self.handle, self.rnn_desc, mode, dev_lengths, self.x_desc, memory["x"], self.states("h"), memory["hx"],
            self.y_desc, memory["y"], self.weight_bytes, memory["dw"],
            *memory.spaces["work"][::-1], *memory.spaces["reserve"][::-1],
        )  # fmt: skip

    def run(self, memory: Memory, dev_lengths: int = 0) -> dict[str, Array]:
        """The whole step, and its results."""
        self.forward(memory, dev_lengths=dev_lengths)
        self.backward_data(memory, dev_lengths)
        self.backward_weights(memory, dev_lengths=dev_lengths)
        return self.results(memory)

    def results(self, memory: Memory) -> dict[str, Array]:
        """Arrays of storage type, by port."""
        self.handle.synchronize()
        return {port: self.read(memory, port) for port in RESULTS if port in memory.buffers}

    def read(self, memory: Memory, port: str) -> Array:
        buffer, dims = memory.buffers[port]
        stored = download(buffer, dtypes.info(self.rnn_desc.data_type).storage)
        if self._is_swapped(port, dims):
            return stored.reshape(dims[1], dims[0], dims[2]).swapaxes(0, 1)
        return stored.reshape(dims)

    @property
    def weight_bytes(self) -> int:
        return get_rnn_weight_space_size(self.rnn_desc)

    def states(self, kind: str) -> Tensor:
        rnn = self.operations.forward.rnn
        dims = (rnn.pseudo_layers, rnn.batch_size, rnn.state_size if kind == "h" else rnn.hidden_size)
        return Tensor(1, self.rnn_desc.data_type, dims, packed_strides(dims), 16)

    def _sequences(self, size: int) -> RNNDataDescriptor:
        batch, kind = len(self.lengths), self.rnn_desc.data_type
        return RNNDataDescriptor(kind, self.layout, self.max_length, batch, size, self.lengths)

    def _upload(self, array: Array, port: str) -> DeviceBuffer:
        array = array.swapaxes(0, 1) if self._is_swapped(port, array.shape) else array
        stored = dtypes.from_float64(np.ascontiguousarray(array), self.rnn_desc.data_type)
        return upload(self.handle.runtime, stored, f"{port} of {prod(array.shape)}")

    def _is_swapped(self, port: str, dims: tuple[int, ...]) -> bool:
        """Whether batch lies outermost."""
        is_sequence = port in ("x", "y", "dx", "dy") and len(dims) == 3
        return is_sequence and self.layout is RNNDataLayout.BATCH_MAJOR_UNPACKED


def check(one: Step, found: dict[str, Array], **others: Array) -> None:
    """The results are near those of the reference; a step adds rounded results of one call to the next."""
    expected = one.operations.reference(one.values | others)
    kind = one.rnn_desc.data_type
    unit = dtypes.info(kind).epsilon
    for port, stored in found.items():
        values = dtypes.to_values(stored, kind).astype(np.float64)
        size = np.sqrt(np.mean(expected[port] ** 2))
        np.testing.assert_allclose(values, expected[port], rtol=16 * unit, atol=32 * unit * size, err_msg=port)

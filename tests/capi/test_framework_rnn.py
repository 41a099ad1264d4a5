"""Recurrent networks as PyTorch, JAX and XLA call them: the same calls, in the same order, with the same NULLs."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.adv import Dropout, weights_to_torch
from lowdnn.adv.rnn_descriptors import RNNDescriptor
from lowdnn.enums import DataType, MathType
from lowdnn.ops.rnn_weights import PROJECTION_ID
from lowdnn.rnn_enums import DirectionMode, ForwardMode, RNNAlgo, RNNDataLayout, RNNMode, WgradMode
from lowdnn.runtime.runtime import Runtime
from tests.support.capi import DTYPES, Caller, Memory, tensor_descriptor
from tests.support.recurrent import Training, draw, training
from tests.support.rnn_step import NETWORK

Array = NDArray[Any]
STEPS, SEED = 4, 7
FULL, SORTED = (4, 4, 4), (4, 2, 1)
GRADIENTS = ("dx", "dhx", "dcx", "dw")
DOUBLE = replace(NETWORK, data_type=DataType.DOUBLE, math_prec=DataType.DOUBLE)
HALF = replace(NETWORK, data_type=DataType.HALF, math_type=MathType.TENSOR_OP_MATH)
ONE_WAY = replace(NETWORK, dir_mode=DirectionMode.UNIDIRECTIONAL)
TOLERANCES = {DataType.DOUBLE: 1e-12, DataType.FLOAT: 2e-5, DataType.HALF: 2e-2}
DROPPING = Dropout(0.5, states=8)

#: By name: a network, the lengths of sequences, and whether these are packed.
MODULES: dict[str, tuple[RNNDescriptor, tuple[int, ...], bool]] = {
    "LSTM both ways": (NETWORK, FULL, False),
    "LSTM in double": (DOUBLE, FULL, False),
    "LSTM with dropout": (replace(ONE_WAY, dropout_desc=DROPPING), FULL, False),
    "LSTM with a projection, packed": (replace(NETWORK, proj_size=3), SORTED, True),
    "LSTM of one sequence": (replace(ONE_WAY, num_layers=1), (4,), False),
    "GRU": (replace(ONE_WAY, cell_mode=RNNMode.GRU), FULL, False),
    "GRU in half": (replace(HALF, cell_mode=RNNMode.GRU), FULL, False),
    "GRU with dropout, packed": (replace(NETWORK, cell_mode=RNNMode.GRU, dropout_desc=DROPPING), SORTED, True),
    "tanh, packed, equal lengths": (replace(ONE_WAY, cell_mode=RNNMode.RNN_TANH), FULL, True),
    "ReLU, hidden size 1": (replace(ONE_WAY, cell_mode=RNNMode.RNN_RELU, hidden_size=1, proj_size=1), FULL, False),
}


class Torch:
    """A module of ``torch.nn`` on its inputs, whose arrays are by port; ``expected``: the float64 results.

    Its descriptors are made anew for each call. States are described in five dimensions.
    """

    layout, uses_device_lengths = RNNDataLayout.SEQ_MAJOR_UNPACKED, False

    def __init__(
        self, caller: Caller, device: Runtime, network: RNNDescriptor, lengths: tuple[int, ...], *, is_packed: bool
    ) -> None:
        self.caller, self.network, self.lengths, self.is_packed = caller, network, lengths, is_packed
        self.memory, self.handle = Memory(device), caller.handle()
        self.dtype = next(dtype for dtype, kind in DTYPES.items() if kind is network.data_type)
        given = draw(np.random.default_rng(1), self.operations(network), np.array(lengths))
        self.given = {port: self._rounded(port, array) for port, array in given.items()}
        self.given |= {port: np.array([start]) for port, start in self._dropout_start() if port in given}
        self.expected = self.operations(network).reference(self.given)
        arrays = {port: array for port, array in self.given.items() if not port.startswith("dropout")}
        results = {port: np.full_like(self.expected[port], np.nan) for port in ("y", "hy", *GRADIENTS[:2])}
        if self.is_lstm:
            results |= {port: np.full_like(self.expected[port], np.nan) for port in ("cy", "dcx")}
        results["dw"] = np.zeros_like(self.expected["dw"])
        self.at = {port: self.memory.put(self._stored(port, array)) for port, array in (arrays | results).items()}
        self.states = self._new_states() if network.dropout else (0, 0)

    @property
    def is_lstm(self) -> bool:
        return self.network.cell_mode is RNNMode.LSTM

    def operations(self, network: RNNDescriptor) -> Training:
        rnn = network.network(STEPS, len(self.lengths), is_training=True)
        return training(rnn, network.data_type, np.array(self.lengths), is_packed=self.is_packed)

    def descriptor(self, *, drops: bool = False, is_packed: bool = False, is_forward: bool = True) -> int:
        n, descriptor = self.network, int(self.caller.output("cudnnCreateRNNDescriptor"))
        self.caller.call(
            "cudnnSetRNNDescriptor_v8", descriptor, self.algorithm(is_packed=is_packed, is_forward=is_forward),
            n.cell_mode, n.bias_mode, n.dir_mode, n.input_mode, n.data_type, n.math_prec, n.math_type, n.input_size,
            n.hidden_size, n.proj_size, n.num_layers, self.dropout(drops=drops), int(not is_packed),
        )  # fmt: skip
        return descriptor

    def algorithm(self, *, is_packed: bool, is_forward: bool) -> RNNAlgo:
        """Small networks on padded sequences ask for the persistent algorithm forwards only."""
        n = self.network
        is_persistent = is_forward and not (is_packed or n.data_type is DataType.DOUBLE or n.proj_size < n.hidden_size)
        return RNNAlgo.PERSIST_STATIC_SMALL_H if is_persistent else RNNAlgo.STANDARD

    def dropout(self, *, drops: bool) -> int:
        descriptor = int(self.caller.output("cudnnCreateDropoutDescriptor"))
        if drops and self.network.dropout:
            share = ctypes.c_float(self.network.dropout)
            self.caller.call("cudnnRestoreDropoutDescriptor", descriptor, self.handle, share, *self.states, 0)
        else:
            self.caller.call("cudnnSetDropoutDescriptor", descriptor, self.handle, ctypes.c_float(0), 0, 0, 0)
        return descriptor

    def sequences(self, size: int) -> int:
        descriptor = int(self.caller.output("cudnnCreateRNNDataDescriptor"))
        layout = RNNDataLayout.SEQ_MAJOR_PACKED if self.is_packed else self.layout
        lengths = (ctypes.c_int * len(self.lengths))(*self.lengths)
        arguments = (self.network.data_type, layout, STEPS, len(self.lengths), size, lengths, self.fill())
        self.caller.call("cudnnSetRNNDataDescriptor", descriptor, *arguments)
        return descriptor

    def fill(self) -> Any:
        return 0

    def described(self, port: str) -> int:
        """Where there are such states."""
        if port not in self.given:
            return 0
        return tensor_descriptor(self.caller, self._stored(port, self.given[port])[..., None, None])

    def parameters(self, descriptor: int, space: int, size: int) -> list[tuple[int, int]]:
        """The first element and the count of each parameter; gates lie one behind the other."""
        parameters, layers = 2 * self.operations(self.network).forward.rnn.gates, []
        for layer in range(self.network.weight_space.rnn.pseudo_layers):
            for is_matrix in (True, False):
                regions = [
                    self.region(descriptor, layer, space, size, number, is_matrix=is_matrix)
                    for number in range(parameters)
                ]
                for half in (regions[: parameters // 2], regions[parameters // 2 :]):
                    first, count = half[0]
                    assert half == [(first + count * index, count) for index in range(len(half))]
                    layers.append((first, count * len(half)))
            if self.network.proj_size < self.network.hidden_size:
                layers.append(self.region(descriptor, layer, space, size, PROJECTION_ID, is_matrix=True))
        return layers

    def region(
        self, descriptor: int, layer: int, space: int, size: int, number: int, *, is_matrix: bool
    ) -> tuple[int, int]:
        """PyTorch asks for a matrix or for a bias."""
        tensor, address = int(self.caller.output("cudnnCreateTensorDescriptor")), ctypes.c_void_p()
        asked, other = (tensor, ctypes.byref(address)), (0, 0)
        outputs = (*asked, *other) if is_matrix else (*other, *asked)
        self.caller.call("cudnnGetRNNWeightParams", self.handle, descriptor, layer, size, space, number, *outputs)
        kind, count, extents, strides = ctypes.c_int(), ctypes.c_int(), (ctypes.c_int * 3)(), (ctypes.c_int * 5)()
        found = (ctypes.byref(kind), ctypes.byref(count), extents, strides)
        self.caller.call("cudnnGetTensorNdDescriptor", tensor, 3, *found)
        assert (kind.value, count.value) == (self.network.data_type, 3)
        offset = (address.value or 0) - space
        assert offset % self.dtype.itemsize == 0
        return offset // self.dtype.itemsize, int(np.prod(extents))

    def weight_bytes(self, descriptor: int) -> int:
        return int(self.caller.output("cudnnGetRNNWeightSpaceSize", self.handle, descriptor, kind=ctypes.c_size_t))

    def spaces(self, descriptor: int, mode: ForwardMode, x: int, *, asks_for_reserve: bool) -> tuple[int, ...]:
        """Size and address of the workspace and, where it is asked for, of the reserve space."""
        sizes = ctypes.c_size_t(), ctypes.c_size_t()
        reserve = ctypes.byref(sizes[1]) if asks_for_reserve else 0
        arguments = (self.handle, descriptor, mode, x, ctypes.byref(sizes[0]), reserve)
        self.caller.call("cudnnGetRNNTempSpaceSizes", *arguments)
        sized = [size.value for size in sizes[: 1 + asks_for_reserve]]
        return tuple(value for size in sized for value in (size, self.memory.put(np.zeros(size, np.uint8))))

    def forward(self, mode: ForwardMode) -> tuple[int, int]:
        """Writes y, hy and cy; returns size and address of the reserve space, which an inference does without."""
        is_training = mode is ForwardMode.TRAINING
        descriptor = self.descriptor(drops=is_training, is_packed=self.is_packed)
        x, y = self.sequences(self.network.input_size), self.sequences(self.given["dy"].shape[-1])
        spaces = self.spaces(descriptor, mode, x, asks_for_reserve=is_training)
        work, reserve = spaces[:2], spaces[2:] or (0, 0)
        self.caller.call(
            "cudnnRNNForward", self.handle, descriptor, mode, self._lengths(), x, self.at["x"], y, self.at["y"],
            self.described("hx"), *self._addresses("hx", "hy"), self.described("cx"), *self._addresses("cx", "cy"),
            self.weight_bytes(descriptor), self.at["w"], *work, *reserve,
        )  # fmt: skip
        return reserve[0], reserve[1]

    def backward(self, reserve: tuple[int, int]) -> None:
        """Each of the gradients has descriptors and a workspace of its own."""
        for call in (self._backward_data, self._backward_weights):
            descriptor = self.descriptor(drops=True, is_packed=self.is_packed, is_forward=False)
            x, y = self.sequences(self.network.input_size), self.sequences(self.given["dy"].shape[-1])
            work = self.spaces(descriptor, ForwardMode.TRAINING, x, asks_for_reserve=False)
            call(descriptor, x, y, (*work, *reserve))

    def check(self, expected: dict[str, Array], *ports: str) -> None:
        tolerance = TOLERANCES[self.network.data_type]
        for port in ports:
            if port in self.at:
                wanted = self._stored(port, expected[port])
                found = self.memory.get(self.at[port])
                np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, err_msg=port)

    def _backward_data(self, descriptor: int, x: int, y: int, spaces: tuple[int, ...]) -> None:
        self.caller.call(
            "cudnnRNNBackwardData_v8", self.handle, descriptor, self._lengths(), y, *self._addresses("y", "dy"),
            x, self.at["dx"], self.described("hx"), *self._addresses("hx", "dhy", "dhx"),
            self.described("cx"), *self._addresses("cx", "dcy", "dcx"),
            self.weight_bytes(descriptor), self.at["w"], *spaces,
        )  # fmt: skip

    def _backward_weights(self, descriptor: int, x: int, y: int, spaces: tuple[int, ...]) -> None:
        self.caller.call(
            "cudnnRNNBackwardWeights_v8", self.handle, descriptor, WgradMode.ADD, self._lengths(), x, self.at["x"],
            self.described("hx"), self.at["hx"], y, self.at["y"],
            self.weight_bytes(descriptor), self.at["dw"], *spaces,
        )  # fmt: skip

    def _addresses(self, *ports: str) -> list[int]:
        return [self.at.get(port, 0) for port in ports]

    def _lengths(self) -> int:
        return self.at["seq_lengths"] if self.uses_device_lengths else 0

    def _new_states(self) -> tuple[int, int]:
        """The address and the size of states of dropout, begun with the seed."""
        descriptor = int(self.caller.output("cudnnCreateDropoutDescriptor"))
        size = int(self.caller.output("cudnnDropoutGetStatesSize", self.handle, kind=ctypes.c_size_t))
        states, share = self.memory.put(np.zeros(size, np.uint8)), ctypes.c_float(self.network.dropout)
        self.caller.call("cudnnSetDropoutDescriptor", descriptor, self.handle, share, states, size, SEED)
        return states, size

    def _dropout_start(self) -> tuple[tuple[str, int], ...]:
        return ("dropout_seed", SEED), ("dropout_offset", 0)

    def _rounded(self, port: str, array: Array) -> Array:
        """To elements of the network's type."""
        return array if port == "seq_lengths" else array.astype(self.dtype).astype(np.float64)

    def _stored(self, port: str, array: Array) -> Array:
        """As it lies in memory."""
        if port == "seq_lengths":
            return array.astype(np.int32)
        is_swapped = self.layout is RNNDataLayout.BATCH_MAJOR_UNPACKED and port in ("x", "y", "dx", "dy")
        return np.ascontiguousarray(array.swapaxes(0, 1) if is_swapped else array).astype(self.dtype)


class Jax(Torch):
    """``jax.experimental.rnn``: batch outermost, lengths on the device too, states in three dimensions."""

    layout, uses_device_lengths = RNNDataLayout.BATCH_MAJOR_UNPACKED, True

    def dropout(self, *, drops: bool) -> int:
        """States of some size that are not there."""
        descriptor = int(self.caller.output("cudnnCreateDropoutDescriptor"))
        size = int(self.caller.output("cudnnDropoutGetStatesSize", self.handle, kind=ctypes.c_size_t))
        self.caller.call("cudnnSetDropoutDescriptor", descriptor, self.handle, ctypes.c_float(0), 0, size, 123)
        return descriptor

    def fill(self) -> Any:
        return ctypes.byref(ctypes.c_float(0))

    def described(self, port: str) -> int:
        return tensor_descriptor(self.caller, self._stored(port, self.given[port]))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_pytorch(caller: Caller, device: Runtime, name: str) -> None:
    network, lengths, is_packed = MODULES[name]
    module = Torch(caller, device, network, lengths, is_packed=is_packed)
    descriptor = module.descriptor()
    size = module.weight_bytes(descriptor)
    wanted = weights_to_torch(network, np.arange(size // module.dtype.itemsize))
    parameters = [(array.flat[0], array.size) for array in wanted.values()]
    assert module.parameters(descriptor, module.at["w"], size) == parameters
    reserve = module.forward(ForwardMode.TRAINING)
    module.check(module.expected, "y", "hy", "cy")
    module.backward(reserve)
    module.check(module.expected, *GRADIENTS)
    module.forward(ForwardMode.INFERENCE)
    without = {port: array for port, array in module.given.items() if not port.startswith("dropout")}
    operations = module.operations(replace(network, dropout_desc=None))
    module.check(operations.reference(without), "y", "hy", "cy")


@pytest.mark.parametrize("lengths", [FULL, (2, 4, 1)])
def test_an_lstm_of_jax(caller: Caller, device: Runtime, lengths: tuple[int, ...]) -> None:
    module = Jax(caller, device, NETWORK, lengths, is_packed=False)
    module.backward(module.forward(ForwardMode.TRAINING))
    module.check(module.expected, "y", "hy", "cy", *GRADIENTS)


def test_the_weights_of_xla(caller: Caller, device: Runtime) -> None:
    """XLA does not set a descriptor of dropout that drops nothing, and asks for offsets without a weight space."""
    module = Torch(caller, device, replace(NETWORK, proj_size=3), SORTED, is_packed=True)
    module.dropout = lambda drops: int(caller.output("cudnnCreateDropoutDescriptor"))  # type: ignore[method-assign]
    descriptor = module.descriptor()
    hidden, projection = ctypes.c_int(), ctypes.c_int()
    outputs = [0] * 9 + [ctypes.byref(hidden), ctypes.byref(projection), 0, 0, 0]
    caller.call("cudnnGetRNNDescriptor_v8", descriptor, *outputs)
    assert (hidden.value, projection.value) == (8, 3)
    size = module.weight_bytes(descriptor)
    assert module.parameters(descriptor, 0, size) == module.parameters(descriptor, module.at["w"], size)
    reserve = module.forward(ForwardMode.TRAINING)
    module.backward(reserve)
    module.check(module.expected, "y", "hy", "cy", *GRADIENTS)


@pytest.mark.parametrize("name", ["cudnnRNNGetClip_v8", "cudnnRNNGetClip_v9", "cudnnGetRNNDescriptor_v8"])
def test_values_that_are_not_wanted(caller: Caller, device: Runtime, name: str) -> None:
    descriptor = Torch(caller, device, NETWORK, FULL, is_packed=False).descriptor()
    counts = {"cudnnRNNGetClip_v8": 4, "cudnnRNNGetClip_v9": 3, "cudnnGetRNNDescriptor_v8": 14}
    caller.call(name, descriptor, *[0] * counts[name])

"""Every mode of recurrent networks through C against the float64 reference: of lowdnn's library, and of cuDNN's own.

That cuDNN gives the reference's results says that both libraries compute the same.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.adv import RNNDataLayout, RNNDescriptor
from lowdnn.driver.base import Driver
from lowdnn.enums import DataType
from lowdnn.ops.rnn import Clip
from lowdnn.rnn_enums import (
    DirectionMode,
    ForwardMode,
    RNNBiasMode,
    RNNClipMode,
    RNNInputMode,
    RNNMode,
)
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.capi.test_framework_rnn import FULL, GRADIENTS, SORTED, Jax
from tests.support.capi import Caller
from tests.support.rnn_step import NETWORK
from tests.support.runtime import open_runtime

PADDED, PACKED, BATCHES = (
    RNNDataLayout.SEQ_MAJOR_UNPACKED,
    RNNDataLayout.SEQ_MAJOR_PACKED,
    RNNDataLayout.BATCH_MAJOR_UNPACKED,
)
LSTM = replace(NETWORK, data_type=DataType.DOUBLE, math_prec=DataType.DOUBLE)
GRU, TANH, RELU = (replace(LSTM, cell_mode=mode) for mode in (RNNMode.GRU, RNNMode.RNN_TANH, RNNMode.RNN_RELU))
ONE_WAY = {"dir_mode": DirectionMode.UNIDIRECTIONAL}
SKIPPING = {"input_mode": RNNInputMode.SKIP_INPUT, "input_size": 8}
INPUT, RECURRENT, NONE = (
    {"bias_mode": mode} for mode in (RNNBiasMode.SINGLE_INP_BIAS, RNNBiasMode.SINGLE_REC_BIAS, RNNBiasMode.NO_BIAS)
)

#: By name: a network, the lengths of sequences, and how they lie.
MODES: dict[str, tuple[RNNDescriptor, tuple[int, ...], RNNDataLayout]] = {
    "LSTM": (LSTM, FULL, PADDED),
    "LSTM, padded": (LSTM, (2, 4, 1), PADDED),
    "LSTM, batch outermost": (LSTM, (2, 4, 1), BATCHES),
    "LSTM, packed, input bias": (replace(LSTM, **INPUT), SORTED, PACKED),
    "LSTM, projection": (replace(LSTM, proj_size=3), SORTED, PACKED),
    "LSTM, clip": (replace(LSTM, clip=Clip(-0.25, 0.5)), FULL, PADDED),
    "LSTM, clip and projection": (replace(LSTM, clip=Clip(-0.25, 0.5), proj_size=5), (2, 4, 1), PADDED),
    "LSTM, skipped input": (replace(LSTM, **SKIPPING, **ONE_WAY), FULL, PADDED),
    "GRU": (GRU, (2, 4, 1), PADDED),
    "GRU, input bias": (replace(GRU, **INPUT, **ONE_WAY), FULL, PADDED),
    "GRU, recurrent bias": (replace(GRU, **RECURRENT), SORTED, PACKED),
    "GRU, no bias, skipped input": (replace(GRU, **NONE, **SKIPPING, **ONE_WAY), FULL, BATCHES),
    "tanh, three layers": (replace(TANH, num_layers=3, **ONE_WAY), SORTED, PACKED),
    "tanh, recurrent bias": (replace(TANH, **RECURRENT), FULL, PADDED),
    "ReLU, no bias": (replace(RELU, **NONE), (2, 4, 1), PADDED),
    "ReLU, skipped input": (replace(RELU, **SKIPPING, **INPUT), SORTED, PACKED),
}


class Program(Jax):
    """One training step, as ``Jax`` calls it, with a clip; lengths lie on the device too."""

    def __init__(
        self, caller: Caller, device: Runtime, network: RNNDescriptor, lengths: tuple[int, ...], layout: RNNDataLayout
    ) -> None:
        self.layout = layout
        super().__init__(caller, device, network, lengths, is_packed=layout is PACKED)
        self.places = self._weight_places()
        moved = np.zeros_like(self.given["w"])
        moved[self.places] = self.given["w"]
        self.at["w"] = self.memory.put(self._stored("w", moved))

    def _weight_places(self) -> NDArray[np.int64]:
        """The place in the library's weight space of each element of lowdnn's: cuDNN has projections elsewhere."""
        descriptor, space, size = self.descriptor(), self.at["w"], self.given["w"].nbytes
        found = np.empty(self.given["w"].size, np.int64)
        for (layer, number), pair in self.network.weight_space.places.items():
            for region, is_matrix in zip(pair, (True, False), strict=True):
                if region is not None:
                    first, count = self.region(descriptor, layer, space, size, number, is_matrix=is_matrix)
                    found[region.offset : region.end] = first + np.arange(count)
        return found

    def fill(self) -> Any:
        return ctypes.byref(ctypes.c_double(0))

    def described(self, port: str) -> int:
        return super().described(port) if port in self.given else 0

    def descriptor(self, **how: bool) -> int:
        descriptor, clip = super().descriptor(**how), self.network.clip
        if clip is not None:
            self.caller.call("cudnnRNNSetClip_v9", descriptor, RNNClipMode.MINMAX, clip.lower, clip.upper)
        assert self.weight_bytes(descriptor) == self.given["w"].size * self.dtype.itemsize
        return descriptor

    def check_results(self) -> None:
        """Compares all results; in padded sequences rows that there are."""
        there = np.arange(4)[:, np.newaxis] < np.array(self.lengths)
        for port in ("y", "hy", "cy", *GRADIENTS):
            if port in self.at:
                found, wanted = self.memory.get(self.at[port]), self._stored(port, self.expected[port])
                if port == "dw":
                    found = found[self.places]
                if port in ("y", "dx") and not self.is_packed:
                    rows = there.T if self.layout is BATCHES else there
                    found, wanted = found[rows], wanted[rows]
                np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-11, err_msg=port)


@pytest.mark.parametrize("name", MODES)
def test_lowdnn_gives_the_results_of_the_reference(caller: Caller, device: Runtime, name: str) -> None:
    _check(Program(caller, device, *MODES[name]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODES)
def test_cudnn_gives_the_results_of_the_reference(cuda_driver: Driver, kernel_cache_dir: Path, name: str) -> None:
    with open_runtime(cuda_driver, kernel_cache_dir) as runtime, runtime.context.activated():
        _check(Program(Cudnn(), runtime, *MODES[name]))


class Cudnn(Caller):
    """cuDNN's own library, where its package is installed; skips the test of what it does not compute."""

    def __init__(self) -> None:
        found = find_spec("nvidia.cudnn") if find_spec("nvidia") else None
        if found is None or not found.submodule_search_locations:
            pytest.skip("the package of cuDNN is not installed")
        (folder, *_) = found.submodule_search_locations
        super().__init__(ctypes.CDLL(f"{folder}/lib/libcudnn.so.9"))

    def call(self, name: str, *arguments: Any) -> None:
        status = self.status(name, *arguments)
        if status.name.startswith("NOT_SUPPORTED"):
            pytest.skip(f"{name}: {status.name}: {self.last_error()}")
        assert status is Status.SUCCESS, f"{name}: {status.name}: {self.last_error()}"


def _check(program: Program) -> None:
    program.backward(program.forward(ForwardMode.TRAINING))
    program.check_results()

"""Recurrent networks: descriptors, sizes, addresses of weights, and a training step through C."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from lowdnn.enums import DataType, MathType, NanPropagation
from lowdnn.ops.rnn import Clip
from lowdnn.rnn_enums import (
    DirectionMode,
    ForwardMode,
    RNNAlgo,
    RNNBiasMode,
    RNNClipMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
    WgradMode,
)
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory, tensor_descriptor
from tests.support.recurrent import draw, training
from tests.support.rnn_step import NETWORK

STEPS, BATCH, INPUT, HIDDEN, LAYERS = 4, 3, 5, 8, 2
SIZES = (INPUT, HIDDEN, HIDDEN, LAYERS)
MODES = (
    RNNAlgo.STANDARD, RNNMode.LSTM, RNNBiasMode.DOUBLE_BIAS, DirectionMode.BIDIRECTIONAL, RNNInputMode.LINEAR_INPUT,
    DataType.FLOAT, DataType.FLOAT, MathType.FMA_MATH,
)  # fmt: skip


def network(caller: Caller, *, dropout: int = 0) -> int:
    descriptor = int(caller.output("cudnnCreateRNNDescriptor"))
    caller.call("cudnnSetRNNDescriptor_v8", descriptor, *MODES, *SIZES, dropout, 1)
    return descriptor


def sequences(caller: Caller, size: int, lengths: tuple[int, ...] = (4, 2, 1)) -> int:
    descriptor = int(caller.output("cudnnCreateRNNDataDescriptor"))
    arguments = (DataType.FLOAT, RNNDataLayout.SEQ_MAJOR_UNPACKED, STEPS, BATCH, size)
    fill = ctypes.c_float(-1.5)
    array = (ctypes.c_int * BATCH)(*lengths)
    caller.call("cudnnSetRNNDataDescriptor", descriptor, *arguments, array, ctypes.byref(fill))
    return descriptor


def numbers(caller: Caller, name: str, descriptor: int, *kinds: Any) -> list[Any]:
    """The numbers that a call on a descriptor writes through its pointers."""
    values = [kind() for kind in kinds]
    caller.call(name, descriptor, *map(ctypes.byref, values))
    return [value.value for value in values]


def test_a_descriptor_gives_back_what_was_set(caller: Caller) -> None:
    dropout = int(caller.output("cudnnCreateDropoutDescriptor"))
    caller.call("cudnnSetDropoutDescriptor", dropout, caller.handle(), ctypes.c_float(0.5), 0, 0, 0)
    kinds = [ctypes.c_int] * 12 + [ctypes.c_void_p, ctypes.c_uint]
    found = numbers(caller, "cudnnGetRNNDescriptor_v8", network(caller, dropout=dropout), *kinds)
    assert found == [*map(int, MODES), *SIZES, dropout, 1]


def test_sequences_give_back_what_was_set(caller: Caller) -> None:
    values = [ctypes.c_int() for _ in range(5)]
    lengths, fill = (ctypes.c_int * 4)(7, 7, 7, 7), ctypes.c_float()
    outputs = (*map(ctypes.byref, values), 2, lengths, ctypes.byref(fill))
    caller.call("cudnnGetRNNDataDescriptor", sequences(caller, INPUT), *outputs)
    expected = [DataType.FLOAT, RNNDataLayout.SEQ_MAJOR_UNPACKED, STEPS, BATCH, INPUT]
    assert [value.value for value in values] == expected
    assert (list(lengths), fill.value) == ([4, 2, 7, 7], -1.5)


def test_a_clip_is_kept_whenever_it_is_set(caller: Caller) -> None:
    descriptor = int(caller.output("cudnnCreateRNNDescriptor"))
    caller.call("cudnnRNNSetClip_v8", descriptor, RNNClipMode.MINMAX, NanPropagation.NOT_PROPAGATE_NAN, -0.5, 0.25)
    caller.call("cudnnSetRNNDescriptor_v8", descriptor, *MODES, *SIZES, 0, 1)
    kinds = (ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.c_double)
    assert numbers(caller, "cudnnRNNGetClip_v8", descriptor, *kinds) == [1, 0, -0.5, 0.25]
    caller.call("cudnnRNNSetClip_v9", descriptor, RNNClipMode.MINMAX, -2.0, 2.0)
    assert numbers(caller, "cudnnRNNGetClip_v8", descriptor, *kinds) == [1, 1, -2.0, 2.0]
    caller.call("cudnnRNNSetClip_v9", descriptor, RNNClipMode.NONE, 0.0, 0.0)
    assert numbers(caller, "cudnnRNNGetClip_v9", descriptor, kinds[0], *kinds[2:]) == [0, 0.0, 0.0]


def test_addresses_of_weights(caller: Caller) -> None:
    """PyTorch asks for them by descriptors of three dimensions."""
    handle, descriptor = caller.handle(), network(caller)
    size = caller.output("cudnnGetRNNWeightSpaceSize", handle, descriptor, kind=ctypes.c_size_t)
    assert size == 4 * (2 * (32 * 5 + 32 * 8) + 2 * (32 * 16 + 32 * 8) + 4 * 64)
    matrix, bias = (int(caller.output("cudnnCreateTensorDescriptor")) for _ in range(2))
    m_addr, b_addr = ctypes.c_void_p(), ctypes.c_void_p()
    pointers = (matrix, ctypes.byref(m_addr), bias, ctypes.byref(b_addr))
    caller.call("cudnnGetRNNWeightParams", handle, descriptor, 0, size, 0x1000, 5, *pointers)
    assert (m_addr.value, b_addr.value) == (0x1000 + 4 * (160 + 64), 0x1000 + size - 4 * (256 - 40))
    for tensor, dims in ((matrix, (1, 8, 8)), (bias, (1, 8, 1))):
        kind, count, extents, strides = ctypes.c_int(), ctypes.c_int(), (ctypes.c_int * 3)(), (ctypes.c_int * 3)()
        outputs = (ctypes.byref(kind), ctypes.byref(count), extents, strides)
        caller.call("cudnnGetTensorNdDescriptor", tensor, 3, *outputs)
        assert (kind.value, count.value, tuple(extents)) == (DataType.FLOAT, 3, dims)
        assert tuple(strides) == (dims[1] * dims[2], dims[2], 1)
    assert (
        caller.status("cudnnGetRNNWeightParams", handle, descriptor, 4, size, 0x1000, 5, *pointers) is Status.BAD_PARAM
    )


def test_any_output_of_weights_may_be_left_out(caller: Caller) -> None:
    handle, descriptor = caller.handle(), network(caller)
    size = caller.output("cudnnGetRNNWeightSpaceSize", handle, descriptor, kind=ctypes.c_size_t)
    addresses = (0x1000, 0x1000 + size - 4 * 4 * 64)
    for wanted in product((False, True), repeat=4):
        matrix, bias = (int(caller.output("cudnnCreateTensorDescriptor")) for _ in range(2))
        m_addr, b_addr = ctypes.c_void_p(), ctypes.c_void_p()
        outputs = (matrix, ctypes.byref(m_addr), bias, ctypes.byref(b_addr))
        given = [output if is_wanted else 0 for output, is_wanted in zip(outputs, wanted, strict=True)]
        caller.call("cudnnGetRNNWeightParams", handle, descriptor, 0, size, 0x1000, 0, *given)
        found = [m_addr.value, b_addr.value]
        assert found == [address if wanted[1 + 2 * i] else None for i, address in enumerate(addresses)]
        for tensor, elements, is_wanted in zip((matrix, bias), (8 * 5, 8), wanted[::2], strict=True):
            held = ctypes.c_size_t()
            status = caller.status("cudnnGetTensorSizeInBytes", tensor, ctypes.byref(held))
            assert (status, held.value) == ((Status.SUCCESS, 4 * elements) if is_wanted else (Status.BAD_PARAM, 0))
    for place, name in ((0, "mDesc"), (2, "bDesc")):
        others = [descriptor if index == place else 0 for index in range(4)]
        arguments = (handle, descriptor, 0, size, 0x1000, 0, *others)
        assert caller.status("cudnnGetRNNWeightParams", *arguments) is Status.BAD_PARAM
        assert f"cudnnGetRNNWeightParams.{name}: expected a pointer to a TensorDescriptor" in caller.last_error()


@pytest.mark.parametrize("clips_at", ["never", "first", "last"])
def test_a_training_step(caller: Caller, device: Runtime, clips_at: str) -> None:
    """The states of cells are clipped whether the network is described behind the clip or before it."""
    described = replace(NETWORK, clip=None if clips_at == "never" else Clip(-0.25, 0.5))
    handle, memory, rnn = caller.handle(), Memory(device), described.network(STEPS, BATCH, is_training=True)
    lengths = np.array([4, 2, 1])
    operations = training(rnn, DataType.FLOAT, lengths)
    values = {
        port: array.astype(np.float32) if array.dtype.kind == "f" else array
        for port, array in draw(np.random.default_rng(1), operations, lengths).items()
    }
    expected = operations.reference({port: array.astype(np.float64) for port, array in values.items()})
    results = {"y", "hy", "cy", "dx", "dhx", "dcx", "dw"}
    at = {port: memory.put(array) for port, array in values.items() if port != "seq_lengths"}
    at |= {port: memory.put(np.full(expected[port].shape, np.nan, np.float32)) for port in sorted(results)}
    descriptor, x, y = network(caller), sequences(caller, INPUT), sequences(caller, 2 * HIDDEN)
    if described.clip is not None:
        caller.call("cudnnRNNSetClip_v9", descriptor, RNNClipMode.MINMAX, described.clip.lower, described.clip.upper)
    if clips_at == "first":
        caller.call("cudnnSetRNNDescriptor_v8", descriptor, *MODES, *SIZES, 0, 1)
    state = tensor_descriptor(caller, values["hx"])
    sizes = ctypes.c_size_t(), ctypes.c_size_t()
    mode = ForwardMode.TRAINING
    caller.call("cudnnGetRNNTempSpaceSizes", handle, descriptor, mode, x, *map(ctypes.byref, sizes))
    work, reserve = ((size.value, memory.put(np.zeros(size.value, np.uint8))) for size in sizes)
    size = caller.output("cudnnGetRNNWeightSpaceSize", handle, descriptor, kind=ctypes.c_size_t)
    caller.call(
        "cudnnRNNForward", handle, descriptor, mode, 0, x, at["x"], y, at["y"], state, at["hx"], at["hy"],
        state, at["cx"], at["cy"], size, at["w"], *work, *reserve,
    )  # fmt: skip
    caller.call(
        "cudnnRNNBackwardData_v8", handle, descriptor, 0, y, at["y"], at["dy"], x, at["dx"],
        state, at["hx"], at["dhy"], at["dhx"], state, at["cx"], at["dcy"], at["dcx"], size, at["w"], *work, *reserve,
    )  # fmt: skip
    caller.call(
        "cudnnRNNBackwardWeights_v8", handle, descriptor, WgradMode.SET, 0, x, at["x"], state, at["hx"], y, at["y"],
        size, at["dw"], *work, *reserve,
    )  # fmt: skip
    expected["y"] = np.where(np.arange(STEPS)[:, None, None] < lengths[:, None], expected["y"], -1.5)
    for port in results:
        np.testing.assert_allclose(memory.get(at[port]), expected[port], rtol=1e-5, atol=1e-5, err_msg=port)


def unset(caller: Caller) -> tuple[Any, ...]:
    return ("cudnnGetRNNWeightSpaceSize", caller.handle(), int(caller.output("cudnnCreateRNNDescriptor")), 0)


TOO_LONG = (ctypes.c_int * BATCH)(1, STEPS + 1, 1)

#: By name: a call, its status, and what its message says.
BAD: dict[str, tuple[Callable[[Caller], tuple[Any, ...]], Status, str]] = {
    "unset": (unset, Status.BAD_PARAM, "rnnDesc: expected a descriptor that was set, got one that was only created"),
    "a wide projection": (
        lambda c: ("cudnnSetRNNDescriptor_v8", network(c), *MODES, INPUT, HIDDEN, HIDDEN + 1, LAYERS, 0, 1),
        Status.BAD_PARAM,
        "proj_size: expected 1 to the hidden size 8, got 9",
    ),
    "no such cell": (
        lambda c: ("cudnnSetRNNDescriptor_v8", network(c), MODES[0], 9, *MODES[2:], *SIZES, 0, 1),
        Status.BAD_PARAM,
        "cellMode: expected a number of RNNMode, got 9",
    ),
    "no lengths": (
        lambda c: ("cudnnSetRNNDataDescriptor", sequences(c, INPUT), 0, 0, STEPS, BATCH, INPUT, 0, 0),
        Status.BAD_PARAM_NULL_POINTER,
        "seqLengthArray: expected a pointer, got NULL",
    ),
    "a length beyond the maximum": (
        lambda c: (
            "cudnnSetRNNDataDescriptor",
            sequences(c, INPUT),
            0,
            0,
            STEPS,
            BATCH,
            INPUT,
            (ctypes.c_int * 3)(1, 5, 1),
            0,
        ),
        Status.BAD_PARAM,
        "seq_length_array[1]: expected 1 to 4, got 5",
    ),
    "a clip that ends before it begins": (
        lambda c: ("cudnnRNNSetClip_v9", network(c), RNNClipMode.MINMAX, 1.0, -1.0),
        Status.BAD_PARAM,
        "clip: expected lower <= upper, got 1.0 and -1.0",
    ),
    "no batch": (
        lambda c: ("cudnnBuildRNNDynamic", c.handle(), network(c), 0),
        Status.BAD_PARAM,
        "mini_batch: expected 1 to 2147483647, got 0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(caller: Caller, name: str) -> None:
    arguments, status, message = BAD[name]
    assert caller.status(*arguments(caller)) is status
    assert message in caller.last_error()

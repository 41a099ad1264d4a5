"""Training steps and inferences through ``lowdnn.adv``, against the float64 references."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.adv import (
    DirectionMode,
    Dropout,
    ForwardMode,
    RNNDataDescriptor,
    RNNDataLayout,
    RNNMode,
    WgradMode,
    build_rnn_dynamic,
    get_rnn_temp_space_sizes,
    rnn_forward,
)
from lowdnn.adv.rnn_problems import Problem, RnnPlans
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.workspace import ALIGNMENT_BYTES
from lowdnn.status import (
    BadParamError,
    NullPointerError,
    SizeInsufficientError,
)
from tests.support.errors import raises
from tests.support.rnn_step import NETWORK, RESULTS, Memory, Step, check
from tests.support.runtime import download, upload

PADDED, PACKED, BATCHES = (
    RNNDataLayout.SEQ_MAJOR_UNPACKED,
    RNNDataLayout.SEQ_MAJOR_PACKED,
    RNNDataLayout.BATCH_MAJOR_UNPACKED,
)
LENGTHS = (4, 2, 1)


def step(handle: Handle, layout: RNNDataLayout = PADDED, lengths: tuple[int, ...] = LENGTHS, **fields: Any) -> Step:
    return Step(handle, replace(NETWORK, **fields), layout, 4, lengths)


@pytest.mark.parametrize("layout", [PADDED, PACKED, BATCHES])
@pytest.mark.parametrize("cell", [RNNMode.LSTM, RNNMode.GRU, RNNMode.RNN_TANH, RNNMode.RNN_RELU])
def test_a_training_step(handle: Handle, cell: RNNMode, layout: RNNDataLayout) -> None:
    one = step(handle, layout, cell_mode=cell)
    check(one, one.run(one.memory()))


@pytest.mark.parametrize("kind", [DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE])
def test_data_types(handle: Handle, kind: DataType) -> None:
    one = step(handle, PACKED, data_type=kind, math_prec=DataType.DOUBLE if kind is DataType.DOUBLE else DataType.FLOAT)
    check(one, one.run(one.memory()))


def test_a_projection_and_sequences_of_one_length(handle: Handle) -> None:
    """Packed ones lie as padded ones do, and need no lengths on the device."""
    packed, padded = (step(handle, layout, (4, 4), proj_size=3) for layout in (PACKED, PADDED))
    found, same = packed.run(packed.memory()), padded.run(padded.memory())
    check(padded, same)
    for port in RESULTS:
        assert found[port].tobytes() == same[port].tobytes(), port


@pytest.mark.parametrize("offset", [0, 6, 128])
def test_the_workspace_serves_all_lengths_wherever_it_begins(handle: Handle, offset: int) -> None:
    """Its size is that of sequences as long as each other, too, which need no copy of a wide input."""
    one = step(handle, input_size=64, dir_mode=DirectionMode.UNIDIRECTIONAL)
    memory, full = one.memory(), replace(one.x_desc, seq_length_array=(4, 4, 4))
    size, reserve = get_rnn_temp_space_sizes(handle, one.rnn_desc, ForwardMode.TRAINING, full)
    assert (size, reserve) == (memory.spaces["work"][1], memory.spaces["reserve"][1])
    workspace = DeviceBuffer.allocate(handle.runtime.context, offset + size)
    memory.spaces["work"] = (workspace.address + offset, size)
    check(one, one.run(memory))


@pytest.mark.parametrize(
    ("cell", "kind", "extent"),
    [(RNNMode.LSTM, DataType.HALF, 64), (RNNMode.GRU, DataType.FLOAT, 64), (RNNMode.GRU, DataType.HALF, 512)],
)
def test_the_workspace_serves_other_alignments_fewer_tensors_and_sums(
    handle: Handle, cell: RNNMode, kind: DataType, extent: int
) -> None:
    """In large networks the products of the weights' gradient are split where it is added to an old one."""
    network = replace(
        NETWORK, cell_mode=cell, data_type=kind, math_prec=DataType.FLOAT, input_size=extent, hidden_size=extent,
        proj_size=extent, num_layers=1,
    )  # fmt: skip
    x_desc = RNNDataDescriptor(kind, PADDED, extent, extent, extent, (extent,) * extent)
    size, _ = get_rnn_temp_space_sizes(handle, network, ForwardMode.TRAINING, x_desc)
    plans = handle.companion(RnnPlans)
    sized = plans.network(network, x_desc, is_training=True)
    states = ("hx", "hy", "cx", "cy", "dhy", "dhx", "dcy", "dcx")
    operations = (RnnForward, RnnBackwardData, RnnBackwardWeights)
    absent = [frozenset((*some, *lengths)) for some in ((), states, states[1::2]) for lengths in ((), ("seq_lengths",))]
    lengths_bytes = -(-4 * extent // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    for operation, alignment, left_out, is_added in product(operations, (2, 4, 16), absent, (False, True)):
        alignment_bytes = max(alignment, dtypes.info(kind).size_bytes)
        problem = Problem(
            operation,
            sized,
            PADDED,
            0,
            left_out,
            alignment_bytes,
            is_added=is_added and operation is RnnBackwardWeights,
        )
        available_bytes = size - (ALIGNMENT_BYTES - 1) - lengths_bytes
        assert plans.fitting(handle, problem, available_bytes).workspace_bytes <= available_bytes


def test_a_call_needs_what_it_says_and_no_more(handle: Handle) -> None:
    one = step(handle)
    memory = one.memory()
    with pytest.raises(SizeInsufficientError, match=r"work_space_size: expected at least \d+, got 0") as caught:
        forward(one, memory, work_space_size=0)
    size = int(re.findall(r"at least (\d+)", str(caught.value))[0])
    workspace = DeviceBuffer.allocate(handle.runtime.context, size)
    forward(one, memory, work_space_size=size, work_space=workspace.address)
    check(one, {port: one.results(memory)[port] for port in ("y", "hy", "cy")})
    with pytest.raises(SizeInsufficientError):
        forward(one, memory, work_space_size=size - 1, work_space=workspace.address)


def test_lengths_that_the_device_alone_knows(handle: Handle) -> None:
    one = step(handle)
    memory, lengths = one.memory(), upload(handle.runtime, np.array(LENGTHS, np.int32))
    x_desc, y_desc = (replace(desc, seq_length_array=None) for desc in (one.x_desc, one.y_desc))
    size, reserve = get_rnn_temp_space_sizes(handle, one.rnn_desc, ForwardMode.TRAINING, x_desc)
    assert (size, reserve) == (memory.spaces["work"][1], memory.spaces["reserve"][1])
    forward(one, memory, dev_seq_lengths=lengths.address, x_desc=x_desc, y_desc=y_desc)
    check(one, {port: one.results(memory)[port] for port in ("y", "hy", "cy")})
    with raises(NullPointerError, "rnn_forward.dev_seq_lengths", expected="a pointer where the descriptor", got="NULL"):
        forward(one, memory, x_desc=x_desc, y_desc=y_desc)


def test_an_inference_saves_nothing_and_fills_padding(handle: Handle) -> None:
    one = step(handle, dropout_desc=Dropout(0.5))
    memory = one.memory()
    size, reserve = get_rnn_temp_space_sizes(handle, one.rnn_desc, ForwardMode.INFERENCE, one.x_desc)
    assert reserve == 0
    workspace = DeviceBuffer.allocate(handle.runtime.context, size)
    y_desc = replace(one.y_desc, padding_fill=-2.5)
    spaces = {"work_space_size": size, "work_space": workspace.address, "reserve_space_size": 0, "reserve_space": 0}
    forward(one, memory, fwd_mode=ForwardMode.INFERENCE, y_desc=y_desc, **spaces)
    found, rows = one.results(memory), np.arange(4)[:, None] < LENGTHS
    assert (found["y"][~rows] == -2.5).all()
    found["y"] = np.where(rows[..., None], found["y"], 0)
    without = step(handle)
    check(without, {port: found[port] for port in ("y", "hy", "cy")})


def test_dropout_counts_its_calls(handle: Handle) -> None:
    """Each training draws other elements; the gradients use those of their reserve space."""
    states = upload(handle.runtime, np.array([7, 3], np.int64))
    one = step(handle, dropout_desc=Dropout(0.4, states.address))
    memory, other = one.memory(), one.memory()
    one.forward(memory)
    one.forward(other)
    assert download(states, np.int64).tolist() == [7, 5]
    for calls, each in ((3, memory), (4, other)):
        one.backward_data(each)
        one.backward_weights(each)
        check(one, one.results(each), dropout_offset=np.array([calls]))


@pytest.mark.parametrize("strides", [(1, 8, 1), (8, 8, 1, 1, 1), (99, 8, 1, 77)])
def test_extents_of_1_in_states(handle: Handle, strides: tuple[int, ...]) -> None:
    """States may have more dims of extent 1, whose strides do not count."""
    one = step(handle, num_layers=1, dir_mode=DirectionMode.UNIDIRECTIONAL)
    memory = one.memory()
    described = replace(one.states("h"), dims=(1, 3, 8, 1, 1)[: len(strides)], strides=strides)
    forward(one, memory, h_desc=described, c_desc=described)
    check(one, {port: one.results(memory)[port] for port in ("y", "hy", "cy")})


def test_gradients_of_weights_are_set_or_added(handle: Handle) -> None:
    one = step(handle)
    memory = one.memory()
    one.run(memory)
    once = one.read(memory, "dw").copy()
    one.backward_weights(memory, WgradMode.ADD)
    np.testing.assert_allclose(one.results(memory)["dw"], 2 * once, rtol=1e-6)
    one.backward_weights(memory, WgradMode.SET)
    assert one.results(memory)["dw"].tobytes() == once.tobytes()


def forward(one: Step, memory: Memory, **others: Any) -> None:
    """``rnn_forward`` with some other arguments."""
    given = {
        "fwd_mode": ForwardMode.TRAINING, "dev_seq_lengths": 0, "x_desc": one.x_desc, "x": memory["x"],
        "y_desc": one.y_desc, "y": memory["y"], "h_desc": one.states("h"), "hx": memory["hx"], "hy": memory["hy"],
        "c_desc": one.states("c"), "cx": memory["cx"], "cy": memory["cy"], "weight_space_size": one.weight_bytes,
        "weight_space": memory["w"], "work_space_size": memory.spaces["work"][1],
        "work_space": memory.spaces["work"][0], "reserve_space_size": memory.spaces["reserve"][1],
        "reserve_space": memory.spaces["reserve"][0],
    }  # fmt: skip
    rnn_forward(one.handle, others.pop("rnn_desc", one.rnn_desc), **(given | others))


def test_building_for_a_batch(handle: Handle) -> None:
    build_rnn_dynamic(handle, NETWORK, 64)
    with raises(BadParamError, "build_rnn_dynamic.mini_batch", expected="1 to 2147483647", got="0"):
        build_rnn_dynamic(handle, NETWORK, 0)

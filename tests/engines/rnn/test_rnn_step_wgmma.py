"""``rnn_step_wgmma``: recurrent networks with one launch for each step of a layer, on wgmma."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.driver import open_driver
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.registry import engine_named
from lowdnn.engines.rnn.step_wgmma_tile import WgmmaStepProblem, busy_s
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.rnn import Clip, Rnn
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.rnn_enums import DirectionMode, RNNBiasMode, RNNInputMode, RNNMode
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.engines.rnn.training import LAYOUTS, check_training
from tests.support.data import fresh_seed
from tests.support.recurrent import tensors_of
from tests.support.running import ORDER_AND_RACES, POLICIES
from tests.support.runtime import open_runtime

ENGINE = engine_named("rnn_step_wgmma")

LSTM = Rnn(RNNMode.LSTM, max_length=3, batch_size=5, input_size=24, hidden_size=72)
GRU = replace(LSTM, cell_mode=RNNMode.GRU, hidden_size=64)
CELLS = {
    "relu": replace(LSTM, cell_mode=RNNMode.RNN_RELU),
    "tanh": replace(LSTM, cell_mode=RNNMode.RNN_TANH),
    "lstm": LSTM,
    "lstm clipped": replace(LSTM, clip=Clip(-0.3, 0.4, propagates_nan=False)),
    "gru": GRU,
}
BIDIRECTIONAL = DirectionMode.BIDIRECTIONAL
LENGTHS = (3, 3, 2, 1, 0)


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.BFLOAT16])
@pytest.mark.parametrize("name", CELLS)
def test_cells(device: Runtime, name: str, data_type: DataType) -> None:
    """The last chunk of k and the last tile of units are not full, but of a GRU."""
    check_training(device, ENGINE, CELLS[name], data_type)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["tanh", "lstm", "gru"])
def test_layers_dropout_and_lengths(device: Runtime, name: str, layout: str) -> None:
    rnn = replace(CELLS[name], num_layers=2, dropout_probability=0.4)
    check_training(device, ENGINE, rnn, DataType.HALF, lengths=LENGTHS, layout=layout, padding_fill=2.5)


@pytest.mark.parametrize("name", ["relu", "lstm", "gru"])
def test_both_directions(device: Runtime, name: str) -> None:
    rnn = replace(CELLS[name], num_layers=2, direction_mode=BIDIRECTIONAL, bias_mode=RNNBiasMode.SINGLE_REC_BIAS)
    check_training(device, ENGINE, rnn, DataType.BFLOAT16, layout="batch")


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_states_that_are_not_there(device: Runtime, name: str) -> None:
    without = ("hx", "cx", "hy", "cy", "dhy", "dcy", "dhx", "dcx")
    rnn = replace(CELLS[name], input_mode=RNNInputMode.SKIP_INPUT, input_size=CELLS[name].hidden_size)
    check_training(device, ENGINE, rnn, DataType.HALF, without=without)
    check_training(device, ENGINE, rnn, DataType.HALF, without=without[1::2], lengths=LENGTHS)


@pytest.mark.parametrize(
    ("columns", "cluster", "name"), [(8, 8, "gru"), (128, 4, "lstm"), (32, 2, "tanh"), (16, 3, "gru"), (64, 6, "relu")]
)
def test_tiles(device: Runtime, columns: int, cluster: int, name: str) -> None:
    """Several tiles of units and of sequences, of which the last are not full; blocks with more and with less of k, and
    with more and less cells."""
    choices = {KnobType.TILE_N: columns, KnobType.TILE_CGA_K: cluster}
    rnn: dict[str, Any] = {"batch_size": columns + 5, "hidden_size": 576, "input_size": 8, "max_length": 2}
    plans = check_training(device, ENGINE, replace(CELLS[name], **rnn), DataType.HALF, choices=choices)
    assert all(any(f"_{columns}x{cluster}_" in kernel.name for kernel in plan.kernels) for plan in plans)


def test_best_tiles_fit() -> None:
    """Every tile has room in shared memory and registers, and the model tells times of all."""
    rng = np.random.default_rng(fresh_seed())
    for _ in range(300):
        hidden, gates, batch = 8 * int(rng.integers(1, 300)), int(rng.integers(1, 5)), int(rng.integers(1, 300))
        problem = WgmmaStepProblem(gates, hidden, hidden * int(rng.integers(1, 5)), batch, int(rng.integers(1, 3)))
        tiles = problem.tiles(SM_90A)
        assert all(problem.shared_bytes(tile) <= shared_room(SM_90A, tile.resident) for tile in tiles)
        assert problem.best_tile(SM_90A) in tiles
        assert all(0 <= busy_s(problem, tile, SM_90A) < 1e-2 for tile in tiles)


def test_tiles_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadParamError, match="at most 2 blocks of a cluster"):
        ENGINE.plan(_graph(LSTM, DataType.HALF, None), SM_90A, {KnobType.TILE_N: 8, KnobType.TILE_CGA_K: 8})


@pytest.mark.parametrize("policy", dict.fromkeys((*POLICIES, *ORDER_AND_RACES, "fuzz(3),late,races")))
def test_in_any_order(kernel_cache_dir: Path, policy: str) -> None:
    choices = {KnobType.TILE_N: 8, KnobType.TILE_CGA_K: 2}
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        rnn = replace(GRU, hidden_size=320)
        check_training(runtime, ENGINE, rnn, DataType.BFLOAT16, lengths=LENGTHS, choices=choices)


@pytest.mark.parametrize(
    ("rnn", "data_type", "lengths", "expected"),
    [
        (LSTM, DataType.FLOAT, None, "x.data_type: expected HALF or BFLOAT16, got FLOAT"),
        (replace(LSTM, hidden_size=12), DataType.HALF, None, "rnn.hidden_size: expected a multiple of 8, got 12"),
        (replace(LSTM, projection_size=8), DataType.HALF, None, "rnn.projection_size: expected 0, got 8"),
        (replace(GRU, reset_after=False), DataType.HALF, None, "rnn.reset_after: expected true, got false"),
        (replace(LSTM, direction_mode=BIDIRECTIONAL), DataType.HALF, LENGTHS, "seq_lengths: expected none"),
    ],
)
def test_what_is_refused(rnn: Rnn, data_type: DataType, lengths: Any, expected: str) -> None:
    assert expected in str(ENGINE.refuse(_graph(rnn, data_type, lengths), SM_90A))


def test_addresses_that_no_copy_takes_are_refused() -> None:
    tensors = tensors_of(LSTM, DataType.HALF, None)
    tensors = {port: replace(tensor, alignment_bytes=2 if port == "w" else 16) for port, tensor in tensors.items()}
    assert "w: expected an address" in str(ENGINE.refuse(OperationGraph([RnnForward.of(LSTM, tensors)]), SM_90A))


def test_devices_without_wgmma_are_refused() -> None:
    assert "wgmma" in str(ENGINE.refuse(_graph(LSTM, DataType.HALF, None), SM_80))


def _graph(rnn: Rnn, data_type: DataType, lengths: Any) -> OperationGraph:
    return OperationGraph([RnnForward.of(rnn, tensors_of(rnn, data_type, lengths), is_training=True)])

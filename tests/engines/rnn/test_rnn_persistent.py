"""``rnn_persistent``: recurrent networks whose layers take one launch each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.driver import open_driver
from lowdnn.engines.registry import engine_named
from lowdnn.engines.rnn.narrow_tile import NarrowTile
from lowdnn.engines.rnn.persistent_forward import forward_tiles
from lowdnn.engines.rnn.persistent_launch import LayerTile, blocks
from lowdnn.engines.rnn.persistent_tile import COLUMNS, PersistentTile
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.rnn import Clip, Rnn
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.plan import Plan
from lowdnn.rnn_enums import DirectionMode, RNNMode
from lowdnn.runtime.runtime import Runtime
from tests.engines.rnn.training import LAYOUTS, check_training
from tests.support.recurrent import tensors_of
from tests.support.running import ORDER_AND_RACES, POLICIES
from tests.support.runtime import open_runtime

ENGINE = engine_named("rnn_persistent")

LSTM = Rnn(RNNMode.LSTM, max_length=3, batch_size=5, input_size=24, hidden_size=64)
GRU = replace(LSTM, cell_mode=RNNMode.GRU, hidden_size=128)
CELLS = {
    "relu": replace(LSTM, cell_mode=RNNMode.RNN_RELU, hidden_size=128),
    "tanh": replace(LSTM, cell_mode=RNNMode.RNN_TANH, hidden_size=128),
    "lstm": LSTM,
    "lstm clipped": replace(LSTM, clip=Clip(-0.3, 0.4, propagates_nan=False)),
    "gru": GRU,
}
DEEP: dict[str, Any] = {"num_layers": 2, "direction_mode": DirectionMode.BIDIRECTIONAL, "dropout_probability": 0.4}
LENGTHS = (3, 3, 2, 1, 0)


#: A layer for each kernel, and a tile of it.
KERNELS: dict[str, tuple[Rnn, LayerTile]] = {
    "narrow": (LSTM, NarrowTile(8, 16, 4, 64, 1)),
    "wide": (replace(LSTM, hidden_size=128), PersistentTile(16, 2, 2, 1, 16, 2)),
}


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.BFLOAT16])
@pytest.mark.parametrize("name", CELLS)
def test_cells(device: Runtime, name: str, data_type: DataType) -> None:
    check_training(device, ENGINE, CELLS[name], data_type)


@pytest.mark.parametrize("name", CELLS)
def test_cells_on_warpgroups(device: Runtime, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rnn = replace(CELLS[name], hidden_size=128)
    _only(monkeypatch, PersistentTile(16, 2, 2, 1, 64 if rnn.gates == 1 else 16, 2))
    _check_forward(device, rnn)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["tanh", "lstm", "gru"])
def test_layers_directions_dropout_and_lengths(device: Runtime, name: str, layout: str) -> None:
    rnn = replace(CELLS[name], **DEEP)
    check_training(device, ENGINE, rnn, DataType.HALF, lengths=LENGTHS, layout=layout, padding_fill=2.5)


def test_layers_directions_and_lengths_on_warpgroups(device: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = _only_kernel(monkeypatch, "wide")
    _check_forward(device, replace(rnn, **DEEP), lengths=LENGTHS, padding_fill=2.5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_first_and_last_states(device: Runtime, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    rnn = _only_kernel(monkeypatch, kernel)
    _check_forward(device, rnn, without=("hx", "cx", "hy", "cy"))


def test_rows_of_the_output_at_no_multiple_of_a_piece(device: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = _only_kernel(monkeypatch, "wide")
    _check_forward(device, rnn, layout="spaced", lengths=LENGTHS, padding_fill=2.5)


@pytest.mark.parametrize("columns", [8, 16, 32])
def test_groups_of_blocks(device: Runtime, columns: int) -> None:
    """The last group lacks sequences."""
    rnn = replace(LSTM, batch_size=36, hidden_size=128)
    _check_forward(device, rnn, choices={KnobType.TILE_N: columns})


@pytest.mark.parametrize(
    ("cell", "hidden_size", "tile"),
    [
        ("lstm", 64, NarrowTile(8, 8, 4, 64, 1)),
        ("gru", 64, NarrowTile(16, 8, 3, 64, 0)),
        ("gru", 320, NarrowTile(8, 16, 3, 320, 1)),
        ("lstm", 512, NarrowTile(16, 16, 4, 512, 1)),
        ("tanh", 64, NarrowTile(16, 64, 1, 64, 1)),
        ("relu", 64, NarrowTile(8, 32, 1, 64, 1)),
        ("gru", 128, PersistentTile(16, 2, 2, 0, 16, 2)),
        ("lstm", 128, PersistentTile(32, 2, 2, 1, 16, 2)),
        ("lstm", 192, PersistentTile(16, 3, 2, 1, 16, 3)),
        ("gru", 320, PersistentTile(16, 5, 2, 1, 16, 4)),
        ("gru", 256, PersistentTile(16, 4, 2, 1, 16, 4, 4)),
        ("tanh", 128, PersistentTile(64, 2, 2, 1, 64, 2)),
        ("relu", 384, PersistentTile(16, 6, 2, 0, 64, 4, 2)),
    ],
)
def test_tiles(device: Runtime, monkeypatch: pytest.MonkeyPatch, cell: str, hidden_size: int, tile: LayerTile) -> None:
    """Units of a block, elements of a thread, warps without a pair, weights in registers and in shared memory."""
    _only(monkeypatch, tile)
    rnn = replace(CELLS[cell], hidden_size=hidden_size, batch_size=18)
    plan, *_ = _check_forward(device, rnn)
    assert any(f"{tile.kernel}_{cell}_fp16_{tile.form}_" in kernel.name for kernel in plan.kernels)


@pytest.mark.parametrize("kernel", KERNELS)
def test_states_that_are_nan(device: Runtime, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """Two neighbouring states with all bits set, as polled states have none."""
    rnn = _only_kernel(monkeypatch, kernel)
    _check_forward(device, rnn, nan_in="hx")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("policy", dict.fromkeys((*POLICIES, *ORDER_AND_RACES, "fuzz(3),late,races")))
def test_in_any_order(kernel_cache_dir: Path, monkeypatch: pytest.MonkeyPatch, policy: str, kernel: str) -> None:
    rnn = _only_kernel(monkeypatch, kernel)
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        _check_forward(runtime, replace(rnn, direction_mode=DirectionMode.BIDIRECTIONAL), lengths=LENGTHS)


@pytest.mark.parametrize("policy", dict.fromkeys((*POLICIES, *ORDER_AND_RACES, "fuzz(3),late,races")))
def test_a_ring_in_any_order(kernel_cache_dir: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """A ring that is shorter than a step."""
    _only(monkeypatch, PersistentTile(16, 6, 2, 2, 64, 4, 2))
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        _check_forward(runtime, replace(CELLS["tanh"], hidden_size=384), lengths=LENGTHS)


@pytest.mark.parametrize("policy", ["lockstep", "fuzz(5),late,races"])
def test_slots_of_polled_states_come_again(
    kernel_cache_dir: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    rnn = _only_kernel(monkeypatch, "narrow")
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        _check_forward(runtime, replace(rnn, max_length=70, batch_size=2))


def test_all_blocks_are_there_at_a_time() -> None:
    """Groups grow until the blocks of all of them fit the device; what no group fits is refused."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        rnn = replace(LSTM, batch_size=int(rng.integers(1, 200)), hidden_size=64 * int(rng.integers(1, 33)))
        arch = replace(SM_90A, sm_count=int(rng.integers(1, 140)))
        found = list(forward_tiles(rnn, arch))
        assert all(blocks(rnn, tile) <= arch.sm_count for tile in found)
        assert all(tile.shared_bytes <= arch.shared_bytes_per_block for tile in found)
        assert all(_is_ring(tile) for tile in found if isinstance(tile, PersistentTile))
        refusal = ENGINE.refuse(_graph(rnn), arch)
        assert (refusal is None) == bool(found)
        assert found or "fit on chip" in str(refusal)


@pytest.mark.parametrize(
    ("rnn", "data_type", "expected"),
    [
        (LSTM, DataType.FLOAT, "x.data_type: expected HALF or BFLOAT16, got FLOAT"),
        (replace(LSTM, hidden_size=72), DataType.HALF, "rnn.hidden_size: expected a multiple of 64 up to 2048, got 72"),
        (replace(LSTM, projection_size=8), DataType.HALF, "rnn.projection_size: expected 0, got 8"),
        (replace(GRU, reset_after=False), DataType.HALF, "rnn.reset_after: expected true, got false"),
    ],
)
def test_what_is_refused(rnn: Rnn, data_type: DataType, expected: str) -> None:
    assert expected in str(ENGINE.refuse(_graph(rnn, data_type), SM_90A))


def test_devices_without_wgmma_are_refused() -> None:
    assert "wgmma" in str(ENGINE.refuse(_graph(LSTM), SM_80))


def test_knobs() -> None:
    (knob,) = ENGINE.knobs(_graph(LSTM), SM_90A)
    assert (knob.type, knob.values) == (KnobType.TILE_N, (0, 8, *COLUMNS))


def _check_forward(runtime: Runtime, rnn: Rnn, **wanted: Any) -> list[Plan]:
    return check_training(runtime, ENGINE, rnn, DataType.HALF, anchors=(RnnForward,), **wanted)


def _is_ring(tile: PersistentTile) -> bool:
    """Whether whole copies fill the ring, and a slot that comes again within a step is of the same warpgroup."""
    is_whole = tile.chunks % tile.copied == 0 and tile.slots % tile.copied == 0
    return is_whole and (tile.slots == tile.chunks or tile.slots % tile.warpgroups == 0)


def _only_kernel(monkeypatch: pytest.MonkeyPatch, kernel: str) -> Rnn:
    """Lets the engine take a kernel's tile alone; returns its layer."""
    rnn, tile = KERNELS[kernel]
    _only(monkeypatch, tile)
    return rnn


def _only(monkeypatch: pytest.MonkeyPatch, tile: LayerTile) -> None:
    """Lets the engine take ``tile`` alone."""
    monkeypatch.setattr("lowdnn.engines.rnn.persistent.forward_tiles", lambda *_: iter([tile]))


def _graph(rnn: Rnn, data_type: DataType = DataType.HALF) -> OperationGraph:
    return OperationGraph([RnnForward.of(rnn, tensors_of(rnn, data_type, None), is_training=True)])

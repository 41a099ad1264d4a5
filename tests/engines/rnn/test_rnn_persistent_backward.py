"""``rnn_persistent`` backward: the tiles of its kernel, what they need, and the order in which blocks run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.driver import open_driver
from lowdnn.engines.model.occupancy import clustered_sms
from lowdnn.engines.registry import engine_named
from lowdnn.engines.rnn.narrow_tile import NarrowBackwardTile
from lowdnn.engines.rnn.persistent_backward import backward_tiles
from lowdnn.engines.rnn.persistent_backward_tile import CLUSTERS, COLUMNS, BackwardTile
from lowdnn.engines.rnn.persistent_launch import LayerTile, blocks
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.plan import Plan
from lowdnn.rnn_enums import DirectionMode, RNNMode
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.engines.rnn.training import check_training
from tests.support.recurrent import tensors_of
from tests.support.running import ORDER_AND_RACES, POLICIES
from tests.support.runtime import open_runtime

ENGINE = engine_named("rnn_persistent")

LSTM = Rnn(RNNMode.LSTM, max_length=3, batch_size=20, input_size=24, hidden_size=128)
GRU = replace(LSTM, cell_mode=RNNMode.GRU)
TANH = replace(LSTM, cell_mode=RNNMode.RNN_TANH)
#: Wide tiles: columns, chunks, warpgroups, chunks in registers, parts, blocks of gates, cluster, slots. Narrow ones:
#: columns, units, gates, units of all blocks, pairs in registers.
TILES: dict[str, tuple[Rnn, LayerTile]] = {
    "one warpgroup": (LSTM, BackwardTile(8, 4, 1, 0, 1, 4, 2, 4)),
    "a ring of two chunks": (LSTM, BackwardTile(8, 4, 2, 0, 2, 4, 2, 2)),
    "a ring of more chunks than a part has": (LSTM, BackwardTile(8, 1, 2, 0, 2, 4, 8, 2)),
    "weights in registers": (LSTM, BackwardTile(16, 2, 2, 1, 1, 4, 4, 2)),
    "all weights in registers": (TANH, BackwardTile(16, 1, 1, 1, 1, 1, 2, 1)),
    "four parts": (GRU, BackwardTile(8, 3, 2, 0, 4, 4, 2, 5)),
    "many columns": (LSTM, BackwardTile(64, 2, 1, 0, 1, 4, 4, 2)),
    "half a product's rows": (GRU, NarrowBackwardTile(8, 8, 3, 128, 2)),
    "weights in shared memory": (LSTM, NarrowBackwardTile(16, 16, 4, 128, 1)),
    "two pairs of units": (LSTM, NarrowBackwardTile(16, 64, 4, 128, 2)),
    "warps without a product": (TANH, NarrowBackwardTile(8, 32, 1, 128, 1)),
}
#: A tile of each kernel, for layers of 128 units with 4 gates.
KERNELS: dict[str, LayerTile] = {
    "wide": BackwardTile(8, 4, 2, 0, 2, 4, 2, 3),
    "narrow": NarrowBackwardTile(8, 32, 4, 128, 2),
}
MODES = (RNNMode.LSTM, RNNMode.GRU, RNNMode.RNN_RELU, RNNMode.RNN_TANH)
ORDERS = dict.fromkeys((*POLICIES, *ORDER_AND_RACES, "fuzz(3),late,races"))


@pytest.mark.parametrize("name", TILES)
def test_tiles(device: Runtime, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rnn, tile = TILES[name]
    _check(device, monkeypatch, replace(rnn, direction_mode=DirectionMode.BIDIRECTIONAL), tile)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("states", ["dhx", "dhy", "hx"])
def test_states_that_are_not_there(device: Runtime, states: str, kernel: str) -> None:
    """Without the gradient of the first states there is one product less."""
    without = {"dhx": ("dhx", "dcx"), "dhy": ("dhy", "dcy"), "hx": ("hx", "cx")}[states]
    choices = {KnobType.TILE_CGA_K: KERNELS[kernel].cluster}
    for rnn in (replace(LSTM, hidden_size=64), GRU):
        check_training(
            device,
            ENGINE,
            rnn,
            DataType.HALF,
            without=without,
            lengths=(3, 2, 1, 0) * 5,
            choices=choices,
            anchors=(RnnBackwardData,),
        )


@pytest.mark.parametrize("sample", range(4))
def test_random_networks(device: Runtime, monkeypatch: pytest.MonkeyPatch, sample: int) -> None:
    """Sizes, lengths and any of the tiles that fit. The networks are those of the sample, the data are drawn afresh."""
    rng = np.random.default_rng(sample)
    rnn = replace(
        LSTM,
        cell_mode=MODES[rng.integers(len(MODES))],
        max_length=int(rng.integers(1, 5)),
        batch_size=int(rng.integers(1, 24)),
        hidden_size=128 * int(rng.integers(1, 3)),
        direction_mode=DirectionMode(int(rng.integers(2))),
    )
    found = list(backward_tiles(rnn, SM_90A))
    tile = found[rng.integers(len(found))]
    lengths = tuple(int(length) for length in rng.integers(0, rnn.max_length + 1, rnn.batch_size))
    _check(device, monkeypatch, rnn, tile, lengths)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("policy", ORDERS)
def test_in_any_order(kernel_cache_dir: Path, monkeypatch: pytest.MonkeyPatch, policy: str, kernel: str) -> None:
    """Clusters, parts, and chunks that wait for slots; gradients that are polled."""
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        _check(runtime, monkeypatch, replace(LSTM, batch_size=12), KERNELS[kernel])


@pytest.mark.parametrize("policy", ["lockstep", "fuzz(5),late,races"])
def test_slots_of_polled_gradients_come_again(
    kernel_cache_dir: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    rnn = replace(TANH, max_length=70, batch_size=2)
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        _check(runtime, monkeypatch, rnn, NarrowBackwardTile(8, 32, 1, 128, 1), (70, 45))


def test_gradients_that_are_nan(device: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two neighbouring gradients with all bits set, as polled ones have none."""
    _check(device, monkeypatch, replace(LSTM, batch_size=12), KERNELS["narrow"], nan_in="dhy")


def test_all_clusters_are_there_at_a_time() -> None:
    """Groups grow until the clusters of all of them fit the device; what no tile fits is refused."""
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(100):
        rnn = replace(
            LSTM,
            cell_mode=MODES[rng.integers(len(MODES))],
            batch_size=int(rng.integers(1, 200)),
            hidden_size=64 * int(rng.integers(1, 33)),
        )
        arch = replace(SM_90A, sm_count=int(rng.integers(1, 140)))
        found = list(backward_tiles(rnn, arch))
        for tile in found:
            assert blocks(rnn, tile) <= clustered_sms(arch.sm_count, tile.cluster)
            assert tile.shared_bytes <= arch.shared_bytes_per_block
            if isinstance(tile, BackwardTile):
                assert tile.chunks * tile.cluster * 64 == rnn.gates * rnn.hidden_size
        assert [tile.step_s for tile in found] == sorted(tile.step_s for tile in found)
        refusal = ENGINE.refuse(_graph(rnn), arch)
        assert (refusal is None) == bool(found)
        assert found or "fit on chip" in str(refusal)
        refused += not found
    assert 0 < refused < 100


def test_knobs() -> None:
    knobs = {knob.type: knob.values for knob in ENGINE.knobs(_graph(LSTM), SM_90A)}
    assert knobs == {KnobType.TILE_N: (0, *COLUMNS), KnobType.TILE_CGA_K: (0, 1, *CLUSTERS)}
    plan = ENGINE.plan(_graph(LSTM), SM_90A, {KnobType.TILE_N: 16, KnobType.TILE_CGA_K: 2})
    assert "_16p" in _kernel(plan)
    assert "x2_w" in _kernel(plan)


def test_knobs_that_do_not_fit_are_refused() -> None:
    rnn = replace(LSTM, hidden_size=1024, batch_size=128)
    with pytest.raises(BadParamError, match="expected a tile that fits on chip, got 8 columns and clusters of 4"):
        ENGINE.plan(_graph(rnn), SM_90A, {KnobType.TILE_N: 8, KnobType.TILE_CGA_K: 4})


def test_a_depth_that_no_cluster_shares_takes_a_narrow_tile() -> None:
    rnn = replace(GRU, hidden_size=64)
    assert {tile.cluster for tile in backward_tiles(rnn, SM_90A)} == {1}


@pytest.mark.parametrize("port", ["gates", "dgates", "cells"])
def test_rows_that_are_not_aligned_are_refused(port: str) -> None:
    (operation,) = _graph(LSTM).operations
    unaligned = replace(getattr(operation, port), alignment_bytes=8)
    refusal = ENGINE.refuse(OperationGraph([replace(operation, **{port: unaligned})]), SM_90A)
    assert f"{port}: expected an alignment of 16 bytes, got 8" in str(refusal)


def _check(
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    rnn: Rnn,
    tile: LayerTile,
    lengths: tuple[int, ...] | None = None,
    nan_in: str = "",
) -> None:
    monkeypatch.setattr("lowdnn.engines.rnn.persistent.backward_tiles", lambda *_: iter([tile]))
    lengths = lengths or tuple(3 - i % 4 for i in range(rnn.batch_size))
    (plan,) = check_training(
        runtime, ENGINE, rnn, DataType.BFLOAT16, lengths=lengths, nan_in=nan_in, anchors=(RnnBackwardData,)
    )
    assert f"_{tile.form}_" in _kernel(plan)


def _kernel(plan: Plan) -> str:
    return next(kernel.name for kernel in plan.kernels if "_backward_" in kernel.name)


def _graph(rnn: Rnn) -> OperationGraph:
    return OperationGraph([RnnBackwardData.of(rnn, tensors_of(rnn, DataType.HALF, None))])

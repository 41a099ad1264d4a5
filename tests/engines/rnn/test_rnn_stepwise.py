"""``rnn_stepwise``: recurrent networks with one launch for each step of a layer."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.engines.registry import engine_named
from lowdnn.engines.rnn.sequences import SMALL_BYTES
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.rnn import Clip, Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.plan import Launch, Plan
from lowdnn.rnn_enums import DirectionMode, RNNBiasMode, RNNInputMode, RNNMode
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.engines.rnn.training import LAYOUTS, check_training
from tests.support.recurrent import tensors_of

ENGINE = engine_named("rnn_stepwise")

BIDIRECTIONAL, SKIP = DirectionMode.BIDIRECTIONAL, RNNInputMode.SKIP_INPUT
LSTM = Rnn(RNNMode.LSTM, max_length=3, batch_size=4, input_size=5, hidden_size=16)
GRU = replace(LSTM, cell_mode=RNNMode.GRU)
CELLS = {
    "relu": replace(LSTM, cell_mode=RNNMode.RNN_RELU),
    "tanh": replace(LSTM, cell_mode=RNNMode.RNN_TANH),
    "lstm": LSTM,
    "lstm projected": replace(LSTM, projection_size=7),
    "lstm clipped": replace(LSTM, clip=Clip(-0.3, 0.4)),
    "gru": GRU,
    "gru reset before": replace(GRU, reset_after=False),
}
DEEP: dict[str, Any] = {"num_layers": 2, "direction_mode": BIDIRECTIONAL, "dropout_probability": 0.4}
LENGTHS = (3, 3, 1, 0)


@pytest.mark.parametrize("data_type", [DataType.DOUBLE, DataType.BFLOAT16])
@pytest.mark.parametrize("name", CELLS)
def test_cells(device: Runtime, name: str, data_type: DataType) -> None:
    check_training(device, ENGINE, CELLS[name], data_type)


@pytest.mark.parametrize(("name", "layout"), list(zip(CELLS, cycle(LAYOUTS), strict=False)))
def test_layers_directions_dropout_and_lengths(device: Runtime, name: str, layout: str) -> None:
    """Padding of what is read holds NaN."""
    rnn = replace(CELLS[name], **DEEP)
    check_training(device, ENGINE, rnn, DataType.DOUBLE, lengths=LENGTHS, layout=layout, padding_fill=2.5)


@pytest.mark.parametrize("most_bytes", [SMALL_BYTES, 0])
@pytest.mark.parametrize(
    "rnn",
    [
        replace(GRU, num_layers=3),
        replace(LSTM, num_layers=4, direction_mode=BIDIRECTIONAL, input_size=32),
        replace(LSTM, num_layers=3, projection_size=7, dropout_probability=0.4),
    ],
)
def test_layers_in_one_product_and_by_themselves(
    device: Runtime, monkeypatch: pytest.MonkeyPatch, rnn: Rnn, most_bytes: int
) -> None:
    for module in ("backward_data", "backward_weights"):
        monkeypatch.setattr(f"lowdnn.engines.rnn.{module}.SMALL_BYTES", most_bytes)
    anchors = (RnnBackwardData, RnnBackwardWeights)
    plans = check_training(device, ENGINE, rnn, DataType.DOUBLE, lengths=LENGTHS, is_added=True, anchors=anchors)
    products = [len([launch for launch in plan.launches if _is_product(plan, launch)]) for plan in plans]
    groups = 2 if most_bytes else rnn.num_layers
    of_layer = 3 if rnn.is_gru or rnn.projection_size else 2
    assert products[-1] == groups * rnn.directions * of_layer


def test_lengths_in_any_order_and_beyond_the_steps(device: Runtime) -> None:
    check_training(device, ENGINE, replace(GRU, **DEEP), DataType.DOUBLE, lengths=(1, 3, 0, 2), layout="batch")


@pytest.mark.parametrize("bias_mode", RNNBiasMode)
@pytest.mark.parametrize("rnn", [GRU, replace(GRU, reset_after=False)])
def test_biases_and_skipped_input(device: Runtime, rnn: Rnn, bias_mode: RNNBiasMode) -> None:
    rnn = replace(rnn, bias_mode=bias_mode, input_mode=SKIP, input_size=16, direction_mode=BIDIRECTIONAL)
    check_training(device, ENGINE, rnn, DataType.FLOAT, is_added=True, layout="batch")


@pytest.mark.parametrize("name", ["lstm", "lstm projected", "gru"])
def test_states_that_are_not_there(device: Runtime, name: str) -> None:
    without = ("hx", "cx", "hy", "cy", "dhy", "dcy", "dhx", "dcx")
    check_training(device, ENGINE, CELLS[name], DataType.DOUBLE, without=without)
    check_training(device, ENGINE, CELLS[name], DataType.DOUBLE, without=without[1::2], lengths=LENGTHS)


@pytest.mark.parametrize("propagates_nan", [True, False])
def test_a_clip_of_nan(device: Runtime, propagates_nan: bool) -> None:
    rnn = replace(LSTM, clip=Clip(-0.3, 0.4, propagates_nan))
    check_training(device, ENGINE, rnn, DataType.DOUBLE, nan_in="cx")


@pytest.mark.parametrize("uses_tf32", [False, True])
def test_fp32_is_rounded_to_tf32_where_it_may_be(device: Runtime, uses_tf32: bool) -> None:
    rnn = replace(LSTM, uses_tf32=uses_tf32, hidden_size=24, batch_size=9)
    for plan in check_training(device, ENGINE, rnn, DataType.FLOAT):
        kernels = [kernel.name for kernel in plan.kernels if "rnn_step" in kernel.name]
        assert (NumericalNote.DOWN_CONVERT_INPUTS in plan.numerical_notes) == uses_tf32
        assert all(("mma" in name) == uses_tf32 for name in kernels)
        assert uses_tf32 or not any("_mma_" in kernel.name or "wgmma" in kernel.name for kernel in plan.kernels)


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.FLOAT])
@pytest.mark.parametrize(("rows", "columns", "cluster"), [(8, 8, 1), (16, 32, 2), (32, 16, 8), (64, 8, 4)])
def test_tiles(device: Runtime, rows: int, columns: int, cluster: int, data_type: DataType) -> None:
    """Several tiles of units and of sequences, of which the last are not full."""
    choices = {KnobType.TILE_M: rows, KnobType.TILE_N: columns, KnobType.TILE_CGA_K: cluster}
    rnn = replace(LSTM, hidden_size=72, batch_size=35, max_length=2, projection_size=40)
    check_training(device, ENGINE, rnn, data_type, choices=choices)


def test_weights_of_any_alignment(device: Runtime) -> None:
    """Lines of an odd number of elements."""
    for hidden_size in (1, 11):
        check_training(device, ENGINE, replace(GRU, hidden_size=hidden_size), DataType.HALF)


def test_older_devices(device: Runtime) -> None:
    check_training(device, ENGINE, replace(LSTM, **DEEP), DataType.HALF, arch=SM_80, lengths=LENGTHS)


#: Clusters of two blocks.
PAIRS = {KnobType.TILE_CGA_K: 2}
FEW = (
    (replace(LSTM, projection_size=7, **DEEP), DataType.HALF),
    (replace(GRU, **DEEP), DataType.BFLOAT16),
    (replace(GRU, reset_after=False), DataType.FLOAT),
)


@pytest.mark.parametrize(("rnn", "data_type"), FEW)
def test_under_every_policy(scheduled: Runtime, rnn: Rnn, data_type: DataType) -> None:
    check_training(scheduled, ENGINE, rnn, data_type, lengths=LENGTHS, layout="packed", choices=PAIRS)


@pytest.mark.parametrize(("rnn", "data_type"), FEW)
def test_under_the_race_detector(racing: Runtime, rnn: Rnn, data_type: DataType) -> None:
    check_training(racing, ENGINE, rnn, data_type, lengths=LENGTHS, choices=PAIRS)


def test_steps_share_their_argument() -> None:
    rnn = Rnn(RNNMode.LSTM, max_length=50, batch_size=64, input_size=512, hidden_size=512, num_layers=2)
    operation = RnnForward.of(rnn, tensors_of(rnn, DataType.HALF, None), is_training=True)
    plan = ENGINE.plan(OperationGraph([operation]), SM_90A, {})
    steps = [launch for launch in plan.launches if len(launch.arguments) == 2]
    assert len(steps) == 100
    assert len({id(launch.arguments[0]) for launch in steps}) == 2


def test_tiles_that_do_not_fit_are_refused() -> None:
    network = replace(LSTM, max_length=1)
    operation = RnnForward.of(network, tensors_of(network, DataType.DOUBLE, None))
    with pytest.raises(BadParamError, match="at most 512 sums of a tile, got 64 x 64"):
        ENGINE.plan(OperationGraph([operation]), SM_90A, {KnobType.TILE_M: 64, KnobType.TILE_N: 64})


def _is_product(plan: Plan, launch: Launch) -> bool:
    return plan.kernels[launch.kernel].name.startswith("matmul")

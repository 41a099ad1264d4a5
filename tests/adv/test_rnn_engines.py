"""Calls on every engine give the same bits again, in every layout, and in CUDA graphs; which engine runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.adv import DirectionMode, RNNAlgo, RNNDataLayout, RNNMode
from lowdnn.adv.rnn_problems import Problem, RnnPlans
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType, HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.rnn_forward import RnnForward
from tests.support.rnn_step import NETWORK, RESULTS, Step, check
from tests.support.runtime import upload

PADDED, PACKED, BATCHES = (
    RNNDataLayout.SEQ_MAJOR_UNPACKED,
    RNNDataLayout.SEQ_MAJOR_PACKED,
    RNNDataLayout.BATCH_MAJOR_UNPACKED,
)
LENGTHS = (4, 2, 1)
PERSISTENT = replace(
    NETWORK, algo=RNNAlgo.PERSIST_STATIC, data_type=DataType.HALF, hidden_size=64, proj_size=64, num_layers=1
)
#: By the engine that runs it forward.
NETWORKS = {"rnn_stepwise": NETWORK, "rnn_persistent": PERSISTENT}


def step(handle: Handle, engine: str, layout: RNNDataLayout = PADDED) -> Step:
    one = Step(handle, NETWORKS[engine], layout, 4, LENGTHS)
    assert engine_of(one) == engine
    return one


def engine_of(one: Step) -> str:
    """The engine of the forward pass."""
    plans = one.handle.companion(RnnPlans)
    network = plans.network(one.rnn_desc, one.x_desc, is_training=True)
    return plans.planned(one.handle, Problem(RnnForward, network, PADDED, 0, frozenset())).engine


@pytest.mark.parametrize("cell", [RNNMode.LSTM, RNNMode.GRU, RNNMode.RNN_TANH])
@pytest.mark.parametrize("algo", [algo for algo in RNNAlgo if algo not in (RNNAlgo.STANDARD, RNNAlgo.COUNT)])
def test_an_algorithm_that_persists_is_the_persistent_engine(handle: Handle, algo: RNNAlgo, cell: RNNMode) -> None:
    one = Step(handle, replace(PERSISTENT, algo=algo, cell_mode=cell), PADDED, 4, LENGTHS)
    assert engine_of(one) == "rnn_persistent"
    check(one, one.run(one.memory()))


@pytest.mark.parametrize(
    "other", [{"hidden_size": 72, "proj_size": 72}, {"proj_size": 8}, {"data_type": DataType.FLOAT}]
)
def test_what_cannot_persist_runs_on_the_fastest_engine(handle: Handle, other: dict[str, int]) -> None:
    one = Step(handle, replace(PERSISTENT, **other), PADDED, 4, LENGTHS)
    assert engine_of(one) == "rnn_stepwise"


@pytest.mark.parametrize("size", [64, 1024])
def test_the_standard_algorithm_is_the_fastest_engine(handle: Handle, size: int) -> None:
    network = replace(PERSISTENT, algo=RNNAlgo.STANDARD, hidden_size=size, proj_size=size)
    one = Step(handle, replace(network, dir_mode=DirectionMode.UNIDIRECTIONAL), PADDED, 4, LENGTHS)
    best = rank(OperationGraph((one.operations.forward,)), handle.arch, HeurMode.A, handle.engines).best
    assert best is not None
    assert engine_of(one) == best.engine.name


@pytest.mark.parametrize("engine", NETWORKS)
def test_runs_give_the_same_bits(handle: Handle, engine: str) -> None:
    """In fresh memory each, whose saved tensors hold something else before."""
    one = step(handle, engine)
    first = one.run(one.memory())
    for _ in range(2):
        memory = one.memory()
        for name in ("work", "reserve"):
            address, size = memory.spaces[name]
            handle.runtime.driver.memset_d8_async(address, 0xFF, size, handle.stream)
        again = one.run(memory)
        for port in RESULTS:
            assert again[port].tobytes() == first[port].tobytes(), port


@pytest.mark.parametrize("engine", NETWORKS)
def test_layouts_and_where_lengths_come_from_change_no_bit(handle: Handle, engine: str) -> None:
    """Rows past the end of a sequence may hold NaN."""
    padded, packed, batches = (step(handle, engine, layout) for layout in (PADDED, PACKED, BATCHES))
    rows = np.arange(4)[:, None] < LENGTHS
    values = {port: padded.values[port] for port in ("x", "dy")}
    flat = {port: array[rows] for port, array in values.items()}
    padding = {port: np.where(rows[..., None], array, np.nan) for port, array in values.items()}
    expected = packed.run(packed.memory(**(padded.values | flat)))
    on_device = upload(handle.runtime, np.array(LENGTHS, np.int32))
    for one, dev_lengths in ((padded, 0), (batches, 0), (padded, on_device.address)):
        found = one.run(one.memory(**padding), dev_lengths)
        for port in RESULTS:
            got = found[port][rows] if port in ("y", "dx") else found[port]
            assert got.tobytes() == expected[port].tobytes(), port
            if port in ("y", "dx"):
                assert (found[port][~rows] == 0).all()


@pytest.mark.parametrize("engine", NETWORKS)
def test_a_step_may_be_captured(handle: Handle, engine: str) -> None:
    """Its graph gives the same bits again."""
    one = step(handle, engine, PACKED)
    memory, driver = one.memory(), handle.runtime.driver
    expected = one.run(memory)
    with handle.runtime.context.activated():
        stream = driver.stream_create()
        handle.set_stream(stream)
        driver.stream_begin_capture(stream)
        one.forward(memory)
        one.backward_data(memory)
        one.backward_weights(memory)
        graph = driver.stream_end_capture(stream)
        started = driver.graph_instantiate(graph)
        for port in RESULTS:
            memory.buffers[port][0].fill_bytes(0xFF)
        driver.graph_launch(started, stream)
        found = one.results(memory)
        handle.set_stream(0)
        driver.graph_exec_destroy(started)
        driver.graph_destroy(graph)
        driver.stream_destroy(stream)
    for port in RESULTS:
        assert found[port].tobytes() == expected[port].tobytes(), port

"""The context manager and the decorators around pygraph."""

from __future__ import annotations

import numpy as np

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle


def test_a_program_as_written_for_cudnn_frontend(handle: Handle) -> None:
    @cudnn.graph_cache(key_fn=lambda x, factor: (x.shape, factor))
    @cudnn.jit(heur_modes=[cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    def scaled(x: lowdnn.DeviceTensor, factor: float) -> tuple[cudnn.pygraph, list[cudnn.Tensor]]:
        with cudnn.graph(handle, io_data_type=cudnn.data_type.FLOAT) as (g, _):
            given = g.tensor_like(x)
            result = g.mul(given, factor)
            result.set_output(True)
        return g, [given, result]

    x = lowdnn.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3), handle)
    y = lowdnn.from_numpy(np.zeros((2, 3), np.float32), handle)
    g, uids = scaled(x, 3.0)
    assert g.get_execution_plan_count() > 0
    g.execute(dict(zip(uids, (x, y), strict=True)), None, handle=handle)
    np.testing.assert_array_equal(y.numpy(), x.numpy() * 3)
    assert scaled(x, 3.0)[0] is g
    assert scaled(x, 4.0)[0] is not g


def test_the_cache_forgets_the_oldest() -> None:
    made: list[int] = []

    @cudnn.graph_cache(key_fn=lambda number: number, maxsize=2)
    def make(number: int) -> int:
        made.append(number)
        return number

    for number in (1, 2, 1, 3, 2, 1):
        assert make(number) == number
    assert made == [1, 2, 3, 1]


def test_defaults_are_those_of_cudnn_frontend(handle: Handle) -> None:
    with cudnn.graph(handle) as (g, tensors):
        x = g.tensor([4])
        y = g.exp(x).set_output(True)
        g.validate()
    assert (g.name, tensors) == ("cudnn_graph", [])
    assert x.get_data_type() is y.get_data_type() is cudnn.data_type.HALF

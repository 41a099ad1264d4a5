"""Plans of a pygraph as nodes of a CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import AttributeTypeError, BadParamError, CudaGraphMismatchError, OutOfBoundError

FLOAT = cudnn.data_type.FLOAT


def scaled(handle: Handle) -> pygraph:
    """y = x + s for a by-value s; uids 1, 2 and 3."""
    graph = pygraph("sum", FLOAT, FLOAT, FLOAT, handle)
    x = graph.tensor([32], uid=1)
    s = graph.tensor([1], is_pass_by_value=True, uid=2)
    graph.add(x, s).set_output(True).set_uid(3)
    return graph


def test_a_cuda_graph_is_populated_and_updated(handle: Handle) -> None:
    graph, driver = scaled(handle), handle.runtime.driver
    x, first, second = (lowdnn.from_numpy(np.full(32, value, np.float32), handle) for value in (1, np.nan, np.nan))
    with handle.runtime.context.activated():
        target = driver.graph_create()
        graph.populate_cuda_graph(handle, {1: x, 2: 2.0, 3: first}, None, target)
        before = driver.graph_instantiate(target)
        graph.update_cuda_graph(handle, {1: x.buffer.address, 2: 5.0, 3: second.buffer.address}, 0, target)
        after = driver.graph_instantiate(target)
        for launchable, written, expected in ((after, second, 6), (before, first, 3)):
            assert np.isnan(written.numpy()).all()
            driver.graph_launch(launchable, handle.stream)
            handle.synchronize()
            np.testing.assert_array_equal(written.numpy(), np.full(32, expected))
            driver.graph_exec_destroy(launchable)
        driver.graph_destroy(target)


def test_wrong_cuda_graphs(handle: Handle) -> None:
    graph, driver = scaled(handle), handle.runtime.driver
    x, y = (lowdnn.from_numpy(np.ones(32, np.float32), handle) for _ in range(2))
    with handle.runtime.context.activated():
        target = driver.graph_create()
        with pytest.raises(CudaGraphMismatchError, match=r"update_cuda_graph\.cuda_graph: expected a graph to which"):
            graph.update_cuda_graph(handle, {1: x, 2: 2.0, 3: y}, None, target)
        with pytest.raises(BadParamError, match=r"uid 3"):
            graph.populate_cuda_graph(handle, {1: x, 2: 2.0}, None, target)
        with pytest.raises(OutOfBoundError, match=r"populate_cuda_graph\.cuda_graph: expected 1 to"):
            graph.populate_cuda_graph(handle, {1: x, 2: 2.0, 3: y}, None, 0)
        with pytest.raises(AttributeTypeError, match=r"populate_cuda_graph\.handle: expected a Handle"):
            graph.populate_cuda_graph(7, {1: x, 2: 2.0, 3: y}, None, target)  # type: ignore[arg-type]
        driver.graph_destroy(target)

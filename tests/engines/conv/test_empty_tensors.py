"""Random convolutions over empty tensors: some engine takes each, and every other engine refuses it with a reason."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.engines.registry import ENGINES
from lowdnn.frontend import data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from tests.support.data import fresh_seed

COUNT = 60


@pytest.mark.parametrize("arch", [SM_80, SM_90A], ids=lambda arch: arch.name)
def test_every_engine_refuses_or_plans(arch: ArchSpec) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    found = 0
    while found < COUNT:
        graph = drawn(rng)
        if graph is None:
            continue
        found += 1
        takers = [engine for engine in ENGINES if engine.refuse(graph, arch) is None]
        assert takers, f"seed {seed}: {graph.operations}"
        for engine in takers:
            engine.plan(graph, arch, {})


def drawn(rng: np.random.Generator) -> OperationGraph | None:
    """A convolution in one direction with an extent of 0, or None if the draw has none or is not valid."""
    batch, filters, channels = (int(rng.choice((0, 1, 3, 8, 16))) for _ in range(3))
    image, taps = rng.choice((0, 1, 2, 8), 2), rng.choice((1, 2, 3), 2)
    padding, stride = rng.integers(0, 3, 2), rng.integers(1, 3, 2)
    response = (image + 2 * padding - taps) // stride + 1
    x, w, y = (batch, channels, *image), (filters, channels, *taps), (batch, filters, *response)
    if channels == 0 or min(response) < 0 or min(image + 2 * padding - taps) < 0 or 0 not in (*x, *w, *y):
        return None
    kind = rng.choice([data_type.HALF, data_type.BFLOAT16, data_type.FLOAT])
    graph = pygraph(io_data_type=data_type(kind), compute_data_type=data_type.FLOAT, sm_version=90)
    lay = channels_last_strides if rng.random() < 0.7 else packed_strides
    options = {"padding": padding.tolist(), "stride": stride.tolist(), "dilation": [1, 1]}

    def tensor(dims: tuple[int, ...]) -> Tensor:
        return graph.tensor([int(extent) for extent in dims], lay(tuple(int(extent) for extent in dims)))

    direction = rng.integers(3)
    if direction == 0:
        output, dims = graph.conv_fprop(tensor(x), tensor(w), **options), y
    elif direction == 1:
        output, dims = graph.conv_dgrad(tensor(y), tensor(w), **options), x
    else:
        output, dims = graph.conv_wgrad(tensor(x), tensor(y), **options), w
    output.set_dim([int(extent) for extent in dims]).set_output(True)
    graph.validate()
    return graph._graph_or_raise()

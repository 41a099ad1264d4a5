"""Outputs that a program takes and never marks as outputs: they are computed or left out, never refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from tests.support.data import fresh_seed

FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF
Made = tuple[tuple[Tensor, ...], Tensor]


def attention(graph: pygraph) -> Made:
    q, k, v = (graph.tensor((1, 2, 16, 16), (512, 256, 16, 1)) for _ in range(3))
    o, _ = graph.sdpa(q, k, v, attn_scale=0.25, generate_stats=True)
    return (q, k, v), o


def layer_norm(graph: pygraph) -> Made:
    x, scale = graph.tensor((4, 16, 1, 1), (16, 1, 1, 1)), graph.tensor((1, 16, 1, 1), (16, 1, 1, 1))
    epsilon = graph.tensor_scalar(1e-3)
    y, _, _ = graph.layernorm(cudnn.norm_forward_phase.TRAINING, x, scale, scale, epsilon)
    return (x, scale), y


def two_of_three(graph: pygraph) -> Made:
    x = graph.tensor((2, 4, 5, 5), (100, 25, 5, 1))
    graph.reduction(graph.exp(x), mode=cudnn.reduction_mode.ADD).set_dim((1, 4, 1, 1))
    return (x,), graph.relu(x)


@pytest.mark.parametrize(
    ("made", "engine"),
    [(attention, "attention"), (layer_norm, "norm_rows"), (two_of_three, "pointwise")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_one_kernel_takes_the_rest(handle: Handle, made: Callable[[pygraph], Made], engine: str) -> None:
    rng = np.random.default_rng(fresh_seed())
    graph = pygraph("unread", HALF, FLOAT, FLOAT, handle)
    inputs, output = made(graph)
    output.set_output(True).set_data_type(HALF)
    graph.build([cudnn.heur_mode.A])
    assert engine in graph.get_plan_name_at_index(0)
    values = {t: cudnn.from_numpy(rng.standard_normal(t.get_dim()), handle, HALF, t.get_stride()) for t in inputs}
    result = cudnn.from_numpy(np.full(output.get_dim(), np.nan), handle, HALF, output.get_stride())
    workspace = cudnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    graph.execute({**values, output: result}, workspace)
    assert np.isfinite(result.numpy()).all()

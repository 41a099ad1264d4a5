"""Causal attention with grouped heads (GQA): forward with statistics, and gradients.

    python -m lowdnn.guide.recipes.grouped_attention

o = softmax(mask(scale * q k^T)) v. Eight heads of queries share two heads of keys and values, four each: the heads of k
and v are counted once, nothing is repeated in memory, and dk and dv are sums over the four. Stats, the log-sum-exp of
each query's scores, is all that backward needs of the scores, which never lie in memory.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

BATCH, HEADS, KEY_HEADS, LENGTH, SIZE = 1, 8, 2, 48, 32
#: (B, H, S, D).
Q_SHAPE = (BATCH, HEADS, LENGTH, SIZE)
K_SHAPE = (BATCH, KEY_HEADS, LENGTH, SIZE)
STATS_SHAPE = (BATCH, HEADS, LENGTH, 1)
SCALE = 1.0 / math.sqrt(SIZE)


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """o, stats, dq, dk and dv for random inputs."""
    arrays = inputs()
    do = arrays.pop("do")
    results = forward(handle).run(arrays)
    results |= backward(handle).run(arrays, o=results["o"], do=do, stats=results["stats"])
    return {name: result.numpy() for name, result in results.items()}


def inputs() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"q": Q_SHAPE, "k": K_SHAPE, "v": K_SHAPE, "do": Q_SHAPE}
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def forward(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = new_graph(handle)
    o, stats = graph.sdpa(
        heads(graph, "q", Q_SHAPE),
        heads(graph, "k", K_SHAPE),
        heads(graph, "v", K_SHAPE),
        attn_scale=SCALE,
        use_causal_mask=True,
        generate_stats=True,
    )
    assert stats is not None  # generate_stats asks for it
    o.set_output(True).set_name("o").set_stride(heads_inside(Q_SHAPE))
    stats.set_output(True).set_name("stats")
    return graph


def backward(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = new_graph(handle)
    gradients = graph.sdpa_backward(
        heads(graph, "q", Q_SHAPE),
        heads(graph, "k", K_SHAPE),
        heads(graph, "v", K_SHAPE),
        heads(graph, "o", Q_SHAPE),
        heads(graph, "do", Q_SHAPE),
        graph.tensor(STATS_SHAPE, data_type=cudnn.data_type.FLOAT, name="stats"),
        attn_scale=SCALE,
        use_causal_mask=True,
    )
    for gradient, name, shape in zip(gradients, ("dq", "dk", "dv"), (Q_SHAPE, K_SHAPE, K_SHAPE), strict=True):
        gradient.set_output(True).set_name(name).set_stride(heads_inside(shape))
    return graph


def new_graph(handle: lowdnn.Handle) -> cudnn.pygraph:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    return cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)


def heads(graph: cudnn.pygraph, name: str, shape: tuple[int, ...]) -> cudnn.Tensor:
    return graph.tensor(shape, heads_inside(shape), name=name)


def heads_inside(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of (B, H, S, D) in memory that is (B, S, H, D), as a projection of each token writes it."""
    _, heads, length, size = shape
    return (length * heads * size, size, heads * size, 1)


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        for name, array in compute(handle).items():
            print(f"{name}: {array.shape}, {array.dtype}, mean {array.mean():.4f}")

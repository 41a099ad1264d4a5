"""Dropout forward and backward with one mask, which is never stored.

    python -m lowdnn.guide.recipes.dropout

y = x * mask / keep and dx = dy * mask / keep, where mask is 1 with the probability keep. Philox makes the mask of seed,
offset and each element's index alone: whoever has both numbers has the mask. Each training step takes another offset.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

SHAPE = (64, 96)
#: The probability that an element stays.
KEEP = 0.75
SEED = 1234


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """x, dy, y and dx of step 0, and y of step 1 as next_y."""
    rng = np.random.default_rng(0)
    x, dy = (rng.uniform(1.0, 2.0, SHAPE).astype(np.float32) for _ in range(2))
    graph = dropout(handle)
    # Forward and backward are one graph, given x and then dy.
    y = graph.run(values=x, seed=SEED, offset=0)["dropped"]
    dx = graph.run(values=dy, seed=SEED, offset=0)["dropped"]
    next_y = graph.run(values=x, seed=SEED, offset=1)["dropped"]
    return {"x": x, "dy": dy, "y": y.numpy(), "dx": dx.numpy(), "next_y": next_y.numpy()}


def dropout(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    values = graph.tensor(SHAPE, name="values")
    mask = graph.rng(SHAPE, number(graph, "seed"), number(graph, "offset"), probability=KEEP)
    graph.mul(graph.mul(values, mask), 1.0 / KEEP).set_output(True).set_name("dropped")
    return graph


def number(graph: cudnn.pygraph, name: str) -> cudnn.Tensor:
    """An integer that each call of run or execute gives by value."""
    return graph.tensor((1, 1), data_type=cudnn.data_type.INT64, is_pass_by_value=True, name=name)


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        results = compute(handle)
        print(f"kept: {np.mean(results['y'] != 0):.3f} of all elements")
        print(f"backward has the same mask: {np.array_equal(results['y'] != 0, results['dx'] != 0)}")
        print(f"the next step has another: {not np.array_equal(results['y'] != 0, results['next_y'] != 0)}")

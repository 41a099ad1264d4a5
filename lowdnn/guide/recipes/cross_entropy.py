"""Cross entropy of logits and labels, and its gradient.

    python -m lowdnn.guide.recipes.cross_entropy

The loss is -mean(log_softmax(logits)[row, label]), and its gradient is (softmax(logits) - one_hot(labels)) / rows. One
graph computes both. The one-hot matrix is a comparison in it, and never lies in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[Any]

ROWS, CLASSES = 12, 100


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """loss (1, 1) and dlogits (rows, classes) for random logits and labels."""
    return {name: result.numpy() for name, result in loss_and_gradient(handle).run(inputs()).items()}


def inputs() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "logits": rng.normal(0.0, 3.0, (ROWS, CLASSES)).astype(np.float32),
        "labels": rng.integers(0, CLASSES, (ROWS, 1)).astype(np.int32),
    }


def loss_and_gradient(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    logits = graph.tensor((ROWS, CLASSES), name="logits")
    labels = graph.tensor((ROWS, 1), data_type=cudnn.data_type.INT32, name="labels")

    # The logarithm is not taken of a softmax: that would be log(0) where a class is very unlikely.
    log_probabilities, _ = graph.softmax(logits, axis=-1, is_log=True)
    one_hot = graph.cmp_eq(graph.gen_index(logits, axis=1), labels)

    chosen = graph.mul(log_probabilities, one_hot)
    total = graph.reduction(chosen, cudnn.reduction_mode.ADD).set_dim((1, 1))
    graph.mul(total, -1.0 / ROWS).set_output(True).set_name("loss")

    surplus = graph.sub(graph.exp(log_probabilities), one_hot)
    graph.mul(surplus, 1.0 / ROWS).set_output(True).set_name("dlogits")
    return graph


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        results = compute(handle)
        print(f"loss {results['loss'].item():.4f}, of guesses {np.log(CLASSES):.4f}")
        print(f"sums of the gradient's rows: at most {np.abs(results['dlogits'].sum(axis=1)).max():.1e}")

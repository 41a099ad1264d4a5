"""Training on several devices: each rank computes its parts of every batch, and all add up the gradients.

    python -m lowdnn.guide.recipes.data_parallel

w minimises |x w - y|^2 by gradient descent. Each rank is a thread with an emulated device; with GPUs it is a process,
and `lowdnn.distributed.connect` makes its communicator. The batch falls into four parts whatever the number of ranks,
so that one, two and four ranks compute the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.distributed import GradientBuckets, InProcessCommunicator, MeetingPoint, Split, run_in_threads
from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime

Array = NDArray[np.float32]

SAMPLES, INPUTS, OUTPUTS = 32, 8, 4
PARTS = 4
STEPS = 5
RATE = 0.01


def compute(ranks: int) -> Array:
    """w after the training, (INPUTS, OUTPUTS), which is the same on every rank."""
    driver = open_driver("emulated", devices=ranks)

    def of_rank(rank: int, point: MeetingPoint) -> Array:
        with Handle(Runtime(driver, device=rank)) as handle:
            communicator = InProcessCommunicator(point, rank, handle.runtime.context)
            return train(handle, Split(communicator, PARTS))

    return run_in_threads(ranks, of_rank)[0]


def train(handle: Handle, split: Split) -> Array:
    x, y = (array.reshape(PARTS, 1, SAMPLES // PARTS, -1) for array in data())
    parts = [(lowdnn.from_numpy(x[part], handle), lowdnn.from_numpy(y[part], handle)) for part in split.own_parts]
    w = lowdnn.zeros((1, INPUTS, OUTPUTS), handle)
    total = lowdnn.zeros((1, INPUTS, OUTPUTS), handle)
    gradient, update = gradient_graph(handle), update_graph(handle)
    size_bytes = max(graph.get_workspace_size() for graph in (gradient, update))
    workspace = lowdnn.empty((size_bytes,), handle, cudnn.data_type.UINT8)
    buckets = GradientBuckets(handle, split, total.buffer, {"w": (0, INPUTS * OUTPUTS)})
    for _ in range(STEPS):
        for (x_part, y_part), dw in zip(parts, buckets.partials("w"), strict=True):
            gradient.execute({"x": x_part, "y": y_part, "w": w, "dw": dw.address}, workspace)
        buckets.ready("w")
        # The stream waits for the exchange; the host does not.
        buckets.finish()
        update.execute({"w": w, "dw": total, "new_w": w}, workspace)
    result: Array = w.numpy()[0]
    buckets.close()
    return result


def gradient_graph(handle: Handle) -> cudnn.pygraph:
    """dw = x^T (x w - y) of one part of the batch."""
    single, count = cudnn.data_type.FLOAT, SAMPLES // PARTS
    graph = cudnn.pygraph("gradient", intermediate_data_type=single, compute_data_type=single, handle=handle)
    x = graph.tensor((1, count, INPUTS), data_type=single, name="x")
    w = graph.tensor((1, INPUTS, OUTPUTS), data_type=single, name="w")
    y = graph.tensor((1, count, OUTPUTS), data_type=single, name="y")
    residual = graph.sub(graph.matmul(x, w), y)
    dw = graph.matmul(graph.transpose(x, [0, 2, 1]), residual)
    dw.set_output(True).set_data_type(single).set_name("dw")
    graph.build([cudnn.heur_mode.A])
    return graph


def update_graph(handle: Handle) -> cudnn.pygraph:
    """w - RATE * dw, in place."""
    single = cudnn.data_type.FLOAT
    graph = cudnn.pygraph("update", intermediate_data_type=single, compute_data_type=single, handle=handle)
    w, dw = (graph.tensor((1, INPUTS, OUTPUTS), data_type=single, name=name) for name in ("w", "dw"))
    graph.sub(w, graph.mul(dw, RATE)).set_output(True).set_data_type(single).set_name("new_w")
    graph.build([cudnn.heur_mode.A])
    return graph


def data() -> tuple[Array, Array]:
    """x (SAMPLES, INPUTS) and y (SAMPLES, OUTPUTS)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, INPUTS)).astype(np.float32)
    return x, (x @ rng.normal(size=(INPUTS, OUTPUTS))).astype(np.float32)


if __name__ == "__main__":
    of_one, of_two = compute(1), compute(2)
    print(f"largest difference between one rank and two: {np.abs(of_one - of_two).max()}")

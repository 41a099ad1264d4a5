"""The MLP of a transformer layer on two devices, with its all-reduce, residual and norm in one kernel.

    python -m lowdnn.guide.recipes.tensor_parallel_mlp

The layer is r = residual + gelu(x w1) w2 and y = r * weight / sqrt(average of r^2 + epsilon). The first product is
column-parallel: each rank has half of the columns of w1, and computes half of the hidden units from the whole of x. The
second one is row-parallel: the rank has the rows of w2 of its own units. Each rank then holds a summand of
gelu(x w1) w2. `AllReduceNorm` exchanges the summands and adds them up. Between the products nothing is exchanged, since
gelu is taken of each unit alone.

Each rank is a thread with an emulated device; with GPUs it is a process, and `lowdnn.distributed.connect` makes its
communicator. In training, the gradient of x needs a second all-reduce, behind the backward pass of the first product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.distributed import AllReduceNorm, Communicator, InProcessCommunicator, MeetingPoint, run_in_threads
from lowdnn.driver import open_driver
from lowdnn.enums import DataType
from lowdnn.runtime.runtime import Runtime

Array = NDArray[np.floating]

RANKS = 2
ROWS, SIZE, HIDDEN = 8, 32, 64
EPSILON = 1e-5
LAYERS = 2


def compute(ranks: int = RANKS) -> list[dict[str, Array]]:
    """y and r behind the last of the layers, which have the same weights, as each rank has them."""
    driver = open_driver("emulated", devices=ranks)

    def of_rank(rank: int, point: MeetingPoint) -> dict[str, Array]:
        with Handle(Runtime(driver, device=rank)) as handle:
            return run(handle, InProcessCommunicator(point, rank, handle.runtime.context))

    return run_in_threads(ranks, of_rank)


def run(handle: Handle, communicator: Communicator) -> dict[str, Array]:
    given, half, single = inputs(), cudnn.data_type.HALF, cudnn.data_type.FLOAT
    columns = np.split(given["w1"], communicator.size, axis=2)[communicator.rank]
    rows = np.split(given["w2"], communicator.size, axis=1)[communicator.rank]
    w1, w2 = (lowdnn.from_numpy(np.ascontiguousarray(part), handle, half) for part in (columns, rows))
    x, residual, weight = (lowdnn.from_numpy(given[name], handle, single) for name in ("x", "residual", "weight"))
    summand = lowdnn.zeros((1, ROWS, SIZE), handle)
    mlp = mlp_graph(handle, HIDDEN // communicator.size)
    workspace = lowdnn.empty((max(1, mlp.get_workspace_size()),), handle, cudnn.data_type.UINT8)
    with AllReduceNorm(communicator, handle, ROWS, SIZE, DataType.FLOAT, epsilon=EPSILON) as all_reduce_norm:
        all_reduce_norm.prepare(ROWS)
        communicator.barrier(stream=handle.borrowed_stream())  # loading a kernel may take longer than ranks wait
        for _ in range(LAYERS):
            mlp.execute({"x": x, "w1": w1, "w2": w2, "y": summand}, workspace)
            # y becomes the next layer's x, r its residual.
            all_reduce_norm(summand, residual, weight, x, residual)
        all_reduce_norm.check()
        return {"y": x.numpy(), "r": residual.numpy()}


def inputs() -> dict[str, Array]:
    """x and residual (1, rows, size), w1 (1, size, hidden), w2 (1, hidden, size), weight (size)."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((1, ROWS, SIZE)).astype(np.float32),
        "residual": rng.standard_normal((1, ROWS, SIZE)).astype(np.float32),
        "w1": (rng.standard_normal((1, SIZE, HIDDEN)) / SIZE**0.5).astype(np.float16),
        "w2": (rng.standard_normal((1, HIDDEN, SIZE)) / HIDDEN**0.5).astype(np.float16),
        "weight": rng.uniform(0.5, 1.5, SIZE).astype(np.float32),
    }


def mlp_graph(handle: Handle, hidden: int) -> cudnn.pygraph:
    """gelu(x w1) w2 with ``hidden`` units, from x rounded to fp16. y is fp32, since summands that are rounded to fp16
    would add their errors."""
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)
    x = graph.tensor((1, ROWS, SIZE), data_type=single, name="x")
    w1, w2 = graph.tensor((1, SIZE, hidden), name="w1"), graph.tensor((1, hidden, SIZE), name="w2")
    units = graph.gelu(graph.matmul(graph.identity(x).set_data_type(half), w1)).set_data_type(half)
    graph.matmul(units, w2).set_output(True).set_name("y").set_data_type(single)
    graph.build([cudnn.heur_mode.A])
    return graph


if __name__ == "__main__":
    (whole,), parts = compute(1), compute(RANKS)
    difference = max(np.abs(part["y"] - whole["y"]).max() for part in parts)
    print(f"largest difference between one rank and {RANKS}: {difference:.1e}")

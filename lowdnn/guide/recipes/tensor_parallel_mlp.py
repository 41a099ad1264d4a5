"""A tensor-parallel MLP for two GPUs, computed in two halves on one device.

    python -m lowdnn.guide.recipes.tensor_parallel_mlp

The MLP is y = gelu(x w1) w2. The first layer is column-parallel: each GPU has half of the columns of w1, and computes
half of the hidden units from the whole of x. The second layer is row-parallel: the GPU has the rows of w2 of its own
units. Each GPU then holds a summand of y, and one all-reduce adds them. Between the layers there is none, since
gelu is taken of each unit alone.

On two GPUs, each has a process or a thread with a handle of its own (``create_handle(ordinal=1)``). lowdnn has no
all-reduce: that of NCCL goes into the handle's stream (``get_stream``), at the place that is marked below. In training,
the gradient of x needs a second all-reduce, behind the backward pass of the first layer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

GPUS = 2
ROWS, SIZE, HIDDEN = 32, 32, 128


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """y by the whole MLP, and y by its parts."""
    x, w1, w2 = inputs()
    whole = mlp(handle, HIDDEN).run(x=x, w1=w1, w2=w2)["y"].numpy()

    part = mlp(handle, HIDDEN // GPUS)
    columns, rows = np.split(w1, GPUS, axis=2), np.split(w2, GPUS, axis=1)
    # On several GPUs each pass of this loop is one of them, at the same time.
    summands = [part.run(x=x, w1=columns[gpu], w2=rows[gpu])["y"].numpy() for gpu in range(GPUS)]
    # Here stands the all-reduce: each GPU would get the sum of all summands.
    return {"whole": whole, "sum_of_parts": np.sum(summands, axis=0)}


def inputs() -> tuple[Array, Array, Array]:
    """x (1, rows, size), w1 (1, size, hidden) and w2 (1, hidden, size)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, ROWS, SIZE))
    w1 = rng.standard_normal((1, SIZE, HIDDEN)) / SIZE**0.5
    w2 = rng.standard_normal((1, HIDDEN, SIZE)) / HIDDEN**0.5
    return x.astype(np.float16), w1.astype(np.float16), w2.astype(np.float16)


def mlp(handle: lowdnn.Handle, hidden: int) -> cudnn.pygraph:
    """gelu(x w1) w2 with ``hidden`` units. y is fp32: summands that are rounded to fp16 would add their errors."""
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)
    x = graph.tensor((1, ROWS, SIZE), name="x")
    w1 = graph.tensor((1, SIZE, hidden), name="w1")
    w2 = graph.tensor((1, hidden, SIZE), name="w2")
    # The hidden units are rounded to fp16 in whole and parts alike.
    units = graph.gelu(graph.matmul(x, w1)).set_data_type(half)
    graph.matmul(units, w2).set_output(True).set_name("y").set_data_type(single)
    return graph


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        results = compute(handle)
        difference = np.abs(results["whole"] - results["sum_of_parts"]).max()
        print(f"largest difference between the whole and the sum of {GPUS} parts: {difference:.1e}")

"""A network in two stages on two devices: each stage works on a part of the batch while the other has the next one.

    python -m lowdnn.guide.recipes.pipeline

The network is y = relu(x w1 + b1) w2 + b2. Rank 0 has the first layer, rank 1 the second. The batch falls into
micro-batches: rank 0 sends each one's hidden units as soon as it has them, and goes on with the next, while rank 1
computes. Two buffers are used in turn, so that a micro-batch is computed while the one before it is sent.

Each rank is a thread with an emulated device, whose collectives wait in the call. With GPUs a rank is a process, and
`lowdnn.distributed.connect` makes its communicator: there sends and receives are ordered in the stream.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.distributed import Communicator, InProcessCommunicator, MeetingPoint, run_in_threads
from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime

Array = NDArray[np.floating]

STAGES = 2
MICRO_BATCHES = 4
ROWS, SIZE, HIDDEN = 8, 16, 32


def compute() -> Array:
    """y of the whole batch, (MICRO_BATCHES * ROWS, SIZE)."""
    driver = open_driver("emulated", devices=STAGES)

    def of_rank(rank: int, point: MeetingPoint) -> list[Array]:
        with Handle(Runtime(driver, device=rank)) as handle:
            communicator = InProcessCommunicator(point, rank, handle.runtime.context)
            stage = first_stage if rank == 0 else second_stage
            return stage(handle, communicator)

    return np.concatenate(run_in_threads(STAGES, of_rank)[-1])


def first_stage(handle: Handle, communicator: Communicator) -> list[Array]:
    """Sends the hidden units of each micro-batch; no results."""
    given, stream = inputs(), handle.borrowed_stream()
    w1, b1 = (lowdnn.from_numpy(given[name], handle) for name in ("w1", "b1"))
    layer = layer_graph(handle, SIZE, HIDDEN, is_last=False)
    workspace = lowdnn.empty((max(1, layer.get_workspace_size()),), handle, cudnn.data_type.UINT8)
    buffers = [lowdnn.zeros((1, ROWS, HIDDEN), handle) for _ in range(2)]
    for number, rows in enumerate(np.split(given["x"], MICRO_BATCHES)):
        x, hidden = lowdnn.from_numpy(rows[None], handle), buffers[number % 2]
        layer.execute({"x": x, "w": w1, "b": b1, "y": hidden}, workspace)
        communicator.send(hidden, peer=1, stream=stream)
    return []


def second_stage(handle: Handle, communicator: Communicator) -> list[Array]:
    """y of each micro-batch."""
    given, stream = inputs(), handle.borrowed_stream()
    w2, b2 = (lowdnn.from_numpy(given[name], handle) for name in ("w2", "b2"))
    layer = layer_graph(handle, HIDDEN, SIZE, is_last=True)
    workspace = lowdnn.empty((max(1, layer.get_workspace_size()),), handle, cudnn.data_type.UINT8)
    buffers = [lowdnn.zeros((1, ROWS, HIDDEN), handle) for _ in range(2)]
    results = [lowdnn.zeros((1, ROWS, SIZE), handle) for _ in range(MICRO_BATCHES)]
    for number, y in enumerate(results):
        hidden = buffers[number % 2]
        communicator.recv(hidden, peer=0, stream=stream)
        layer.execute({"x": hidden, "w": w2, "b": b2, "y": y}, workspace)
    return [y.numpy()[0] for y in results]


def layer_graph(handle: Handle, size: int, units: int, *, is_last: bool) -> cudnn.pygraph:
    """y = x w + b, and its relu where another layer follows, of one micro-batch."""
    single = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=single, intermediate_data_type=single, compute_data_type=single, handle=handle)
    x, w = graph.tensor((1, ROWS, size), name="x"), graph.tensor((1, size, units), name="w")
    y = graph.add(graph.matmul(x, w), graph.tensor((1, 1, units), name="b"))
    (y if is_last else graph.relu(y)).set_output(True).set_name("y")
    graph.build([cudnn.heur_mode.A])
    return graph


def inputs() -> dict[str, Array]:
    """x (MICRO_BATCHES * ROWS, SIZE), w1 and w2 (1, inputs, outputs), b1 and b2 (1, 1, outputs)."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (1, SIZE, HIDDEN), "b1": (1, 1, HIDDEN), "w2": (1, HIDDEN, SIZE), "b2": (1, 1, SIZE)}
    weights = {name: (rng.standard_normal(shape) / 4).astype(np.float32) for name, shape in shapes.items()}
    return {"x": rng.standard_normal((MICRO_BATCHES * ROWS, SIZE)).astype(np.float32), **weights}


if __name__ == "__main__":
    given = inputs()
    hidden = np.maximum(given["x"] @ given["w1"][0] + given["b1"][0], 0)
    difference = np.abs(compute() - (hidden @ given["w2"][0] + given["b2"][0])).max()
    print(f"largest difference from the network on the host: {difference:.1e}")

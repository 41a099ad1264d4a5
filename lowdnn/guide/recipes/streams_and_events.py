"""Two handles with a stream each, whose work events order.

    python -m lowdnn.guide.recipes.streams_and_events

A handle launches into its stream and never waits. Work in two streams may run at the same time, so that each piece of
memory they share needs an order in both directions: the consumer waits until it is written, and the producer waits
until it has been read. The host waits for nothing before it reads the results.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

SIZE = 64
STEPS = 4


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """x (steps, 1, size, size), w, and for each step y = relu(x w) + 1, where a handle each computes relu and sum."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (STEPS, 1, SIZE, SIZE)).astype(np.float32)
    w = rng.integers(-2, 3, (1, SIZE, SIZE)).astype(np.float32)
    # Without the argument each handle would have an emulated device of its own; handles of one GPU share it anyway.
    with (
        lowdnn.create_handle(same_device_as=handle) as producer,
        lowdnn.create_handle(same_device_as=handle) as consumer,
    ):
        return {"x": x, "w": w, "y": pipeline(producer, consumer, x, w)}


def pipeline(producer: lowdnn.Handle, consumer: lowdnn.Handle, x: Array, w: Array) -> Array:
    with (
        lowdnn.create_stream(producer) as producing,
        lowdnn.create_stream(consumer) as consuming,
        lowdnn.create_event(producer) as written,
        lowdnn.create_event(consumer) as read,
    ):
        producer.set_stream(producing)
        consumer.set_stream(consuming)
        first, second = product(producer), increment(consumer)
        first_workspace, second_workspace = workspace(first), workspace(second)
        x_device, w_device = lowdnn.from_numpy(x, producer), lowdnn.from_numpy(w, producer)
        between = lowdnn.empty((1, SIZE, SIZE), producer)
        y = lowdnn.empty(x.shape, consumer)
        for step in range(STEPS):
            if step > 0:
                producing.wait(read)
            first.execute({"x": x_device[step], "w": w_device, "between": between}, first_workspace)
            written.record(producing)
            consuming.wait(written)
            second.execute({"between": between, "y": y[step]}, second_workspace)
            read.record(consuming)
        # numpy() waits for the stream of the tensor's own handle.
        return y.numpy()


def product(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    x, w = graph.tensor((1, SIZE, SIZE), name="x"), graph.tensor((1, SIZE, SIZE), name="w")
    graph.relu(graph.matmul(x, w)).set_output(True).set_name("between")
    graph.build()
    return graph


def increment(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    between = graph.tensor((1, SIZE, SIZE), name="between")
    graph.add(between, 1.0).set_output(True).set_name("y")
    graph.build()
    return graph


def workspace(graph: cudnn.pygraph) -> cudnn.DeviceTensor:
    """Memory of the graph's own: two streams must not share a workspace."""
    return lowdnn.empty((graph.get_workspace_size(),), graph.handle, cudnn.data_type.UINT8)


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        results = compute(handle)
        expected = np.maximum(results["x"] @ results["w"], 0.0) + 1.0
        print(f"{STEPS} steps through two streams: right: {np.array_equal(results['y'], expected)}")

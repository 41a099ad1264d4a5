"""A plan captured into a CUDA graph and replayed with other data.

    python -m lowdnn.guide.recipes.capture

``execute`` allocates nothing and never waits, so that a stream that is being captured records it. The CUDA graph holds
addresses: new data are copied to where the old ones lie. Names are those of the CUDA driver (cuStreamBeginCapture,
cuGraphInstantiate, cuGraphLaunch); the emulated device has them too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

A_SHAPE, B_SHAPE, C_SHAPE = (1, 64, 32), (1, 32, 48), (1, 64, 48)
REPLAYS = 3


def compute(handle: lowdnn.Handle) -> list[tuple[Array, Array, Array]]:
    """(a, b, c) of each replay, where c = relu(a b)."""
    rng = np.random.default_rng(0)
    b = rng.integers(-2, 3, B_SHAPE).astype(np.float32)
    batches = rng.integers(-2, 3, (REPLAYS, *A_SHAPE)).astype(np.float32)

    half = cudnn.data_type.HALF
    a_device, b_device = lowdnn.empty(A_SHAPE, handle, half), lowdnn.from_numpy(b, handle, half)
    c_device = lowdnn.empty(C_SHAPE, handle, half)
    graph = product(handle)
    # Building loads the kernels, which no stream can capture.
    graph.build()
    workspace = lowdnn.empty((graph.get_workspace_size(),), handle, cudnn.data_type.UINT8)

    with lowdnn.create_stream(handle) as stream:
        handle.set_stream(stream)
        stream.begin_capture()
        graph.execute({"a": a_device, "b": b_device, "c": c_device}, workspace)
        captured = stream.end_capture()
        driver, context = handle.runtime.driver, handle.runtime.context
        with context.activated():
            executable = driver.graph_instantiate(captured)
        results = []
        for a in batches:
            a_device.copy_from(a)
            with context.activated():
                driver.graph_launch(executable, stream.handle)
            results.append((a, b, c_device.numpy()))
        with context.activated():
            driver.graph_exec_destroy(executable)
            driver.graph_destroy(captured)
        handle.set_stream(0)
    return results


def product(handle: lowdnn.Handle) -> cudnn.pygraph:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)
    a, b = graph.tensor(A_SHAPE, name="a"), graph.tensor(B_SHAPE, name="b")
    graph.relu(graph.matmul(a, b)).set_output(True).set_name("c")
    return graph


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        for number, (a, b, c) in enumerate(compute(handle)):
            print(f"replay {number}: right: {np.array_equal(c, np.maximum(a @ b, 0.0))}")

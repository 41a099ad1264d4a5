"""A training loop: loss, gradients and SGD of a two-layer network on the device.

    python -m lowdnn.guide.recipes.training_loop

One graph is a whole step: it reads the parameters and writes the updated ones. There are two sets of them, which swap
after each step, since a graph must not write memory that it still reads. The graph is built once. A step is one
``execute``, which neither allocates nor waits; the host waits where it reads the losses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

ROWS, INPUT, HIDDEN, OUTPUT = 32, 8, 32, 4
SHAPES = {"w1": (1, INPUT, HIDDEN), "b1": (1, 1, HIDDEN), "w2": (1, HIDDEN, OUTPUT), "b2": (1, 1, OUTPUT)}
STEPS = 20
LEARNING_RATE = 0.1


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """The loss before each step, and the parameters after the last one."""
    parameters, x, target = inputs()
    graph = training_step(handle)
    graph.build()

    old = {name: lowdnn.from_numpy(array, handle) for name, array in parameters.items()}
    new = {name: lowdnn.empty(shape, handle) for name, shape in SHAPES.items()}
    losses = [lowdnn.empty((1, 1, 1), handle) for _ in range(STEPS)]
    batch = {"x": lowdnn.from_numpy(x, handle), "target": lowdnn.from_numpy(target, handle)}
    workspace = lowdnn.empty((graph.get_workspace_size(),), handle, cudnn.data_type.UINT8)
    for step in range(STEPS):
        outputs = {f"new_{name}": tensor for name, tensor in new.items()}
        graph.execute(batch | old | outputs | {"loss": losses[step]}, workspace)
        old, new = new, old
    return {
        "losses": np.array([loss.numpy().item() for loss in losses]),
        **{name: tensor.numpy() for name, tensor in old.items()},
    }


def inputs() -> tuple[dict[str, Array], Array, Array]:
    """First parameters, and one batch of x and target, where target is a function of x that can be learnt."""
    rng = np.random.default_rng(0)
    parameters = {
        name: (rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32) for name, shape in SHAPES.items()
    }
    x = rng.standard_normal((1, ROWS, INPUT)).astype(np.float32)
    return parameters, x, np.sin(x[..., :OUTPUT])


def training_step(handle: lowdnn.Handle) -> cudnn.pygraph:
    """loss = mean((relu(x w1 + b1) w2 + b2 - target)^2), and each parameter minus the rate times its gradient."""
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    x = graph.tensor((1, ROWS, INPUT), name="x")
    target = graph.tensor((1, ROWS, OUTPUT), name="target")
    w1, b1, w2, b2 = (graph.tensor(shape, name=name) for name, shape in SHAPES.items())

    before = graph.add(graph.matmul(x, w1), b1)
    hidden = graph.relu(before)
    difference = graph.sub(graph.add(graph.matmul(hidden, w2), b2), target)
    squares = graph.reduction(graph.mul(difference, difference), cudnn.reduction_mode.ADD).set_dim((1, 1, 1))
    graph.mul(squares, 1.0 / (ROWS * OUTPUT)).set_output(True).set_name("loss")

    dy = graph.mul(difference, 2.0 / (ROWS * OUTPUT))
    dhidden = graph.relu_backward(graph.matmul(dy, transposed(graph, w2)), before)
    update(graph, "w1", w1, graph.matmul(transposed(graph, x), dhidden))
    update(graph, "b1", b1, sum_of_rows(graph, dhidden, HIDDEN))
    update(graph, "w2", w2, graph.matmul(transposed(graph, hidden), dy))
    update(graph, "b2", b2, sum_of_rows(graph, dy, OUTPUT))
    return graph


def transposed(graph: cudnn.pygraph, matrix: cudnn.Tensor) -> cudnn.Tensor:
    return graph.transpose(matrix, (0, 2, 1))


def sum_of_rows(graph: cudnn.pygraph, matrix: cudnn.Tensor, columns: int) -> cudnn.Tensor:
    return graph.reduction(matrix, cudnn.reduction_mode.ADD).set_dim((1, 1, columns))


def update(graph: cudnn.pygraph, name: str, parameter: cudnn.Tensor, gradient: cudnn.Tensor) -> None:
    new = graph.sub(parameter, graph.mul(gradient, LEARNING_RATE))
    new.set_output(True).set_name(f"new_{name}")


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        for step, loss in enumerate(compute(handle)["losses"]):
            print(f"step {step:2}: loss {loss:.4f}")

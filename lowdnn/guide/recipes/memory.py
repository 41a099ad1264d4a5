"""A network within a limit of memory: a pool, an arena, and plans that need less workspace.

    python -m lowdnn.guide.recipes.memory

The layers are a sequence, whose intermediates and workspaces share an arena by lifetime. The arena comes from a pool,
which other graphs of the handle use too, and which holds no more than its limit. A layer with a long sum may split it
over many blocks, with partial sums in its workspace: of its plans, the fastest one is taken that leaves enough room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

ROWS, WIDTH, LAYERS = 16, 64, 6
#: Elements of a sum in the first layer, which a plan splits.
INPUTS = 2048
LIMIT_BYTES = 32 << 10


@dataclass(frozen=True)
class Result:
    """arrays: x, the weights and y by name.  plans: (estimate in us, workspace in bytes) of the first layer's plans.

    taken_bytes: the workspace of the plan that the limit leaves.  arena: its sizes in words.
    held_bytes: the most that the pool held at a time.
    """

    arrays: dict[str, Array]
    plans: list[tuple[float, int]]
    taken_bytes: int
    arena: str
    held_bytes: int


def compute(handle: lowdnn.Handle) -> Result:
    """y = relu(... relu(relu(x w0) w1) ...), a layer for each matrix of weights."""
    rng = np.random.default_rng(0)
    shapes = {"x": (1, ROWS, INPUTS), "w0": (1, INPUTS, WIDTH)}
    shapes |= {f"w{layer}": (1, WIDTH, WIDTH) for layer in range(1, LAYERS)}
    arrays: dict[str, Array] = {
        name: rng.integers(-1, 2, shape).astype(np.float32) / 8 for name, shape in shapes.items()
    }
    values = {name: lowdnn.from_numpy(array, handle, cudnn.data_type.HALF) for name, array in arrays.items()}
    values["y"] = lowdnn.empty((1, ROWS, WIDTH), handle)

    first, plans = long_layer(handle)
    others = layer(handle, cudnn.data_type.HALF), layer(handle, cudnn.data_type.FLOAT)
    sequence = lowdnn.GraphSequence()
    sequence.add(first, {"x": "x", "w": "w0", "y": "h0"})
    for number in range(1, LAYERS):
        is_last = number == LAYERS - 1
        names = {"x": f"h{number - 1}", "w": f"w{number}", "y": "y" if is_last else f"h{number}"}
        sequence.add(others[is_last], names)

    with lowdnn.WorkspacePool(handle, limit_bytes=LIMIT_BYTES) as pool:
        sequence.execute(values, pool)
        arrays["y"] = values["y"].numpy()
        held_bytes = pool.statistics().high_water_bytes
    return Result(arrays, plans, first.get_workspace_size(), str(sequence.memory), held_bytes)


def long_layer(handle: lowdnn.Handle) -> tuple[cudnn.pygraph, list[tuple[float, int]]]:
    """The first layer, with the fastest plan that leaves half of the limit to others, and all plans to choose from."""
    graph = written(handle, INPUTS, cudnn.data_type.HALF)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    plans = [(plan.estimated_us, plan.workspace_bytes) for plan in graph.pareto_plans()]
    graph.deselect_workspace_greater_than(LIMIT_BYTES // 2)
    graph.build_plans()
    return graph, plans


def layer(handle: lowdnn.Handle, output: cudnn.data_type) -> cudnn.pygraph:
    graph = written(handle, WIDTH, output)
    graph.build()
    return graph


def written(handle: lowdnn.Handle, inputs: int, output: cudnn.data_type) -> cudnn.pygraph:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)
    x, w = graph.tensor((1, ROWS, inputs), name="x"), graph.tensor((1, inputs, WIDTH), name="w")
    graph.relu(graph.matmul(x, w)).set_output(True).set_data_type(output).set_name("y")
    return graph


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        result = compute(handle)
        for estimated_us, size_bytes in result.plans:
            print(f"first layer: {estimated_us:6.1f} us estimated with {size_bytes} bytes of workspace")
        print(f"taken: the plan with {result.taken_bytes} bytes")
        print(result.arena)
        print(f"the pool held at most {result.held_bytes} of {LIMIT_BYTES} bytes")

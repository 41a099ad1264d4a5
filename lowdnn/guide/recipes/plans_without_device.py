"""A plan that is made without a device, stored, and executed elsewhere.

    python -m lowdnn.guide.recipes.plans_without_device

Planning needs the facts of a device and no device. Facts come as JSON from a machine that has one
(``create_device_properties``), or from ``sm_version`` for the usual device of an architecture. The plan itself is JSON
too. Where it is read it is made again and compared, so that nothing runs but what this version of lowdnn would make.
It names kernels and holds none: ``lowdnn guide shipping`` has a file that holds both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

A_SHAPE, B_SHAPE = (1, 64, 32), (1, 32, 48)


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """a, b and c = relu(a b), by a plan that was made from the facts of handle's device alone."""
    facts = cudnn.create_device_properties(handle).serialize()
    stored = plan_for(facts)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in (A_SHAPE, B_SHAPE))
    return {"a": a, "b": b, "c": execute(handle, stored, a, b)}


def plan_for(facts: str) -> str:
    """The machine that plans: it has no GPU, and compiles nothing."""
    graph = product(device_property=cudnn.create_device_properties(facts))
    graph.build()
    stored = graph.serialize()
    assert isinstance(stored, str)  # serialize(as_bytes=True) gives bytes
    return stored


def execute(handle: lowdnn.Handle, stored: str, a: Array, b: Array) -> Array:
    """The machine that computes: it writes no graph, and finds tensors by their names."""
    graph = cudnn.pygraph(handle=handle)
    graph.deserialize(handle, stored)
    result: Array = graph.run(a=a, b=b)["c"].numpy()
    return result


def plan_names() -> dict[int, str]:
    """The chosen plan by sm_version, as tests compare what a change of the program does to plans of every device."""
    names = {}
    for sm_version in (80, 90, 120):
        graph = product(sm_version=sm_version)
        graph.build()
        names[sm_version] = graph.get_plan_name_at_index(0)
    return names


def product(device_property: cudnn.device_properties | None = None, sm_version: int | None = None) -> cudnn.pygraph:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        io_data_type=half,
        intermediate_data_type=single,
        compute_data_type=single,
        device_property=device_property,
        sm_version=sm_version,
    )
    a, b = graph.tensor(A_SHAPE, name="a"), graph.tensor(B_SHAPE, name="b")
    graph.relu(graph.matmul(a, b)).set_output(True).set_name("c")
    return graph


if __name__ == "__main__":
    for sm_version, plan in plan_names().items():
        print(f"sm_{sm_version}: {plan}")
    with lowdnn.create_handle() as handle:
        results = compute(handle)
        expected = np.maximum(results["a"].astype(np.float32) @ results["b"].astype(np.float32), 0.0)
        print(f"executed from the stored plan: largest error {np.abs(results['c'] - expected).max():.1e}")

"""A small network for inference in int8 and fp8, and its error against fp32.

    python -m lowdnn.guide.recipes.quantised_inference

A tensor t is stored as q = round(t / scale), with scale = max |t| / the largest number of the type. A layer multiplies
the stored numbers, and scale_x * scale_w turns the sums back. Scales of weights come from the weights. Scales of
activations come from a calibration batch that runs in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

ROWS, INPUT, HIDDEN, OUTPUT = 32, 64, 128, 16


@dataclass(frozen=True)
class Format:
    """The stored type, the type that sums of products have, and the largest stored number."""

    stored: cudnn.data_type
    sums: cudnn.data_type
    largest: float


FORMATS = {
    "fp32": Format(cudnn.data_type.FLOAT, cudnn.data_type.FLOAT, float(np.finfo(np.float32).max)),
    "int8": Format(cudnn.data_type.INT8, cudnn.data_type.INT32, 127.0),
    "fp8": Format(cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT, 448.0),
}


@dataclass(frozen=True)
class Scales:
    """The value of a stored 1, for each tensor; no quantisation by default."""

    x: float = 1.0
    w1: float = 1.0
    hidden: float = 1.0
    w2: float = 1.0


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """The network's outputs for one batch, by format."""
    weights, calibration, x = inputs()
    exact = network(handle, FORMATS["fp32"], Scales())
    hidden = exact.run(weights, x=calibration)["hidden"].numpy()
    outputs = {"fp32": exact.run(weights, x=x)["y"].numpy()}
    for name in ("int8", "fp8"):
        largest = FORMATS[name].largest
        scales = Scales(*(scale(array, largest) for array in (calibration, weights["w1"], hidden, weights["w2"])))
        stored = weights | {"w1": weights["w1"] / scales.w1, "w2": weights["w2"] / scales.w2}
        # run rounds each array to the type of its tensor; what lies beyond the largest number becomes that number.
        outputs[name] = network(handle, FORMATS[name], scales).run(stored, x=x / scales.x)["y"].numpy()
    return outputs


def inputs() -> tuple[dict[str, Array], Array, Array]:
    """Weights and biases, a calibration batch, and a batch to infer."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((1, INPUT, HIDDEN)) / INPUT**0.5,
        "b1": rng.standard_normal((1, 1, HIDDEN)) / 4,
        "w2": rng.standard_normal((1, HIDDEN, OUTPUT)) / HIDDEN**0.5,
        "b2": rng.standard_normal((1, 1, OUTPUT)) / 4,
    }
    return weights, rng.standard_normal((1, ROWS, INPUT)), rng.standard_normal((1, ROWS, INPUT))


def scale(array: Array, largest: float) -> float:
    return float(np.abs(array).max()) / largest


def network(handle: lowdnn.Handle, form: Format, scales: Scales) -> cudnn.pygraph:
    """y = relu(x w1 + b1) w2 + b2 with x, w1, hidden and w2 in the stored type, and y in fp32."""
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, handle=handle)
    x = graph.tensor((1, ROWS, INPUT), data_type=form.stored, name="x")
    w1 = graph.tensor((1, INPUT, HIDDEN), data_type=form.stored, name="w1")
    w2 = graph.tensor((1, HIDDEN, OUTPUT), data_type=form.stored, name="w2")
    b1, b2 = graph.tensor((1, 1, HIDDEN), name="b1"), graph.tensor((1, 1, OUTPUT), name="b2")

    hidden = graph.relu(layer(graph, form.sums, x, w1, b1, scales.x * scales.w1))
    hidden = graph.mul(hidden, 1.0 / scales.hidden)
    hidden.set_output(True).set_name("hidden").set_data_type(form.stored)
    y = layer(graph, form.sums, hidden, w2, b2, scales.hidden * scales.w2)
    y.set_output(True).set_name("y")
    return graph


def layer(
    graph: cudnn.pygraph, sums: cudnn.data_type, x: cudnn.Tensor, w: cudnn.Tensor, b: cudnn.Tensor, scale: float
) -> cudnn.Tensor:
    """(x w) * scale + b in fp32, where the product has the type ``sums``."""
    product = graph.matmul(x, w, compute_data_type=sums).set_data_type(sums)
    return graph.add(graph.mul(product, scale), b)


def relative_error(found: Array, exact: Array) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        outputs = compute(handle)
        for name in ("int8", "fp8"):
            print(f"{name}: relative error {relative_error(outputs[name], outputs['fp32']):.2%}")

"""The network that is served, its reference in NumPy, and its graphs on a device.

    python -m tools.examples.service.model        prints the text cases of its graphs, for ``lowdnn cache export``

    scores = relu(x w1 + b1) w2 + b2

w1 and b1 are random features. w2 and b2 solve a ridge regression on the digits of the demo: no training is needed.
x, w1, the hidden layer and w2 are fp16, everything else is fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.cli import digits

BATCH, PIXELS, HIDDEN, CLASSES = 16, 64, 256, 10
#: Text cases of the two graphs; a test holds that their plans in a bundle are those of ``Classifier``.
CASES = (
    f"matmul b=1 m={BATCH} n={HIDDEN} k={PIXELS} dtype=fp16 epilogue=bias+relu",
    f"matmul b=1 m={BATCH} n={CLASSES} k={HIDDEN} dtype=fp16 out=fp32 epilogue=bias",
)
_RIDGE = 1.0

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """w1 (PIXELS, HIDDEN), b1 (HIDDEN,), w2 (HIDDEN, CLASSES), b2 (CLASSES,); all can be represented in fp16."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array

    def scores(self, images: Array) -> Array:
        """The reference: (count, CLASSES) of images (count, PIXELS)."""
        return _rounded(_hidden(_rounded(images), self.w1, self.b1)) @ self.w2 + self.b2


@cache
def weights() -> Weights:
    """The weights; the same in each process."""
    rng = np.random.default_rng(0)
    training, _ = digits.load()
    x = _rounded(training.images.reshape(-1, PIXELS))
    w1 = _rounded(rng.standard_normal((PIXELS, HIDDEN)) / 2)
    b1 = _rounded(rng.standard_normal(HIDDEN) / 2)
    features = np.pad(_rounded(_hidden(x, w1, b1)), ((0, 0), (0, 1)), constant_values=1).astype(np.float64)
    wanted = np.where(np.arange(CLASSES) == training.labels[:, None], 1.0, -1.0)
    solved = np.linalg.solve(features.T @ features + _RIDGE * np.eye(HIDDEN + 1), features.T @ wanted)
    return Weights(w1, b1, _rounded(solved[:-1]), _rounded(solved[-1]))


@dataclass(frozen=True)
class Layer:
    """A graph, and the memory of its tensors by name."""

    graph: cudnn.pygraph
    memory: dict[str, lowdnn.DeviceTensor]


class Classifier:
    """The graphs of the network on the handle's device, with their memory; for one thread at a time."""

    def __init__(self, handle: lowdnn.Handle) -> None:
        self._handle = handle
        half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
        known = weights()
        arrays = {
            "x": (np.zeros((BATCH, PIXELS)), half),
            "w1": (known.w1, half),
            "b1": (known.b1[None], half),
            "hidden": (np.zeros((BATCH, HIDDEN)), half),
            "w2": (known.w2, half),
            "b2": (known.b2[None], half),
            "scores": (np.zeros((BATCH, CLASSES)), single),
        }
        self._memory = {
            name: lowdnn.from_numpy(array[None].astype(np.float32), handle, kind)
            for name, (array, kind) in arrays.items()
        }
        self._layers = (self._layer("x", "w1", "b1", "hidden"), self._layer("hidden", "w2", "b2", "scores"))
        need = max(layer.graph.get_workspace_size() for layer in self._layers)
        self._workspace = lowdnn.zeros((max(need, 1),), handle, cudnn.data_type.UINT8)

    def scores(self, images: Array) -> Array:
        """(count, CLASSES) of images (count, PIXELS) with at most BATCH of them; waits for the device."""
        padded = np.zeros((1, BATCH, PIXELS), np.float16)
        padded[0, : len(images)] = images
        self._memory["x"].copy_from(padded)
        for layer in self._layers:
            layer.graph.execute(layer.memory, self._workspace)
        return np.asarray(self._memory["scores"].numpy()[0, : len(images)])

    def _layer(self, x: str, w: str, bias: str, y: str) -> Layer:
        single = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(intermediate_data_type=single, compute_data_type=single, handle=self._handle)
        a, b, c = (graph.tensor_like(self._memory[name], name=name) for name in (x, w, bias))
        result = graph.add(graph.matmul(a, b), c)
        if y == "hidden":
            result = graph.relu(result)
        result.set_output(True).set_name(y).set_data_type(self._memory[y].dtype)
        graph.build()
        return Layer(graph, {name: self._memory[name] for name in (x, w, bias, y)})


def _hidden(x: Array, w1: Array, b1: Array) -> Array:
    return np.maximum(x @ w1 + b1, 0)


def _rounded(array: NDArray[np.floating]) -> Array:
    return array.astype(np.float16).astype(np.float32)


if __name__ == "__main__":
    print("\n".join(CASES))

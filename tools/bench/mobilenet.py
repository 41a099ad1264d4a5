"""MobileNetV3-Large as graphs that run one behind the other: each convolution with its bias, activation and residual.

Batch norms are folded into weights and biases, as for inference. Weights are random: times do not depend on them.
Source: Howard et al. 2019, table 1; squeezed channels are a fourth of the expanded ones, rounded to eights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[Any]

CLASSES = 1000
_STEM, _HEAD, _HIDDEN = 16, 960, 1280


@dataclass(frozen=True)
class Block:
    """Expansion to ``expanded`` channels, a depthwise convolution, a squeeze where there is one, a projection.

    activation: ``relu`` or ``hswish``: x · min(max(x + 3, 0), 6) / 6.
    """

    taps: int
    expanded: int
    channels: int
    has_squeeze: bool
    activation: str
    stride: int


BLOCKS = (
    Block(3, 16, 16, False, "relu", 1),
    Block(3, 64, 24, False, "relu", 2),
    Block(3, 72, 24, False, "relu", 1),
    Block(5, 72, 40, True, "relu", 2),
    Block(5, 120, 40, True, "relu", 1),
    Block(5, 120, 40, True, "relu", 1),
    Block(3, 240, 80, False, "hswish", 2),
    Block(3, 200, 80, False, "hswish", 1),
    Block(3, 184, 80, False, "hswish", 1),
    Block(3, 184, 80, False, "hswish", 1),
    Block(3, 480, 112, True, "hswish", 1),
    Block(3, 672, 112, True, "hswish", 1),
    Block(5, 672, 160, True, "hswish", 2),
    Block(5, 960, 160, True, "hswish", 1),
    Block(5, 960, 160, True, "hswish", 1),
)


def squeezed(expanded: int) -> int:
    """A fourth of the channels, rounded to a multiple of 8, and not below nine tenths of it."""
    rounded = max(8, (expanded // 4 + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * expanded / 4 else rounded + 8


@dataclass(frozen=True)
class Layer:
    """A convolution with bias and activation (``none``, ``relu``, ``hswish``, ``hsigmoid``), by names of tensors.

    gate: a tensor that the input is multiplied with before; residual: one that is added last; both may be empty.
    size: the height and width of x.
    """

    name: str
    x: str
    inputs: int
    size: int
    outputs: int
    taps: int
    stride: int
    groups: int
    activation: str
    gate: str = ""
    residual: str = ""

    @property
    def y_size(self) -> int:
        return (self.size - 1) // self.stride + 1

    @property
    def products(self) -> int:
        """Multiplications of the convolution."""
        return self.y_size**2 * self.outputs * self.inputs // self.groups * self.taps**2


@dataclass(frozen=True)
class Pool:
    """The mean of a tensor over its height and width."""

    name: str
    x: str
    channels: int
    size: int


Step = Layer | Pool


def steps(resolution: int = 224) -> list[Step]:
    """The network's steps for images of ``resolution`` x ``resolution``; a step's name is that of its output."""
    found: list[Step] = [Layer("stem", "image", 3, resolution, _STEM, 3, 2, 1, "hswish")]
    x, channels, size = "stem", _STEM, (resolution - 1) // 2 + 1
    for number, block in enumerate(BLOCKS):
        own = _block(number, block, x, channels, size)
        found += own
        x, channels, size = own[-1].name, block.channels, (size - 1) // block.stride + 1
    found.append(Layer("head", x, channels, size, _HEAD, 1, 1, 1, "hswish"))
    found.append(Pool("pooled", "head", _HEAD, size))
    found.append(Layer("hidden", "pooled", _HEAD, 1, _HIDDEN, 1, 1, 1, "hswish"))
    found.append(Layer("scores", "hidden", _HIDDEN, 1, CLASSES, 1, 1, 1, "none"))
    return found


def _block(number: int, block: Block, x: str, channels: int, size: int) -> list[Step]:
    found: list[Step] = []
    wide, act, inner = block.expanded, block.activation, x
    if wide != channels:
        found.append(Layer(f"expand{number}", x, channels, size, wide, 1, 1, 1, act))
        inner = found[-1].name
    found.append(Layer(f"depthwise{number}", inner, wide, size, wide, block.taps, block.stride, wide, act))
    deep, gate = found[-1].name, ""
    size = (size - 1) // block.stride + 1
    if block.has_squeeze:
        few, gate = squeezed(wide), f"gate{number}"
        found.append(Pool(f"squeeze{number}", deep, wide, size))
        found.append(Layer(f"reduce{number}", f"squeeze{number}", wide, 1, few, 1, 1, 1, "relu"))
        found.append(Layer(gate, f"reduce{number}", few, 1, wide, 1, 1, 1, "hsigmoid"))
    residual = x if block.stride == 1 and channels == block.channels else ""
    found.append(Layer(f"project{number}", deep, wide, size, block.channels, 1, 1, 1, "none", gate, residual))
    return found


def weights(resolution: int, seed: int) -> dict[str, Array]:
    """Random weights ``<step>.w`` [k, c / groups, r, s] and biases ``<step>.b`` of each layer, in fp32."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for step in steps(resolution):
        if isinstance(step, Layer):
            shape = (step.outputs, step.inputs // step.groups, step.taps, step.taps)
            scale = np.sqrt(2 / prod(shape[1:]))
            found[f"{step.name}.w"] = (rng.standard_normal(shape) * scale).astype(np.float32)
            found[f"{step.name}.b"] = (rng.standard_normal((1, step.outputs, 1, 1)) * 0.1).astype(np.float32)
    return found


def sequence(handle: lowdnn.Handle, resolution: int, data_type: cudnn.data_type) -> lowdnn.GraphSequence:
    """The network as built graphs; the caller gives ``image``, the weights and ``scores``."""
    found = lowdnn.GraphSequence()
    for step in steps(resolution):
        graph = _pool(handle, step, data_type) if isinstance(step, Pool) else _layer(handle, step, data_type)
        graph.build()
        found.add(graph, _names(step))
    return found


def _names(step: Step) -> Mapping[str, str]:
    """Names in the sequence of a graph's tensors."""
    if isinstance(step, Pool):
        return {"x": step.x, "y": step.name}
    given = {"x": step.x, "w": f"{step.name}.w", "b": f"{step.name}.b", "y": step.name}
    given |= {"gate": step.gate} if step.gate else {}
    return given | ({"residual": step.residual} if step.residual else {})


def _layer(handle: lowdnn.Handle, layer: Layer, data_type: cudnn.data_type) -> cudnn.pygraph:
    graph = _graph(handle, layer.name, data_type)
    outputs, size = layer.outputs, layer.y_size
    x = _tensor(graph, "x", (1, layer.inputs, layer.size, layer.size))
    if layer.gate:
        x = graph.mul(x, _tensor(graph, "gate", (1, layer.inputs, 1, 1))).set_data_type(data_type)
    w = _tensor(graph, "w", (outputs, layer.inputs // layer.groups, layer.taps, layer.taps))
    pad, stride = [layer.taps // 2] * 2, [layer.stride] * 2
    y = graph.add(graph.conv_fprop(x, w, padding=pad, stride=stride), _tensor(graph, "b", (1, outputs, 1, 1)))
    y = _activated(graph, y, layer.activation)
    if layer.residual:
        y = graph.add(y, _tensor(graph, "residual", (1, outputs, size, size)))
    y.set_output(True).set_name("y").set_data_type(data_type)
    return graph


def _activated(graph: cudnn.pygraph, y: Any, activation: str) -> Any:
    if activation == "relu":
        return graph.relu(y)
    if activation == "none":
        return y
    gate = graph.mul(graph.relu(graph.add(y, 3.0), upper_clip=6.0), 1 / 6)
    return gate if activation == "hsigmoid" else graph.mul(y, gate)


def _pool(handle: lowdnn.Handle, pool: Pool, data_type: cudnn.data_type) -> cudnn.pygraph:
    graph = _graph(handle, pool.name, data_type)
    x = _tensor(graph, "x", (1, pool.channels, pool.size, pool.size))
    y = graph.reduction(x, cudnn.reduction_mode.AVG)
    dims = (1, pool.channels, 1, 1)
    y.set_dim(dims).set_stride(lowdnn.channels_last_strides(dims)).set_output(True).set_name("y").set_data_type(
        data_type
    )
    return graph


def _graph(handle: lowdnn.Handle, name: str, data_type: cudnn.data_type) -> cudnn.pygraph:
    single = cudnn.data_type.FLOAT
    return cudnn.pygraph(
        name=name, io_data_type=data_type, intermediate_data_type=single, compute_data_type=single, handle=handle
    )


def _tensor(graph: cudnn.pygraph, name: str, dims: tuple[int, int, int, int]) -> Any:
    return graph.tensor(dims, lowdnn.channels_last_strides(dims), name=name)

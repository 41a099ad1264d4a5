"""A network's training step for timing: its convolutions, each with batch norm and ReLU, forward, backward and update.

Layers are those of a section of `lowdnn/bench/networks.txt`, as often as the network has them. Each has inputs of its
own, random ones, since the time of a step does not depend on what flows from layer to layer. Activations are bf16,
parameters and gradients fp32; the statistics of a batch norm are those of the rank's own images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import numpy as np

from lowdnn.backend import Handle
from lowdnn.bench.networks import networks
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cli.training.layers import Layer, Statistics, Value, batch_norm_relu, new_value
from lowdnn.cli.training.parameters import Parameter, Parameters
from lowdnn.cli.training.session import Parts, Session, dims_of
from lowdnn.cli.training.sgd import Sgd
from lowdnn.distributed.split import Split
from lowdnn.enums import DataType
from lowdnn.ops.tensor import channels_last_strides
from lowdnn.runtime.buffer import DeviceBuffer

T = TypeVar("T")

#: Bytes of random data that fill the activations, again and again.
_RANDOM_BYTES = 1 << 24
_RATE = 1e-6


def layers_of(network: str, batch: int) -> list[ConvolutionCase]:
    """The layers of a network in the table's order, each as often as it occurs, for ``batch`` images."""
    return [replace(layer, n=batch) for layer, count in networks()[network].items() for _ in range(count)]


class _RandomSession(Session):
    """A session whose activations hold random numbers: zeros would need less power, and so less time."""

    def __init__(self, handle: Handle, split: Split) -> None:
        super().__init__(handle, DataType.BFLOAT16, split=split)
        # Sign, a few exponents around 1, and a random fraction.
        draws = np.random.default_rng(0).integers(0, 1 << 16, _RANDOM_BYTES // 2, np.uint16)
        self._random = super().on_device((draws & 0x80FF | 0x3E00).view(np.float16)[None, None], DataType.HALF)

    def part_zeros(self, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> Parts:
        if data_type is not DataType.BFLOAT16:
            return super().part_zeros(dims, data_type)
        return Parts((self._filled(dims),))

    def _filled(self, dims: tuple[int, ...]) -> DeviceBuffer:
        size_bytes, stream = 2 * prod(dims), self.handle.borrowed_stream()
        strides = channels_last_strides(dims)
        made = DeviceBuffer.allocate(
            self.handle.runtime.context, size_bytes, data_type=DataType.BFLOAT16, shape=dims, strides=strides
        )
        self.keep(made)
        for offset in range(0, size_bytes, _RANDOM_BYTES):
            count = min(_RANDOM_BYTES, size_bytes - offset)
            made.view(offset, count).copy_from(self._random.view(0, count), stream)
        return made


@dataclass(frozen=True)
class _Block:
    """A convolution with what follows it."""

    layers: tuple[Layer, Layer]
    parameters: tuple[Parameter, ...]


class TimedNetwork:
    """The network on one rank. ``bytes_of``: the gradient's bytes of each block, in the order of the forward pass."""

    def __init__(self, handle: Handle, split: Split, cases: Sequence[ConvolutionCase], bucket_bytes: int) -> None:
        self.session = session = _RandomSession(handle, split)
        rng = np.random.default_rng(1)
        initial = {}
        for number, case in enumerate(cases):
            shape = (case.k, case.c // case.groups, *_both(case.rs))
            initial[f"conv{number}"] = rng.normal(0, 0.05, shape)
            initial[f"scale{number}"] = np.ones((1, case.k, 1, 1))
            initial[f"bias{number}"] = np.zeros((1, case.k, 1, 1))
        self._parameters = Parameters(session, initial, bucket_bytes)
        self._blocks = [self._block(number, case) for number, case in enumerate(cases)]
        self._sgd = Sgd(session, self._parameters, None)
        self._sgd.set_rate(_RATE)
        self.bytes_of = [
            sum(4 * prod(dims_of(parameter.grad)) for parameter in block.parameters) for block in self._blocks
        ]

    def forward(self) -> None:
        for block in self._blocks:
            for layer in block.layers:
                for step in layer.forward:
                    step()

    def backward(self, number: int) -> None:
        """The backward pass of one block."""
        for layer in reversed(self._blocks[number].layers):
            for step in layer.backward:
                step()

    def ready(self, number: int) -> None:
        """The gradients of a block are on their way, and may be exchanged."""
        for parameter in self._blocks[number].parameters:
            self._parameters.buckets.ready(parameter.name)

    def finish(self) -> None:
        self._parameters.buckets.finish()

    def update(self) -> None:
        self._sgd.update()

    def close(self) -> None:
        self.session.close()

    def _block(self, number: int, case: ConvolutionCase) -> _Block:
        session = self.session
        weight, scale, bias = (self._parameters[f"{name}{number}"] for name in ("conv", "scale", "bias"))
        x = new_value(session, (case.n, case.c, *_both(case.hw)))
        convolved = _convolution(session, number, case, x, weight)
        running = Statistics(*(session.zeros((1, case.k, 1, 1)) for _ in range(2)))
        normalised = batch_norm_relu(session, f"norm{number}", convolved.output, scale, bias, running)
        return _Block((convolved, normalised), (weight, scale, bias))


def _convolution(session: Session, number: int, case: ConvolutionCase, x: Value, weight: Parameter) -> Layer:
    """As ``training.layers.convolution``, with the padding and strides of ``case``."""
    padding, stride = [before for before, _ in _both(case.pad)], [*_both(case.stride)]
    extents = zip(_both(case.hw), padding, _both(case.rs), stride, strict=True)
    y = new_value(
        session, (case.n, case.k, *((size + 2 * pad - taps) // step + 1 for size, pad, taps, step in extents))
    )
    forward = session.graph(f"conv{number} forward")
    made = forward.conv_fprop(forward.read(x.data), forward.read(weight.value), padding=padding, stride=stride)
    forward.write(made, y.data)
    wgrad = session.graph(f"conv{number} weight gradient")
    wgrad.write(
        wgrad.conv_wgrad(wgrad.read(x.data), wgrad.read(y.grad), padding=padding, stride=stride), weight.partial_grad
    )
    backward = [wgrad.built().launch]
    if number:
        dgrad = session.graph(f"conv{number} data gradient")
        dx = dgrad.conv_dgrad(dgrad.read(y.grad), dgrad.read(weight.value), padding=padding, stride=stride)
        dgrad.write(dx, x.grad)
        backward.append(dgrad.built().launch)
    return Layer(y, (forward.built().launch,), tuple(backward))


def _both(values: tuple[T, ...]) -> tuple[T, ...]:
    """The values of both axes of an image, of which a case gives one where they are equal."""
    return values * 2 if len(values) == 1 else values

"""Resampling operations of a pygraph before lowering.

y's dims follow from x's, or from the size asked for; dx's dims must be set, or x given. The index has y's dims and the
narrowest of INT8 and INT32 that holds the places of a window. Strides are channels-last, as cudnn-frontend has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from lowdnn.enums import DataType, NanPropagation, PaddingMode, ResampleMode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import Lowered, Ports
from lowdnn.ops.base import Operation
from lowdnn.ops.resample import Rational, Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import channels_last_strides
from lowdnn.status import BadParamError

#: Places that an INT8 index tells apart.
_INT8_PLACES = 128


class Sampling(ABC):
    """The geometry of the windows; NaN propagates, as in cudnn-frontend."""

    @abstractmethod
    def resample(self, compute_type: DataType, x_dims: tuple[int, ...], y_dims: tuple[int, ...]) -> Resample:
        """The descriptor for an image of ``x_dims``.  y_dims: the outputs' dims; empty if not known yet."""


@dataclass(frozen=True)
class Windows(Sampling):
    """Windows given by size, stride and padding; empty fields take the defaults, a stride of 1 and no padding."""

    mode: ResampleMode
    padding_mode: PaddingMode
    window: tuple[Rational, ...]
    stride: tuple[Rational, ...]
    pre_padding: tuple[Rational, ...]
    post_padding: tuple[Rational, ...]

    def resample(self, compute_type: DataType, x_dims: tuple[int, ...], y_dims: tuple[int, ...]) -> Resample:
        spatial = len(x_dims) - 2
        return Resample(
            spatial,
            self.window,
            self.stride or (1,) * spatial,
            self.pre_padding or (0,) * spatial,
            self.post_padding or (0,) * spatial,
            self.mode,
            compute_type,
            NanPropagation.PROPAGATE_NAN,
            self.padding_mode,
        )


@dataclass(frozen=True)
class Size(Sampling):
    """Windows that give outputs of ``extents``; if these are empty, outputs of the dims that are set."""

    mode: ResampleMode
    extents: tuple[int, ...] = ()

    def resample(self, compute_type: DataType, x_dims: tuple[int, ...], y_dims: tuple[int, ...]) -> Resample:
        extents = self.extents or y_dims[2:]
        return Resample.to_size(self.mode, x_dims[2:], extents, compute_type, NanPropagation.PROPAGATE_NAN)


@dataclass(frozen=True)
class ResampleNode(Ports):
    inputs: tuple[Tensor, ...]
    sampling: Sampling
    output_suffixes: tuple[str, ...]  # Y, and Index where there is one
    input_names: ClassVar[tuple[str, ...]] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        x_dims = tuple(self.inputs[0].get_dim())
        resample = self.sampling.resample(compute_type, x_dims, tuple(outputs[0].get_dim()))
        for output in outputs:
            _fill(output, resample.output_dims(x_dims))
        for index in outputs[1:]:
            if not index.get_data_type():
                places = prod(axis.span for axis in resample.axes(x_dims))
                index.set_data_type(DataType.INT8 if places <= _INT8_PLACES else DataType.INT32)

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        x, y, *index = map(lowered, (*self.inputs, *outputs))
        resample = self.sampling.resample(compute_type, x.dims, y.dims)
        return ResampleForward(resample, x, y, index[0] if index else None)


@dataclass(frozen=True)
class ResampleBackwardNode(Ports):
    """``input_names``: the gradient's name, then those of the optional inputs that are given."""

    inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    sampling: Sampling
    output_suffixes: ClassVar[tuple[str, ...]] = ("DX",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        (dx,) = outputs
        named = dict(zip(self.input_names, self.inputs, strict=True))
        if not dx.get_dim() and "X" not in named:
            raise BadParamError.at(
                f"{dx.label}.dim",
                expected="dims, which the gradient's do not determine",
                got="none",
                hint="set them with set_dim, or give x",
            )
        _fill(dx, tuple(named["X"].get_dim()) if "X" in named else ())

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        named = {name: lowered(tensor) for name, tensor in zip(self.input_names, self.inputs, strict=True)}
        dx, dy = lowered(outputs[0]), named["DY"]
        resample = self.sampling.resample(compute_type, dx.dims, dy.dims)
        return ResampleBackward(resample, dy, dx, index=named.get("Index"), x=named.get("X"))


def _fill(tensor: Tensor, dims: tuple[int, ...]) -> None:
    if not tensor.get_dim():
        tensor.set_dim(dims)
    if not tensor.get_stride():
        tensor.set_stride(channels_last_strides(tuple(tensor.get_dim())))

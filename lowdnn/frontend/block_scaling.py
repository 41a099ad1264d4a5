"""Block-scale quantisation and dequantisation in pygraph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowdnn.enums import DataType, TensorReordering
from lowdnn.frontend.arguments import boolean, integer, integers
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import packed_like, stride_order
from lowdnn.frontend.nodes import Lowered, Ports
from lowdnn.ops import block_scale
from lowdnn.ops.base import Operation
from lowdnn.ops.block_scale_dequantize import BlockScaleDequantize
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError, NotSupportedError

NOT_SET = data_type.NOT_SET


@dataclass(frozen=True)
class BlockScaleQuantizeNode(Ports):
    """axis: None for the last one."""

    inputs: tuple[Tensor, ...]
    block_size: int
    axis: int | None
    is_transposed: bool
    output_suffixes: tuple[str, ...] = ("Y", "scale")
    input_names: tuple[str, ...] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """y: the input's dims, packed in its order of dimensions, the last two exchanged where it is transposed; the
        scales: row-major, in whole tiles where they are set to be in the order F8_128x4."""
        y, scale = outputs
        dims = tuple(self.inputs[0].get_dim())
        axis = len(dims) - 1 if self.axis is None else self.axis
        if not 0 <= axis < len(dims):
            raise BadParamError.at("block_scale_quantize.axis", expected=f"0 to {len(dims) - 1}", got=axis)
        if not y.get_dim():
            y.set_dim(dims)
        if not y.get_stride():
            order = stride_order(self.inputs[0].get_stride(), len(dims))
            y.set_stride(packed_strides(dims, _exchanged(order) if self.is_transposed else order))
        if not scale.get_dim():
            reordering = TensorReordering[scale.get_reordering_type().name]
            scale.set_dim(block_scale.scale_dims(dims, axis, self.block_size, reordering))
        if not scale.get_stride():
            scale.set_stride(packed_strides(tuple(scale.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        x, y, scale = map(lowered, (*self.inputs, *outputs))
        return BlockScaleQuantize(x, y, scale, compute_type, self.block_size)


@dataclass(frozen=True)
class BlockScaleDequantizeNode(Ports):
    inputs: tuple[Tensor, ...]
    block_size: int
    is_negative_scale: bool
    output_suffixes: tuple[str, ...] = ("Y",)
    input_names: tuple[str, ...] = ("X", "SCALE")

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """The input's dims, packed in its order of dimensions."""
        (output,) = outputs
        dims = tuple(self.inputs[0].get_dim())
        if not output.get_dim():
            output.set_dim(dims)
        if not output.get_stride():
            output.set_stride(packed_like(self.inputs[0], dims))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        x, scale, y = map(lowered, (*self.inputs, *outputs))
        return BlockScaleDequantize(x, scale, y, compute_type, self.block_size, self.is_negative_scale)


class BlockScaleMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def block_scale_quantize(
        self,
        input: Tensor,
        block_size: int,
        axis: int | None = None,
        transpose: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
        group_offset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(y, scale): ``input`` with one scale for each ``block_size`` neighbours along ``axis`` (None: the last).

        transpose: y lies with its last two dimensions exchanged in memory.
        """
        if group_offset is not None:
            where, hint = "block_scale_quantize.group_offset", "quantise each group by an operation of its own"
            raise NotSupportedError.at(where, expected="None", got=repr(group_offset), hint=hint)
        node = BlockScaleQuantizeNode(
            (input,),
            integer(block_size, "block_scale_quantize.block_size", 1, 2**31 - 1),
            None if axis is None else integer(axis, "block_scale_quantize.axis"),
            boolean(transpose, "block_scale_quantize.transpose"),
        )
        y, scale = self._add_all(node, compute_data_type, name)
        return y, scale

    @operation
    def block_scale_dequantize(
        self,
        input: Tensor,
        descale: Tensor,
        block_size: Sequence[int],
        is_negative_scale: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """``input`` times its block's scale. block_size: one entry, or one for each axis of which one is not 1."""
        sizes = [size for size in integers(block_size, "block_scale_dequantize.block_size", 1) if size != 1] or [1]
        if len(sizes) > 1:
            raise BadParamError.at(
                "block_scale_dequantize.block_size", expected="one size that is not 1", got=list(block_size)
            )
        node = BlockScaleDequantizeNode(
            (input, descale), sizes[0], boolean(is_negative_scale, "block_scale_dequantize.is_negative_scale")
        )
        return self._add(node, compute_data_type, name)


def _exchanged(order: tuple[int, ...]) -> tuple[int, ...]:
    """``order`` with the last two dimensions in each other's place."""
    last = len(order) - 1
    places = {last: last - 1, last - 1: last} if last else {}
    return tuple(places.get(axis, axis) for axis in order)

"""Methods of pygraph that move elements: reshape, transpose, slice, concatenate."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass

from lowdnn.checks import sequence, shown
from lowdnn.enums import DataType, ReshapeMode
from lowdnn.frontend.arguments import integer, integers
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.enums import backend_reshape, reshape_mode
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.layouts import packed_like
from lowdnn.frontend.nodes import Lowered, Ports
from lowdnn.ops import concat, slice, transpose
from lowdnn.ops.base import Operation
from lowdnn.ops.concat import Concat
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.slice import Slice
from lowdnn.ops.tensor import packed_strides
from lowdnn.ops.transpose import Transpose
from lowdnn.status import AttributeTypeError, BadParamError

NOT_SET = data_type.NOT_SET


@dataclass(frozen=True)
class ReshapeNode(Ports):
    inputs: tuple[Tensor, ...]
    mode: ReshapeMode
    output_suffixes: tuple[str, ...] = ("Y",)
    input_names: tuple[str, ...] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """Strides only, row-major: nothing else says what the dims are."""
        (output,) = outputs
        if not output.get_dim():
            raise BadParamError.at(
                f"{output.label}.dim", expected="dims, which no input determines", got="none", hint="set_dim sets them"
            )
        if not output.get_stride():
            output.set_stride(packed_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return Reshape(lowered(self.inputs[0]), lowered(outputs[0]), self.mode)


@dataclass(frozen=True)
class TransposeNode(Ports):
    inputs: tuple[Tensor, ...]
    permutation: tuple[int, ...]
    keeps_type: bool = False
    output_suffixes: tuple[str, ...] = ("Y",)
    input_names: tuple[str, ...] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """Strides row-major: in those of the input nothing would move. keeps_type: the output has the input's."""
        (output,) = outputs
        if self.keeps_type:
            output.set_data_type(self.inputs[0].get_data_type())
        if not output.get_dim():
            output.set_dim(transpose.output_dims(tuple(self.inputs[0].get_dim()), self.permutation))
        if not output.get_stride():
            output.set_stride(packed_strides(tuple(output.get_dim())))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return Transpose(lowered(self.inputs[0]), lowered(outputs[0]), self.permutation)


@dataclass(frozen=True)
class PagedCacheLoadNode(Ports):
    """inputs: the pages, their table, the lengths."""

    inputs: tuple[Tensor, Tensor, Tensor]
    rows: int
    output_suffixes: tuple[str, ...] = ("Y",)
    input_names: tuple[str, ...] = ("container", "page_table", "seq_len")

    @property
    def dims(self) -> tuple[int, ...]:
        container, table, _ = self.inputs
        return (table.get_dim()[0], container.get_dim()[1], self.rows, container.get_dim()[3])

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """Strides row-major, the type of the pages."""
        (output,) = outputs
        output.set_data_type(self.inputs[0].get_data_type())
        output.set_dim(self.dims).set_stride(packed_strides(self.dims))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        container, table, lengths = map(lowered, self.inputs)
        return PagedCacheLoad(container, lowered(outputs[0]), lengths, table)


@dataclass(frozen=True)
class SliceNode(Ports):
    inputs: tuple[Tensor, ...]
    slices: tuple[builtins.slice, ...]
    output_suffixes: tuple[str, ...] = ("Y",)
    input_names: tuple[str, ...] = ("X",)

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """The input's data type; strides packed, in its order of dimensions."""
        (output,) = outputs
        if not output.get_data_type():
            output.set_data_type(self.inputs[0].get_data_type())
        if not output.get_dim():
            output.set_dim(slice.output_dims(tuple(self.inputs[0].get_dim()), *self._bounds()))
        if not output.get_stride():
            output.set_stride(packed_like(self.inputs[0], output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return Slice(lowered(self.inputs[0]), lowered(outputs[0]), *self._bounds())

    def _bounds(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """start, limit, strides; the axes that no slice was given for are whole."""
        dims = self.inputs[0].get_dim()
        if len(self.slices) > len(dims):
            raise BadParamError.at("slice.slices", expected=f"at most {len(dims)} slices", got=len(self.slices))
        whole = [builtins.slice(None)] * (len(dims) - len(self.slices))
        bounds = [one.indices(extent) for one, extent in zip((*self.slices, *whole), dims, strict=True)]
        start, limit, strides = (tuple(bound[n] for bound in bounds) for n in range(3))
        return start, tuple(max(first, end) for first, end in zip(start, limit, strict=True)), strides


@dataclass(frozen=True)
class ConcatenateNode(Ports):
    inputs: tuple[Tensor, ...]
    axis: int
    in_place_index: int | None
    output_suffixes: tuple[str, ...] = ("Y",)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(f"X_{number}" for number in range(len(self.inputs)))

    def infer(self, outputs: tuple[Tensor, ...], compute_type: DataType) -> None:
        """Strides packed, in the first input's order of dimensions; those of the part in place where there is one."""
        (output,) = outputs
        if not output.get_dim():
            output.set_dim(concat.output_dims([tuple(tensor.get_dim()) for tensor in self.inputs], self.axis))
        if not output.get_stride() and self.in_place_index is not None:
            output.set_stride(self.inputs[self.in_place_index].get_stride())
        if not output.get_stride():
            output.set_stride(packed_like(self.inputs[0], output.get_dim()))

    def lower(self, outputs: tuple[Tensor, ...], compute_type: DataType, lowered: Lowered) -> Operation:
        return Concat(self.axis, tuple(map(lowered, self.inputs)), lowered(outputs[0]), self.in_place_index)


class MoveMethods(GraphBuilder):
    """See the module's docstring. ``compute_data_type`` is there for cudnn-frontend's order: nothing is computed."""

    @operation
    def reshape(
        self,
        input: Tensor,
        name: str = "",
        reshape_mode: reshape_mode = reshape_mode.VIEW_ONLY,
        *,
        compute_data_type: DataTypeLike = NOT_SET,
    ) -> Tensor:
        """``input``'s elements under the dims that are set on the output with ``set_dim``.

        VIEW_ONLY: dims and strides of the output name the memory that those of the input name. LOGICAL: the elements
        in row-major order of their coordinates.
        """
        return self._add(ReshapeNode((input,), backend_reshape(reshape_mode)), data_type.FLOAT, name)

    @operation
    def transpose(
        self, input: Tensor, permutation: Sequence[int], compute_data_type: DataTypeLike = NOT_SET, name: str = ""
    ) -> Tensor:
        """``input`` with its axes in another order: axis a of the output is its axis permutation[a]."""
        node = TransposeNode((input,), integers(permutation, "transpose.permutation"))
        return self._add(node, data_type.FLOAT, name)

    @operation
    def slice(
        self,
        input: Tensor,
        slices: Sequence[builtins.slice] = (),
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """A part of ``input``: slices of its first axes, with Python's meaning of their bounds and positive steps.

        Axes without a slice stay whole.
        """
        parts = sequence(slices, "slice.slices", "slices")
        for part in parts:
            if not isinstance(part, builtins.slice):
                raise AttributeTypeError.at("slice.slices", expected="slices", got=shown(part))
            try:
                part.indices(0)
            except (TypeError, ValueError):
                raise BadParamError.at("slice.slices", expected="integers, a step above 0", got=shown(part)) from None
        return self._add(SliceNode((input,), parts), data_type.FLOAT, name)

    @operation
    def concatenate(
        self,
        inputs: Sequence[Tensor],
        axis: int,
        in_place_index: int | None = None,
        name: str = "",
        *,
        compute_data_type: DataTypeLike = NOT_SET,
    ) -> Tensor:
        """``inputs`` one after the other along ``axis``.

        in_place_index: the input that the caller has in its place in the output already; it is not copied.
        """
        parts = sequence(inputs, "concatenate.inputs", "tensors")
        if not parts:
            raise BadParamError.at("concatenate.inputs", expected="at least one tensor", got="none")
        index = None if in_place_index is None else integer(in_place_index, "concatenate.in_place_index", 0)
        if index is not None and index >= len(parts):
            raise BadParamError.at("concatenate.in_place_index", expected=f"0 to {len(parts) - 1}", got=index)
        node = ConcatenateNode(parts, integer(axis, "concatenate.axis"), index)
        return self._add(node, data_type.FLOAT, name)

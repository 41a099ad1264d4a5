"""Tensors of a pygraph: what is set, what was left out and will be inferred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from lowdnn.enums import DataType, TensorReordering
from lowdnn.frontend.arguments import boolean, integer, integers, member, number, text
from lowdnn.frontend.data_types import DataTypeLike, as_data_type, data_type, to_backend
from lowdnn.frontend.enums import scalar_type as ScalarType
from lowdnn.frontend.enums import tensor_reordering
from lowdnn.frontend.tensor_attributes import TensorAttributes
from lowdnn.ops import tensor as ops
from lowdnn.status import BadParamError, NotSupportedError

#: Alignment in bytes that a pygraph promises of every device address, unless ``set_alignment`` says otherwise.
DEFAULT_ALIGNMENT_BYTES = 16
NOT_SET = data_type.NOT_SET
#: uid of a tensor that has none yet.
NO_UID = -1


class Tensor(TensorAttributes):
    """One tensor of a graph; setters return the tensor, so that they can be chained.

    Dims, strides and data type may be left out where the graph infers them: empty lists and NOT_SET.
    ``dim_assigned``, ``stride_assigned`` and ``uid_assigned`` tell what the caller has set; ``owner()`` is the graph.
    """

    def __init__(
        self,
        name: str = "",
        data_type: DataTypeLike = None,
        dim: Sequence[int] = (),
        stride: Sequence[int] = (),
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        pass_by_value: float | int | None = None,
        uid: int = NO_UID,
        reordering_type: tensor_reordering | None = None,
        ragged_offset: Tensor | None = None,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
        scalar_type: ScalarType | None = None,
        *,
        alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
    ) -> None:
        """pass_by_value: the number of a by-value tensor when execute gives none.
        scalar_type: COMPILE_TIME_CONST fixes that number in the graph.
        alignment_bytes: a divisor of the address, by the caller's promise.
        """
        self._name = text(name, "tensor.name")
        self._uid = NO_UID
        self.uid_assigned = self.dim_assigned = self.stride_assigned = False
        self._is_virtual = self._is_pass_by_value = False
        self._reordering_type = tensor_reordering.NONE
        self._ragged_offset: Tensor | None = None
        self._ragged_offset_multiplier = self._alignment_value = 1
        self._value: float | int | None = None
        self._scalar_type: ScalarType | None = None
        self._alignment_bytes = DEFAULT_ALIGNMENT_BYTES
        self._dim: tuple[int, ...] = ()
        self._stride: tuple[int, ...] = ()
        self._data_type = NOT_SET
        self.owner: Callable[[], object] | None = None
        given: tuple[tuple[Callable[[Any], object], Any, object], ...] = (
            (self.set_is_virtual, is_virtual, False),
            (self.set_is_pass_by_value, is_pass_by_value, False),
            (self.set_reordering_type, reordering_type, None),
            (self.set_ragged_offset, ragged_offset, None),
            (self.set_ragged_offset_multiplier, ragged_offset_multiplier, 1),
            (self.set_alignment, alignment_bytes, DEFAULT_ALIGNMENT_BYTES),
            (self.set_alignment_value, alignment_value, 1),
            (self.set_pass_by_value, pass_by_value, None),
            (self.set_scalar_type, scalar_type, None),
            (self.set_dim, dim, ()),
            (self.set_stride, stride, ()),
            (self.set_uid, uid, NO_UID),
            (self.set_data_type, data_type, None),
        )
        for setter, value, default in given:
            if value is not default:
                setter(value)

    @classmethod
    def of(cls, lowered: ops.Tensor, value: float | int | None) -> Self:
        """The frontend's tensor of the operation graph's ``lowered``, with the number that it is fixed to."""
        return cls(
            dim=lowered.dims,
            stride=lowered.strides,
            data_type=lowered.data_type,
            is_virtual=lowered.is_virtual,
            is_pass_by_value=lowered.is_by_value,
            reordering_type=tensor_reordering[lowered.reordering.name],
            ragged_offset=None if lowered.ragged_offset is None else cls.of(lowered.ragged_offset, None),
            ragged_offset_multiplier=lowered.ragged_offset_multiplier,
            name=lowered.name,
            uid=lowered.uid,
            alignment_bytes=lowered.alignment_bytes,
            pass_by_value=value,
            scalar_type=None if lowered.constant_value is None else ScalarType.COMPILE_TIME_CONST,
        )

    def set_output(self, value: bool) -> Self:
        """An output lies in device memory; a tensor that is none is an edge inside the graph."""
        self._is_virtual = not boolean(value, f"{self.label}.output")
        return self

    def set_data_type(self, data_type: DataTypeLike = None) -> Self:
        self._data_type = as_data_type(data_type, f"{self.label}.data_type")
        return self

    def set_dim(self, dim: Sequence[int]) -> Self:
        self._dim = integers(dim, f"{self.label}.dim")
        self.dim_assigned = bool(self._dim)
        return self

    def set_stride(self, stride: Sequence[int]) -> Self:
        """Strides in elements, one for each dimension."""
        self._stride = integers(stride, f"{self.label}.stride")
        self.stride_assigned = bool(self._stride)
        return self

    def set_name(self, name: str) -> Self:
        self._name = text(name, f"{self.label}.name")
        return self

    def set_uid(self, uid: int) -> Self:
        self._uid = integer(uid, f"{self.label}.uid", NO_UID)
        self.uid_assigned = self._uid != NO_UID
        return self

    def take_uid(self, uid: int) -> Self:
        """Gives the tensor a uid of the graph's choice."""
        self._uid = uid
        return self

    def set_is_virtual(self, value: bool) -> Self:
        self._is_virtual = boolean(value, f"{self.label}.is_virtual")
        return self

    def set_is_pass_by_value(self, value: bool) -> Self:
        self._is_pass_by_value = boolean(value, f"{self.label}.is_pass_by_value")
        return self

    def set_pass_by_value(self, value: float | int | None) -> Self:
        """The number of a by-value tensor for which execute gives none."""
        self._value = None if value is None else number(value, f"{self.label}.pass_by_value")
        return self

    def set_scalar_type(self, scalar_type: ScalarType | None) -> Self:
        """Whether the number is fixed in the graph, or one that execute may replace."""
        where = f"{self.label}.scalar_type"
        self._scalar_type = None if scalar_type is None else member(ScalarType, scalar_type, where)
        return self

    def set_reordering_type(self, reordering_type: tensor_reordering) -> Self:
        self._reordering_type = member(tensor_reordering, reordering_type, f"{self.label}.reordering_type")
        return self

    def set_alignment(self, alignment_bytes: int) -> Self:
        """Sets the alignment that the caller promises of the address: a power of two, at least the element size."""
        self._alignment_bytes = integer(alignment_bytes, f"{self.label}.alignment")
        return self

    def set_alignment_value(self, value: int) -> Self:
        """Sets a divisor of all elements, such as the offsets of a grouped matmul; no engine needs it."""
        self._alignment_value = integer(value, f"{self.label}.alignment_value", 1)
        return self

    def set_vector_count_and_dimension(self, count: int, dimension: int) -> Self:
        """Raises NotSupportedError for a count other than 1: vectorised layouts do not exist here."""
        if integer(count, f"{self.label}.vector_count") != 1:
            raise NotSupportedError.at(
                f"{self.label}.vector_count",
                expected="1",
                got=count,
                hint=f"use strides for the dimension, {dimension}",
            )
        return self

    def set_ragged_offset(self, ragged_offset: Tensor | None) -> Self:
        """Where each batch begins, in elements: (B + 1, 1, 1, 1) in INT32 or INT64, for dims (B, H, S, D).

        Batch b has the rows from offset b to offset b + 1, at most S; the first stride does not count.
        """
        if not isinstance(ragged_offset, Tensor | None):
            got = type(ragged_offset).__name__
            raise BadParamError.at(f"{self.label}.ragged_offset", expected="a tensor or None", got=got)
        self._ragged_offset = ragged_offset
        return self

    def set_ragged_offset_multiplier(self, multiplier: int) -> Self:
        """Elements that an offset counts."""
        self._ragged_offset_multiplier = integer(multiplier, f"{self.label}.ragged_offset_multiplier", 1)
        return self

    def get_dim(self) -> list[int]:
        return list(self._dim)

    def get_stride(self) -> list[int]:
        return list(self._stride)

    def get_data_type(self) -> data_type:
        return self._data_type

    def get_name(self) -> str:
        return self._name

    def get_uid(self) -> int:
        return self._uid

    def get_is_virtual(self) -> bool:
        return self._is_virtual

    def get_is_pass_by_value(self) -> bool:
        return self._is_pass_by_value

    def get_reordering_type(self) -> tensor_reordering:
        return self._reordering_type

    def get_alignment(self) -> int:
        return self._alignment_bytes

    def get_vector_count(self) -> int:
        return 1

    def get_vector_dimension(self) -> int:
        return -1

    def get_ragged_offset(self) -> Tensor | None:
        return self._ragged_offset

    def get_ragged_offset_multiplier(self) -> int:
        return self._ragged_offset_multiplier

    def get_alignment_value(self) -> int:
        return self._alignment_value

    def get_pass_by_value(self) -> float | int | None:
        return self._value

    def get_scalar_type(self) -> ScalarType | None:
        return self._scalar_type

    def get_has_compile_time_constant(self) -> bool:
        return self.is_constant

    @property
    def is_constant(self) -> bool:
        """True where the tensor's number is fixed in the graph."""
        return self._scalar_type is ScalarType.COMPILE_TIME_CONST

    @property
    def label(self) -> str:
        """How messages name the tensor."""
        if self._name:
            return f"tensor {self._name!r}"
        return "tensor without a name" if self._uid == NO_UID else f"tensor uid {self._uid}"

    @property
    def state(self) -> tuple[object, ...]:
        """Everything that setters change, by which a graph notices that it must be checked again."""
        return tuple(vars(self).values())

    def validate(self) -> None:
        """Raises BadParamError, naming the tensor and the rule, for what no graph takes; a data type may be missing."""
        self._with_type(to_backend(self._data_type, f"{self.label}.data_type") if self._data_type else DataType.INT8)

    def lowered(self) -> ops.Tensor:
        """The operation graph's tensor; dims, strides, data type and uid must be there by now.

        Raises BadParamError and UnsupportedDataTypeError, naming the tensor and what is missing.
        """
        return self._with_type(to_backend(self._data_type, f"{self.label}.data_type"))

    def _with_type(self, backend_type: DataType) -> ops.Tensor:
        self._check()
        offset = self._ragged_offset
        return ops.Tensor(
            uid=self._uid,
            data_type=backend_type,
            dims=self._dim,
            strides=self._stride,
            alignment_bytes=self._alignment_bytes,
            is_virtual=self._is_virtual,
            is_by_value=self._is_pass_by_value,
            reordering=TensorReordering[self._reordering_type.name],
            ragged_offset=None if offset is None else offset.lowered(),
            ragged_offset_multiplier=self._ragged_offset_multiplier,
            constant_value=self._value if self.is_constant else None,
            name=self._name,
        )

    def _check(self) -> None:
        """The rules that the operation graph's tensor has not."""
        for field, value in (("dim", self._dim), ("stride", self._stride)):
            if not value:
                raise BadParamError.at(f"{self.label}.{field}", expected="one entry for each dimension", got="none")
        offset = self._ragged_offset
        if offset is not None and offset.get_ragged_offset() is not None:
            where, got = f"{self.label}.ragged_offset", f"{offset.label}, which is ragged itself"
            raise BadParamError.at(where, expected="a tensor without ragged offsets", got=got)
        if self._value is not None and not self._is_pass_by_value and not self.is_constant:
            raise BadParamError.at(f"{self.label}.is_pass_by_value", expected="True of a number", got=False)

    def __repr__(self) -> str:
        return (
            f"<{self.label}: dim {list(self._dim)}, stride {list(self._stride)}, {self._data_type.name}"
            f"{', virtual' if self._is_virtual else ''}>"
        )


def inferred(tensors: Sequence[Tensor], infer: Callable[[], object]) -> None:
    """Calls ``infer``; the dims and strides that it sets do not count as set by the caller."""
    assigned = [(tensor.dim_assigned, tensor.stride_assigned) for tensor in tensors]
    infer()
    for tensor, (has_dim, has_stride) in zip(tensors, assigned, strict=True):
        tensor.dim_assigned, tensor.stride_assigned = has_dim, has_stride

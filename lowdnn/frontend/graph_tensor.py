"""Tensors of a pygraph: what is set, what was left out and will be inferred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from lowdnn.enums import TensorReordering
from lowdnn.frontend.arguments import boolean, integer, integers, member, text
from lowdnn.frontend.data_types import DataTypeLike, as_data_type, data_type, to_backend
from lowdnn.frontend.enums import tensor_reordering
from lowdnn.ops import tensor as ops
from lowdnn.status import BadParamError, NotSupportedError

#: Alignment in bytes that a pygraph promises of every device address, unless ``set_alignment`` says otherwise.
DEFAULT_ALIGNMENT_BYTES = 16
#: uid of a tensor that has none yet.
NO_UID = -1


class Tensor:
    """One tensor of a graph; setters return the tensor, so that they can be chained.

    Dims, strides and data type may be left out where the graph infers them: empty lists and NOT_SET.
    """

    def __init__(
        self,
        *,
        dim: Sequence[int] = (),
        stride: Sequence[int] = (),
        data_type: DataTypeLike = data_type.NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        reordering_type: tensor_reordering = tensor_reordering.NONE,
        name: str = "",
        uid: int = NO_UID,
        alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
        value: float | int | None = None,
        is_constant: bool = False,
    ) -> None:
        """``value``: that of a by-value tensor when execute gives none; ``is_constant`` fixes it in the graph."""
        self._name = text(name, "tensor.name")
        self._dim: tuple[int, ...] = ()
        self._stride: tuple[int, ...] = ()
        self._uid = NO_UID
        self.set_is_virtual(is_virtual)
        self.set_is_pass_by_value(is_pass_by_value)
        self.set_reordering_type(reordering_type)
        self.set_alignment(alignment_bytes)
        self.ragged_offset: Tensor | None = None
        self._ragged_offset_multiplier = 1
        self.value = value
        self.is_constant = is_constant
        self.set_dim(dim)
        self.set_stride(stride)
        self.set_uid(uid)
        self._data_type = as_data_type(data_type, f"{self.label}.data_type")

    @classmethod
    def of(cls, lowered: ops.Tensor, value: float | int | None) -> Self:
        """The frontend's tensor of the operation graph's ``lowered``, with the number that it is fixed to."""
        made = cls(
            dim=lowered.dims,
            stride=lowered.strides,
            data_type=lowered.data_type,
            is_virtual=lowered.is_virtual,
            is_pass_by_value=lowered.is_by_value,
            reordering_type=tensor_reordering[lowered.reordering.name],
            name=lowered.name,
            uid=lowered.uid,
            alignment_bytes=lowered.alignment_bytes,
            value=value,
            is_constant=lowered.constant_value is not None,
        )
        if lowered.ragged_offset is not None:
            made.set_ragged_offset(cls.of(lowered.ragged_offset, None))
        return made.set_ragged_offset_multiplier(lowered.ragged_offset_multiplier)

    def set_output(self, is_output: bool) -> Self:
        """An output lies in device memory; a tensor that is none is an edge inside the graph."""
        self._is_virtual = not boolean(is_output, f"{self.label}.output")
        return self

    def set_data_type(self, data_type: DataTypeLike) -> Self:
        self._data_type = as_data_type(data_type, f"{self.label}.data_type")
        return self

    def set_dim(self, dim: Sequence[int]) -> Self:
        self._dim = integers(dim, f"{self.label}.dim")
        return self

    def set_stride(self, stride: Sequence[int]) -> Self:
        """Strides in elements, one for each dimension."""
        self._stride = integers(stride, f"{self.label}.stride")
        return self

    def set_name(self, name: str) -> Self:
        self._name = text(name, f"{self.label}.name")
        return self

    def set_uid(self, uid: int) -> Self:
        self._uid = integer(uid, f"{self.label}.uid", NO_UID)
        return self

    def set_is_virtual(self, is_virtual: bool) -> Self:
        self._is_virtual = boolean(is_virtual, f"{self.label}.is_virtual")
        return self

    def set_is_pass_by_value(self, is_pass_by_value: bool) -> Self:
        self._is_pass_by_value = boolean(is_pass_by_value, f"{self.label}.is_pass_by_value")
        return self

    def set_reordering_type(self, reordering_type: tensor_reordering) -> Self:
        self._reordering_type = member(tensor_reordering, reordering_type, f"{self.label}.reordering_type")
        return self

    def set_alignment(self, alignment_bytes: int) -> Self:
        """What the caller promises of the address: a power of two, at least the element size."""
        self._alignment_bytes = integer(alignment_bytes, f"{self.label}.alignment")
        return self

    def set_vector_count_and_dimension(self, count: int, dimension: int) -> Self:
        """Raises NotSupportedError for a count other than 1: vectorised layouts do not exist here."""
        if integer(count, f"{self.label}.vector_count") != 1:
            raise NotSupportedError.at(
                f"{self.label}.vector_count", expected="1", got=count, hint=f"use strides for dimension {dimension}"
            )
        return self

    def set_ragged_offset(self, ragged_offset: Tensor | None) -> Self:
        """Where each batch begins, in elements: (B + 1, 1, 1, 1) in INT32 or INT64, for dims (B, H, S, D).

        Batch b has the rows from offset b to offset b + 1, at most S; the first stride does not count.
        """
        if not isinstance(ragged_offset, Tensor | None):
            got = type(ragged_offset).__name__
            raise BadParamError.at(f"{self.label}.ragged_offset", expected="a tensor or None", got=got)
        self.ragged_offset = ragged_offset
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

    def get_ragged_offset_multiplier(self) -> int:
        return self._ragged_offset_multiplier

    def get_has_compile_time_constant(self) -> bool:
        return self.is_constant

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

    def lowered(self) -> ops.Tensor:
        """The operation graph's tensor; dims, strides, data type and uid must be there by now.

        Raises BadParamError and UnsupportedDataTypeError, naming the tensor and what is missing.
        """
        for field, value in (("dim", self._dim), ("stride", self._stride)):
            if not value:
                raise BadParamError.at(f"{self.label}.{field}", expected="one entry for each dimension", got="none")
        if self.ragged_offset is not None and self.ragged_offset.ragged_offset is not None:
            where, got = f"{self.label}.ragged_offset", f"{self.ragged_offset.label}, which is ragged itself"
            raise BadParamError.at(where, expected="a tensor without ragged offsets", got=got)
        if self.value is not None and not self._is_pass_by_value and not self.is_constant:
            raise BadParamError.at(f"{self.label}.is_pass_by_value", expected="True of a number", got=False)
        backend_type = to_backend(self._data_type, f"{self.label}.data_type")
        return ops.Tensor(
            uid=self._uid,
            data_type=backend_type,
            dims=self._dim,
            strides=self._stride,
            alignment_bytes=self._alignment_bytes,
            is_virtual=self._is_virtual,
            is_by_value=self._is_pass_by_value,
            reordering=TensorReordering[self._reordering_type.name],
            ragged_offset=None if self.ragged_offset is None else self.ragged_offset.lowered(),
            ragged_offset_multiplier=self._ragged_offset_multiplier,
            constant_value=self.value if self.is_constant else None,
            name=self._name,
        )

    def __repr__(self) -> str:
        return (
            f"<{self.label}: dim {list(self._dim)}, stride {list(self._stride)}, {self._data_type.name}"
            f"{', virtual' if self._is_virtual else ''}>"
        )

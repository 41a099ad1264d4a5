"""Descriptors that are valid and that no engine computes.

Such an attribute or data type is set, checked, finalized and read back like any other. The finalized descriptor is an
``Uncomputed``, as is every operation that it is nested in. A plan of a graph with one is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar

from lowdnn import dtypes
from lowdnn.backend.values import HostAddress, ReadAddress
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, SignalMode, TensorReordering
from lowdnn.ops import catalog
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import Attribute, attribute, attributes_of, tensor_input, tensor_output
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError, UnsupportedDataTypeError

N, T, D = AttributeName, AttributeType, DescriptorType

#: For each data type that no engine computes, one that stands in for it: of the same size, or of 1 byte for types of 4
#: bits.
_STAND_INS: Mapping[DataType, DataType] = {
    DataType.FP4_E2M1: DataType.UINT8,
    DataType.INT4: DataType.INT8,
    DataType.UINT4: DataType.UINT8,
    DataType.UINT32: DataType.INT32,
    DataType.COMPLEX_FP32: DataType.INT64,
    DataType.COMPLEX_FP64: DataType.DOUBLE,
    DataType.BYTE_BOOLEAN: DataType.UINT8,
    DataType.FP8_E5M3: DataType.UINT8,
}
#: Data types that tensors may be described in and no engine computes.
UNCOMPUTED_TYPES = tuple(_STAND_INS)
#: Vector counts of INT8 tensors that may be described and no engine computes.
UNCOMPUTED_VECTOR_COUNTS = (4, 32)
#: Orders of a tensor's elements that may be described and no engine computes.
UNCOMPUTED_REORDERINGS = (TensorReordering.INT8x32, TensorReordering.F16x16)


@dataclass(frozen=True)
class Signal:
    """Sets a flag in device memory to ``value``, or waits until it has this value. y equals x; it orders the signal
    between operations."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_SIGNAL

    mode: SignalMode = attribute(AttributeName.OPERATION_SIGNAL_MODE, AttributeType.SIGNAL_MODE)
    flag: Tensor = tensor_input(AttributeName.OPERATION_SIGNAL_FLAGDESC)
    value: int = attribute(AttributeName.OPERATION_SIGNAL_VALUE, AttributeType.INT64)
    x: Tensor = tensor_input(AttributeName.OPERATION_SIGNAL_XDESC)
    y: Tensor | None = tensor_output(AttributeName.OPERATION_SIGNAL_YDESC, default=None)


@dataclass(frozen=True)
class Uncomputed:
    """A finalized descriptor that no engine computes.

    given: the values that were set, by attribute.  error: why plans with it are refused.
    """

    declaration: type
    given: Mapping[AttributeName, Any]
    error: LowdnnError

    @property
    def data_type(self) -> DataType:
        """The data type that was set; only a descriptor of a tensor has one."""
        kind: DataType = self.given[N.TENSOR_DATA_TYPE]
        return kind

    @property
    def descriptor_type(self) -> DescriptorType:
        kind: DescriptorType = self.declaration.descriptor_type  # type: ignore[attr-defined]
        return kind

    def value_of(self, declared: Attribute) -> Any:
        """The value that was set, otherwise the declaration's default; None where there is neither."""
        if declared.name is not None and declared.name in self.given:
            return self.given[declared.name]
        default = {item.name: item.default for item in fields(self.declaration)}.get(declared.field)
        return None if default is MISSING else default


def uncomputed_attributes(descriptor_type: DescriptorType) -> Mapping[AttributeName, Attribute]:
    """The attributes of a descriptor type that may be set and no engine computes."""
    listed = UNCOMPUTED_ATTRIBUTES.get(descriptor_type, ())
    return {declared.name: declared for declared, _ in listed if declared.name is not None}


def finalized(declaration: type, given: Mapping[AttributeName, Any]) -> Any:
    """The instance of ``declaration`` with the values of ``given``, or of its form for them, or an ``Uncomputed``.

    An ``Uncomputed`` is checked too, but for the values that no engine knows and attributes that depend on them.
    """
    declared = attributes_of(declaration)
    if not _is_part_of_graphs(declaration):
        return declaration(**{declared[name].field: value for name, value in given.items()})
    form = form_for(declaration, given)
    if form is not declaration:
        declaration, declared = form, _checked_form(form, given)
    error = next(_errors(declaration, given), None)
    known = {declared[name].field: _plain_value(name, value) for name, value in given.items() if name in declared}
    if isinstance(known.get("constant_value"), HostAddress) and known["data_type"] not in _STAND_INS:
        where = "TENSOR descriptor.TENSOR_CONSTANT_VALUE"
        known["constant_value"] = ReadAddress.of(where, known["constant_value"], known["data_type"]).number
    if error is None:
        return declaration(**known)
    if declaration is Tensor:
        _check_tensor(known)
    elif first_error(_flat(known.values())) is None:
        declaration(**known)
    return Uncomputed(declaration, given, error)


def form_for(declaration: type, given: Mapping[AttributeName, Any]) -> type:
    """The class that a descriptor of ``declaration`` with these values becomes."""
    return next((form for form in catalog.forms(declaration) if form.fits(given)), declaration)  # type: ignore[attr-defined]


def check_required(declaration: type, given: Mapping[AttributeName, Any]) -> None:
    """Raises BadParamError for required attributes of ``declaration`` that are not given."""
    kind: DescriptorType = declaration.descriptor_type  # type: ignore[attr-defined]
    missing = [name.name for name, item in attributes_of(declaration).items() if item.required and name not in given]
    if missing:
        got = "none for " + ", ".join(missing)
        raise BadParamError.at(f"{kind.name} descriptor", expected="every required attribute", got=got)


def _checked_form(form: type, given: Mapping[AttributeName, Any]) -> Mapping[AttributeName, Attribute]:
    """The form's attributes; raises BadParamError for one that is missing, and for one that the form does not have."""
    declared = attributes_of(form)
    check_required(form, given)
    kind: DescriptorType = form.descriptor_type  # type: ignore[attr-defined]
    extra = next((name for name in given if name not in declared and name not in uncomputed_attributes(kind)), None)
    if extra is not None:
        where = f"{kind.name} descriptor.{extra.name}"
        raise BadParamError.at(where, expected=f"none for {form.__name__}", got="one that is set")
    return declared


@cache
def _is_part_of_graphs(declaration: type) -> bool:
    return declaration in (*catalog.declared(), Signal)


def first_error(values: Iterable[Any]) -> LowdnnError | None:
    """The error of the first of ``values`` (operations or graphs) that no engine computes."""
    errors: Iterator[LowdnnError | None] = (getattr(value, "error", None) for value in values)
    return next((error for error in errors if error is not None), None)


def _plain_value(name: AttributeName, value: Any) -> Any:
    """``value`` with the numbers that were read in the place of their addresses.

    Channel statistics are computed in FLOAT, or DOUBLE, whatever is asked for: cudnn-frontend puts the type of x there,
    by the number that it has in an enum of its own (INT8's for HALF), and cuDNN computes in FLOAT.
    """
    if name is N.OPERATION_GENSTATS_MATH_PREC:
        return value if value is DataType.DOUBLE else DataType.FLOAT
    if isinstance(value, tuple) and value and isinstance(value[0], ReadAddress):
        return tuple(address.number for address in value)
    return value


def _errors(declaration: type, given: Mapping[AttributeName, Any]) -> Iterator[LowdnnError]:
    """Why no engine computes this, if so."""
    nested = first_error(_flat(given.values()))
    if nested is not None:
        yield nested
    kind: DescriptorType = declaration.descriptor_type  # type: ignore[attr-defined]
    if declaration is Signal:
        yield NotSupportedError.at(
            f"{kind.name} descriptor", expected="an operation of one device", got="a signal to other work"
        )
    reasons = {declared.name: reason for declared, reason in UNCOMPUTED_ATTRIBUTES.get(kind, ())}
    for name, value in given.items():
        if name in reasons and value != ():
            where, reason = f"{kind.name} descriptor.{name.name}", reasons[name]
            yield NotSupportedError.at(where, expected="none", got="one that is set", hint=reason)
    if declaration is Tensor:
        yield from _tensor_errors(given)


def _tensor_errors(given: Mapping[AttributeName, Any]) -> Iterator[LowdnnError]:
    where = f"tensor uid {given[N.TENSOR_UNIQUE_ID]}"
    data_type = given[N.TENSOR_DATA_TYPE]
    if data_type in _STAND_INS:
        expected = "one of " + ", ".join(known.name for known in dtypes.supported())
        yield UnsupportedDataTypeError.at(f"{where}.data_type", expected=expected, got=data_type.name)
    count = given.get(N.TENSOR_VECTOR_COUNT, 1)
    if count in UNCOMPUTED_VECTOR_COUNTS and data_type in (DataType.INT8, DataType.UINT8):
        hint = "use NHWC strides instead"
        yield UnsupportedDataTypeError.at(f"{where}.vector_count", expected=1, got=count, hint=hint)
    reordering = given.get(N.TENSOR_REORDERING_MODE, TensorReordering.NONE)
    if reordering in UNCOMPUTED_REORDERINGS:
        yield NotSupportedError.at(f"{where}.reordering", expected="NONE or F8_128x4", got=reordering.name)


def _check_tensor(known: Mapping[str, Any]) -> None:
    """Checks dims, strides, alignment and placement, on a tensor in which stand-ins replace the values that no engine
    knows."""
    count, rank = known.get("vector_count", 1), len(known["dims"])
    axis = known.get("vectorized_dimension", -1)
    if count in UNCOMPUTED_VECTOR_COUNTS and not 0 <= axis < rank:
        where = f"tensor uid {known['uid']}.vectorized_dimension"
        raise BadParamError.at(where, expected=f"0 to {rank - 1} with a vector count", got=axis)
    changes: dict[str, Any] = {
        "data_type": _STAND_INS.get(known["data_type"], known["data_type"]),
        "vector_count": 1 if count in UNCOMPUTED_VECTOR_COUNTS else count,
    }
    if known.get("reordering") in UNCOMPUTED_REORDERINGS:
        changes["reordering"] = TensorReordering.NONE
    Tensor(**{**known, **changes})


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, tuple) else (value,)


def _tensor(name: AttributeName, *others: AttributeType) -> Attribute:
    return Attribute(name, (T.BACKEND_DESCRIPTOR, *others), 1, (D.TENSOR,), required=False)


_NO_GROUPS = "reduce each group by an operation of its own"

#: By descriptor type: the attributes, each with what to do instead.
UNCOMPUTED_ATTRIBUTES: Mapping[DescriptorType, tuple[tuple[Attribute, str], ...]] = {
    D.OPERATION_REDUCTION: ((_tensor(N.OPERATION_REDUCTION_GROUP_OFFSET_DESC), _NO_GROUPS),),
    D.OPERATION_EXPAND_BAND_MATRIX: (
        (_tensor(N.OPERATION_EXPAND_BAND_MATRIX_KV_TOKEN_OFFSET_DESC), "slice y from the first token on"),
        (_tensor(N.OPERATION_EXPAND_BAND_MATRIX_SPECULATIVE_MASK_DESC), "select by the mask behind the operation"),
    ),
    D.OPERATION_CONTRACT_BAND_MATRIX: (
        (_tensor(N.OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE, T.INT64), "slice x to the tokens that there are"),
    ),
}

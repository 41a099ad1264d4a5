"""Attribute declarations: how a dataclass field says which backend attribute it is.

One dataclass declares one descriptor. Each field made with ``attribute`` carries the attribute's name and number, its
type, how many elements it may have and whether it must be set; the backend's generic descriptor code, the frontend,
the JSON form and the documentation all read this one declaration:

    @dataclass(frozen=True)
    class Matmul:
        descriptor_type: ClassVar[DescriptorType] = DescriptorType.MATMUL
        compute_type: DataType = attribute(AttributeName.MATMUL_COMP_TYPE, AttributeType.DATA_TYPE)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final

from lowdnn.codec import LEFT_OUT
from lowdnn.enums import (
    AttributeName,
    AttributeType,
    BehaviorNote,
    BnFinalizeStatsMode,
    ConvolutionMode,
    CudaGraphRetention,
    DataType,
    DescriptorType,
    GenStatsMode,
    HeurMode,
    KnobType,
    LayoutType,
    MoeGroupedMatmulMode,
    NanPropagation,
    NormFwdPhase,
    NormMode,
    NumericalNote,
    OperationGraphMode,
    PaddingMode,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
    ReshapeMode,
    RngDistribution,
    SignalMode,
    TensorReordering,
)

_KEY: Final = "lowdnn.attribute"

#: The most tensors that one attribute of an operation holds.
MAX_TENSORS: Final = 2**31 - 1

#: The Python type of one element of each attribute type that lowdnn reads or writes.
ELEMENT_TYPES: Mapping[AttributeType, type] = {
    AttributeType.DATA_TYPE: DataType,
    AttributeType.BOOLEAN: bool,
    AttributeType.INT64: int,
    AttributeType.INT32: int,
    AttributeType.FLOAT: float,
    AttributeType.DOUBLE: float,
    AttributeType.VOID_PTR: int,
    AttributeType.CHAR: str,
    AttributeType.CONVOLUTION_MODE: ConvolutionMode,
    AttributeType.HEUR_MODE: HeurMode,
    AttributeType.KNOB_TYPE: KnobType,
    AttributeType.NUMERICAL_NOTE: NumericalNote,
    AttributeType.BEHAVIOR_NOTE: BehaviorNote,
    AttributeType.LAYOUT_TYPE: LayoutType,
    AttributeType.POINTWISE_MODE: PointwiseMode,
    AttributeType.GENSTATS_MODE: GenStatsMode,
    AttributeType.REDUCTION_OPERATOR_TYPE: ReduceTensorOp,
    AttributeType.TENSOR_REORDERING_MODE: TensorReordering,
    AttributeType.RESAMPLE_MODE: ResampleMode,
    AttributeType.PADDING_MODE: PaddingMode,
    AttributeType.NAN_PROPOGATION: NanPropagation,
    AttributeType.FRACTION: Fraction,
    AttributeType.BN_FINALIZE_STATS_MODE: BnFinalizeStatsMode,
    AttributeType.NORM_MODE: NormMode,
    AttributeType.NORM_FWD_PHASE: NormFwdPhase,
    AttributeType.MOE_GROUPED_MATMUL_MODE: MoeGroupedMatmulMode,
    AttributeType.RNG_DISTRIBUTION: RngDistribution,
    AttributeType.RESHAPE_MODE: ReshapeMode,
    AttributeType.SIGNAL_MODE: SignalMode,
    AttributeType.ATTRIB_NAME: AttributeName,
    AttributeType.OPERATIONGRAPH_MODE: OperationGraphMode,
    AttributeType.CUDA_GRAPH_RETENTION: CudaGraphRetention,
}


@dataclass(frozen=True)
class Attribute:
    """One attribute of one descriptor, or of an operation that no descriptor stands for, where it has no name.

    types: the accepted attribute types, the first being the one that a get returns.
    max_count: the most elements (1: a scalar, more: an array, given to the dataclass as a tuple).
    descriptors: for BACKEND_DESCRIPTOR, the descriptor types that an element may have.
    role: ``"input"`` or ``"output"`` where the attribute is a tensor of an operation, ``"inner"`` where it is
    operations inside of it, otherwise ``""``.
    field: the name of the dataclass field.  required: whether finalize needs it.
    pointee: where VOID_PTR stands for addresses of numbers that are read when they are set, the attribute that holds
    the tensors of which these numbers are.
    """

    name: AttributeName | None
    types: tuple[AttributeType, ...]
    max_count: int = 1
    descriptors: tuple[DescriptorType, ...] = ()
    role: str = ""
    field: str = ""
    required: bool = True
    pointee: AttributeName | None = None


def attribute(
    name: AttributeName,
    *types: AttributeType,
    max_count: int = 1,
    descriptor: DescriptorType | None = None,
    pointee: AttributeName | None = None,
    default: Any = MISSING,
) -> Any:
    """A dataclass field that is a backend attribute; without a default it is required."""
    declared = Attribute(name, types, max_count, () if descriptor is None else (descriptor,), pointee=pointee)
    return field(default=default, metadata={_KEY: declared})


def tensor_input(name: AttributeName | None = None, *, or_number: bool = False, default: Any = MISSING) -> Any:
    """A field that holds an input tensor of an operation; ``or_number``: an integer may stand in its place."""
    return _tensor(name, "input", default, (AttributeType.INT64,) if or_number else ())


def tensor_inputs(name: AttributeName | None = None, *, is_optional: bool = False) -> Any:
    """A field that holds one or more input tensors of an operation, as a tuple; or none, if ``is_optional``, and then
    documents leave it out."""
    return _tensor(name, "input", () if is_optional else MISSING, max_count=MAX_TENSORS)


def tensor_output(name: AttributeName | None = None, *, default: Any = MISSING) -> Any:
    """A field that holds an output tensor of an operation."""
    return _tensor(name, "output", default)


def tensor_outputs(name: AttributeName | None = None) -> Any:
    """A field that holds one or more output tensors of an operation, as a tuple."""
    return _tensor(name, "output", MISSING, max_count=MAX_TENSORS)


def inner_operations(name: AttributeName, *, default: Any = MISSING) -> Any:
    """A field that holds operations inside of another one."""
    declared = Attribute(name, (AttributeType.BACKEND_DESCRIPTOR,), 1, (DescriptorType.OPERATIONGRAPH,), "inner")
    return field(default=default, metadata={_KEY: declared})


def _tensor(
    name: AttributeName | None, role: str, default: Any, others: tuple[AttributeType, ...] = (), max_count: int = 1
) -> Any:
    types = (AttributeType.BACKEND_DESCRIPTOR, *others)
    declared = Attribute(name, types, max_count, (DescriptorType.TENSOR,), role)
    return field(default=default, metadata={_KEY: declared, LEFT_OUT: default == ()})


@cache
def attributes_of(cls: type) -> Mapping[AttributeName, Attribute]:
    """The attributes of the descriptor that a dataclass declares, in field order."""
    return {declared.name: declared for declared in declared_in(cls) if declared.name is not None}


@cache
def declared_in(cls: type) -> tuple[Attribute, ...]:
    """The attributes that the fields of a dataclass declare, in their order, including those without a name."""
    return tuple(
        replace(item.metadata[_KEY], field=item.name, required=item.default is MISSING)
        for item in fields(cls)
        if _KEY in item.metadata
    )

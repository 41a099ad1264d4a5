"""The descriptors of a graph and of the device to plan for: OPERATIONGRAPH and DEVICEPROP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec, spec_from_outside
from lowdnn.backend.handle import Handle, arch_of_device
from lowdnn.backend.read_only import read_only
from lowdnn.backend.uncomputed import Signal, Uncomputed, first_error
from lowdnn.documents import read_document, write_document
from lowdnn.engines.engine_set import EngineSet
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, OperationGraphMode
from lowdnn.graph.expansion import expanded
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import HasPorts, inputs_of, outputs_of
from lowdnn.ops.catalog import compounds, operations
from lowdnn.schema import attribute
from lowdnn.status import BadParamError, DescriptorTypeError, GraphPatternError, LowdnnError

_MANY = 2**31 - 1
#: The operation types of which a graph with this mode must have one; a mode that is not listed accepts any graph.
_ANCHORS: Mapping[OperationGraphMode, tuple[DescriptorType, ...]] = {
    OperationGraphMode.CONV_FORWARD: (DescriptorType.OPERATION_CONVOLUTION_FORWARD,),
    OperationGraphMode.CONV_BWD_DATA: (DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,),
    OperationGraphMode.CONV_BWD_FILTER: (DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,),
    OperationGraphMode.NORM_FWD_INFER: (DescriptorType.OPERATION_NORM_FORWARD,),
    OperationGraphMode.NORM_FWD_TRAIN: (DescriptorType.OPERATION_NORM_FORWARD,),
    OperationGraphMode.NORM_BWD: (DescriptorType.OPERATION_NORM_BACKWARD,),
    OperationGraphMode.GENERIC_CONV_FUSION: (
        DescriptorType.OPERATION_CONVOLUTION_FORWARD,
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,
    ),
    OperationGraphMode.RESAMPLE_FWD: (DescriptorType.OPERATION_RESAMPLE_FWD,),
    OperationGraphMode.RESAMPLE_BWD: (DescriptorType.OPERATION_RESAMPLE_BWD,),
    OperationGraphMode.BLAS_MATMUL: (DescriptorType.OPERATION_MATMUL,),
    OperationGraphMode.GENERIC_MATMUL_FUSION: (DescriptorType.OPERATION_MATMUL,),
    OperationGraphMode.GENERIC_POINTWISE_FUSION: (DescriptorType.OPERATION_POINTWISE,),
    OperationGraphMode.UNIFIED_SDPA_FWD: (DescriptorType.OPERATION_SDPA_FWD,),
    OperationGraphMode.UNIFIED_SDPA_BWD: (DescriptorType.OPERATION_SDPA_BWD,),
}
#: Version of DEVICEPROP's JSON form.
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class DeviceProperties:
    """The device that plans are made for: a handle's, the one that JSON says, or one of this machine by its number.

    A number is that of the driver that the environment chooses (``Config``), which is asked for facts alone: no context
    is made. JSON form: ``{"lowdnn_device": 1, "arch": "sm_90a", "sm_count": 132}``.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.DEVICEPROP

    handle: Handle | None = attribute(AttributeName.DEVICEPROP_HANDLE, AttributeType.HANDLE, default=None)
    json: str = attribute(AttributeName.DEVICEPROP_JSON_REPRESENTATION, AttributeType.CHAR, max_count=_MANY, default="")
    device_id: int | None = attribute(AttributeName.DEVICEPROP_DEVICE_ID, AttributeType.INT32, default=None)

    def __post_init__(self) -> None:
        given = {"a handle": self.handle is not None, "JSON": bool(self.json), "an id": self.device_id is not None}
        if sum(given.values()) != 1:
            raise BadParamError.at(
                "DEVICEPROP descriptor",
                expected="one of a handle, JSON and a device's id",
                got=" and ".join(name for name, is_given in given.items() if is_given) or "none",
            )
        _ = self.arch

    @cached_property
    def arch(self) -> ArchSpec:
        """The architecture's facts.

        Raises BadParamError and ArchMismatchError for JSON that names none, InvalidValueError for an id without a
        device.
        """
        if self.handle is not None:
            return self.handle.arch
        return _arch_from_json(self.json) if self.device_id is None else arch_of_device(self.device_id)

    @classmethod
    def of(cls, arch: ArchSpec) -> DeviceProperties:
        """The properties of a device, by its facts."""
        return cls(json=_json_of(arch))

    @read_only(AttributeName.DEVICEPROP_JSON_REPRESENTATION, AttributeType.CHAR)
    def json_representation(self) -> str:
        return _json_of(self.arch)

    #: cudnn-frontend's name.
    serialize = json_representation


@dataclass(frozen=True)
class GraphDescription:
    """Operations that form a graph, and the handle whose device it is for (none: for a DEVICEPROP given later).

    Operations that read a virtual tensor from outside are part of another one, as OPERATION_SDPA_FWD has one: they are
    checked with it.

    A graph with what no engine computes (``uncomputed``) is finalized, and refused where a plan is asked for.

    Every kernel of lowdnn takes extents at run time, so that graphs of new shapes reuse compiled kernels whether
    ``is_dynamic_shape_enabled`` is set or not. ``is_override_shape_enabled`` allows variant packs with other shapes.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATIONGRAPH

    operations: tuple[HasPorts | Uncomputed, ...] = attribute(
        AttributeName.OPERATIONGRAPH_OPS, AttributeType.BACKEND_DESCRIPTOR, max_count=_MANY
    )
    handle: Handle | None = attribute(AttributeName.OPERATIONGRAPH_HANDLE, AttributeType.HANDLE, default=None)
    is_dynamic_shape_enabled: bool = attribute(
        AttributeName.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, AttributeType.BOOLEAN, default=False
    )
    is_override_shape_enabled: bool = attribute(
        AttributeName.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, AttributeType.BOOLEAN, default=False
    )
    mode: OperationGraphMode = attribute(
        AttributeName.OPERATIONGRAPH_MODE, AttributeType.OPERATIONGRAPH_MODE, default=OperationGraphMode.AUTO
    )

    def __post_init__(self) -> None:
        for index, operation in enumerate(self.operations):
            if not _is_operation(operation):
                raise DescriptorTypeError.at(
                    f"OPERATIONGRAPH descriptor.OPERATIONGRAPH_OPS[{index}]",
                    expected="an operation descriptor",
                    got=type(operation).__name__,
                )
        self._check_mode()
        if self.error is None and not self._is_part:
            _ = self.graph

    @cached_property
    def error(self) -> LowdnnError | None:
        """Why no engine computes the graph, where one of its operations is ``Uncomputed``."""
        return first_error(self.operations)

    @cached_property
    def graph(self) -> OperationGraph:
        """The checked graph; raises what OperationGraph raises, and NotSupportedError for what no engine computes."""
        if self.error is not None:
            raise type(self.error)(str(self.error))
        return OperationGraph(expanded(self.operations))

    @property
    def engines(self) -> EngineSet:
        """The engines that may run the graph, by global index."""
        return ENGINES if self.handle is None else self.handle.engines

    def arch_for(self, where: str, device_properties: DeviceProperties | None, sm_count_target: int) -> ArchSpec:
        """The device to plan for: the given one, else the handle's; with part of its multiprocessors if asked.

        Raises BadParamError where neither is there.
        """
        if device_properties is not None:
            arch = device_properties.arch
        elif self.handle is not None:
            arch = self.handle.arch
        else:
            raise BadParamError.at(
                where, expected="a device", got="neither a DEVICEPROP nor a handle on the OPERATIONGRAPH descriptor"
            )
        if not 0 <= sm_count_target <= arch.sm_count:
            raise BadParamError.at(
                f"{where}.sm_count_target", expected=f"0 (all) to {arch.sm_count}", got=sm_count_target
            )
        return arch.with_sm_count(sm_count_target) if sm_count_target else arch

    @property
    def _is_part(self) -> bool:
        operations = [op for op in self.operations if not isinstance(op, Uncomputed)]
        written = {tensor.uid for op in operations for tensor in outputs_of(op).values()}
        read = (tensor for op in operations for tensor in inputs_of(op).values())
        return any(tensor.is_virtual and tensor.uid not in written for tensor in read)

    def _check_mode(self) -> None:
        wanted = _ANCHORS.get(self.mode, ())
        if wanted and not any(op.descriptor_type in wanted for op in self.operations):
            raise GraphPatternError.at(
                "OPERATIONGRAPH descriptor.OPERATIONGRAPH_MODE",
                expected=f"{' or '.join(kind.name for kind in wanted)} in a graph of the mode {self.mode.name}",
                got=", ".join(type(op).__name__ for op in self.operations),
            )

    @read_only(AttributeName.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, AttributeType.INT64)
    def engine_global_count(self) -> int:
        return len(self.engines)


def _is_operation(value: object) -> bool:
    declaration = value.declaration if isinstance(value, Uncomputed) else type(value)
    return declaration in (*operations(), *compounds(), Signal)


def _json_of(arch: ArchSpec) -> str:
    return write_document("lowdnn_device", _SCHEMA_VERSION, {"arch": arch.name, "sm_count": arch.sm_count})


def _arch_from_json(text: str) -> ArchSpec:
    where = "DEVICEPROP descriptor.json"
    content = read_document(text, "lowdnn_device", _SCHEMA_VERSION, {"arch": str, "sm_count": int}, where)
    return spec_from_outside(content["arch"], content["sm_count"], where)

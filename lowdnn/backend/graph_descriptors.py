"""Descriptors of what is to be computed and for which device: OPERATIONGRAPH and DEVICEPROP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec, spec_from_outside
from lowdnn.backend.handle import Handle
from lowdnn.backend.read_only import read_only
from lowdnn.documents import read_document, write_document
from lowdnn.engines.engine_set import EngineSet
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.graph.expansion import expanded
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import HasPorts, Operation, inputs_of, outputs_of
from lowdnn.ops.catalog import compounds
from lowdnn.schema import attribute
from lowdnn.status import BadParamError, DescriptorTypeError

_MANY = 2**31 - 1
#: Version of DEVICEPROP's JSON form.
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class DeviceProperties:
    """The device that plans are made for, taken from a handle or from JSON; no device is touched.

    JSON form: ``{"lowdnn_device": 1, "arch": "sm_90a", "sm_count": 132}``.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.DEVICEPROP

    handle: Handle | None = attribute(AttributeName.DEVICEPROP_HANDLE, AttributeType.HANDLE, default=None)
    json: str = attribute(AttributeName.DEVICEPROP_JSON_REPRESENTATION, AttributeType.CHAR, max_count=_MANY, default="")

    def __post_init__(self) -> None:
        if (self.handle is None) == (not self.json):
            raise BadParamError.at(
                "DEVICEPROP descriptor",
                expected="either a handle or JSON",
                got="neither" if self.handle is None else "both",
            )
        _ = self.arch

    @cached_property
    def arch(self) -> ArchSpec:
        """The architecture's facts; raises BadParamError and ArchMismatchError for JSON that names none."""
        return self.handle.arch if self.handle is not None else _arch_from_json(self.json)

    @read_only(AttributeName.DEVICEPROP_JSON_REPRESENTATION, AttributeType.CHAR)
    def json_representation(self) -> str:
        device = {"arch": self.arch.name, "sm_count": self.arch.sm_count}
        return write_document("lowdnn_device", _SCHEMA_VERSION, device)

    #: cudnn-frontend's name.
    serialize = json_representation


@dataclass(frozen=True)
class GraphDescription:
    """Operations that form a graph, and the handle whose device it is for (none: for a DEVICEPROP given later).

    Operations that read a virtual tensor from outside are part of another one, as OPERATION_SDPA_FWD has one: they are
    checked with it.

    Every kernel of lowdnn takes extents at run time, so that graphs of new shapes reuse compiled kernels whether
    ``is_dynamic_shape_enabled`` is set or not.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATIONGRAPH

    operations: tuple[HasPorts, ...] = attribute(
        AttributeName.OPERATIONGRAPH_OPS, AttributeType.BACKEND_DESCRIPTOR, max_count=_MANY
    )
    handle: Handle | None = attribute(AttributeName.OPERATIONGRAPH_HANDLE, AttributeType.HANDLE, default=None)
    is_dynamic_shape_enabled: bool = attribute(
        AttributeName.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, AttributeType.BOOLEAN, default=False
    )

    def __post_init__(self) -> None:
        for index, operation in enumerate(self.operations):
            if not isinstance(operation, (Operation, *compounds())):
                raise DescriptorTypeError.at(
                    f"OPERATIONGRAPH descriptor.OPERATIONGRAPH_OPS[{index}]",
                    expected="an operation descriptor",
                    got=type(operation).__name__,
                )
        if not self._is_part:
            _ = self.graph

    @cached_property
    def graph(self) -> OperationGraph:
        """The checked graph; raises what OperationGraph raises."""
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
        written = {tensor.uid for op in self.operations for tensor in outputs_of(op).values()}
        read = (tensor for op in self.operations for tensor in inputs_of(op).values())
        return any(tensor.is_virtual and tensor.uid not in written for tensor in read)

    @read_only(AttributeName.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, AttributeType.INT64)
    def engine_global_count(self) -> int:
        return len(self.engines)


def _arch_from_json(text: str) -> ArchSpec:
    where = "DEVICEPROP descriptor.json"
    content = read_document(text, "lowdnn_device", _SCHEMA_VERSION, {"arch": str, "sm_count": int}, where)
    return spec_from_outside(content["arch"], content["sm_count"], where)

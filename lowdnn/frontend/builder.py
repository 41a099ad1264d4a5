"""A pygraph while it is written: tensors, operations, default types; and how it becomes an OperationGraph."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowdnn.enums import DataType
from lowdnn.frontend.arguments import integers, member, number, text
from lowdnn.frontend.calls import NO_CALL, Call
from lowdnn.frontend.data_types import DataTypeLike, as_data_type, compute_to_backend, data_type
from lowdnn.frontend.enums import scalar_type as ScalarType
from lowdnn.frontend.enums import tensor_reordering
from lowdnn.frontend.graph_tensor import NO_UID, Tensor, inferred
from lowdnn.frontend.interop import describe, is_array
from lowdnn.frontend.nodes import Node
from lowdnn.graph.expansion import expanded
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops import tensor as ops
from lowdnn.ops.base import HasPorts
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError, DuplicatedEntriesError, LowdnnError, NotSupportedError

#: An operand of pointwise methods: a tensor of the graph, or a number.
Operand = Tensor | float | int


@dataclass(frozen=True)
class GraphContext:
    """Default data types of tensors in memory, of tensors inside the graph, and of the arithmetic."""

    io_data_type: data_type = data_type.NOT_SET
    intermediate_data_type: data_type = data_type.NOT_SET
    compute_data_type: data_type = data_type.NOT_SET


@dataclass(frozen=True)
class Entry:
    """One operation of the graph with its outputs."""

    node: Node
    outputs: tuple[Tensor, ...]
    compute_data_type: data_type
    name: str
    call: Call

    @property
    def ports(self) -> dict[str, Tensor]:
        """The tensors by the names of the operation's ports."""
        inputs = zip(self.node.input_ports, self.node.inputs, strict=False)
        return dict((*inputs, *zip(self.node.output_ports, self.outputs, strict=True)))


class GraphBuilder:
    """Tensors and operations in the order in which they were added; the base of pygraph's operation methods."""

    def __init__(self, name: str, context: GraphContext) -> None:
        self.name = name
        self.context = context
        self._tensors: list[Tensor] = []
        self._entries: list[Entry] = []
        self._graph: OperationGraph | None = None
        self._is_fixed = False
        self._call = NO_CALL
        self._calls: list[Call] = []
        self._last_uid = 0
        self._unnamed: Counter[str] = Counter()
        self._given_arrays: dict[Tensor, object] = {}

    def tensor(
        self,
        dim: Sequence[int],
        stride: Sequence[int] | None = None,
        data_type: DataTypeLike = data_type.NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Tensor | None = None,
        reordering_type: tensor_reordering = tensor_reordering.NONE,
        name: str = "",
        uid: int = NO_UID,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
    ) -> Tensor:
        """An input of the graph. ``stride`` in elements, row-major if left out.

        alignment_value: divides every element of the tensor, by the caller's promise.
        """
        dims = integers(dim, f"tensor {name!r}.dim")
        strides = () if stride is None else integers(stride, f"tensor {name!r}.stride")
        made = Tensor(
            dim=dims,
            stride=strides,
            data_type=data_type,
            is_virtual=is_virtual,
            is_pass_by_value=is_pass_by_value,
            reordering_type=reordering_type,
            ragged_offset=ragged_offset,
            ragged_offset_multiplier=ragged_offset_multiplier,
            name=name,
            uid=NO_UID if uid is None else uid,
            alignment_value=alignment_value,
        )
        if not strides:
            inferred((made,), lambda: made.set_stride(packed_strides(dims)))
        return self._register(made)

    def tensor_like(
        self, template: object = None, name: str = "", is_virtual: bool = False, *, input: object = None
    ) -> Tensor:
        """An input with dims, strides and data type of another tensor of a graph, or of any array.

        template: a Tensor, or an array with ``__cuda_array_interface__`` or DLPack; an array on the host is passed by
        value.  input: the template by its older name.
        """
        if (template is None) == (input is None):
            got = "none" if template is None else "two"
            raise BadParamError.at("tensor_like.template", expected="one template", got=got)
        like = input if template is None else template
        if isinstance(like, Tensor):
            made = Tensor(
                dim=like.get_dim(),
                stride=like.get_stride(),
                data_type=like.get_data_type(),
                is_virtual=is_virtual,
                is_pass_by_value=like.get_is_pass_by_value(),
                name=name,
                alignment_bytes=like.get_alignment(),
            )
            return self._register(made)
        facts = describe(like)
        return self.tensor(facts.dims, facts.strides, facts.data_type, is_virtual, facts.is_host, name=name)

    def tensor_scalar(
        self, value: float | int, scalar_type: ScalarType = ScalarType.RUNTIME_PARAM, name: str = ""
    ) -> Tensor:
        """A number: fixed in the graph, or passed by value with ``value`` taken where execute gives none.

        An integer is an INT32 (INT64 where it needs to be), anything else a FLOAT.
        """
        value = number(value, "tensor_scalar.value")
        wide = isinstance(value, int) and not -(2**31) <= value < 2**31
        kind = (data_type.INT64 if wide else data_type.INT32) if isinstance(value, int) else data_type.FLOAT
        is_constant = member(ScalarType, scalar_type, "tensor_scalar.scalar_type") is ScalarType.COMPILE_TIME_CONST
        made = Tensor(
            dim=(1,),
            stride=(1,),
            data_type=kind,
            is_pass_by_value=not is_constant,
            name=name,
            pass_by_value=value,
            scalar_type=scalar_type,
        )
        return self._register(made)

    def _register(self, tensor: Tensor) -> Tensor:
        """Takes ``tensor`` into the graph, with a uid that ``_number_tensors`` may change where the caller sets it."""
        self._tensors.append(tensor)
        tensor.owner = weakref.ref(self)
        if tensor.get_uid() == NO_UID:
            self._last_uid += 1
            tensor.take_uid(self._last_uid)
        return tensor

    def _operands(self, method: str, operands: tuple[Operand, ...]) -> tuple[Tensor, ...]:
        """The operands as tensors of the graph, numbers as constants."""
        return tuple(self._operand(method, operand) for operand in operands)

    def _operand(self, method: str, operand: Operand) -> Tensor:
        if isinstance(operand, Tensor):
            return operand
        value = number(operand, method, expected="a tensor or a number")
        return self._register(
            Tensor(dim=(1,), stride=(1,), pass_by_value=value, scalar_type=ScalarType.COMPILE_TIME_CONST)
        )

    def _add(self, node: Node, compute_data_type: DataTypeLike, name: str) -> Tensor:
        """Adds an operation with one output, which is virtual."""
        (output,) = self._add_all(node, compute_data_type, name)
        return output

    def _add_all(
        self, node: Node, compute_data_type: DataTypeLike, name: str, given: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """Adds an operation with virtual outputs; names what has no name, as cudnn-frontend does.

        given: outputs that there are already, by suffix.
        """
        if self._is_fixed:
            raise BadParamError.at(
                f"pygraph {self.name!r}", expected="operations before build_operation_graph", got="one after it"
            )
        label = self._label(name)
        for tensor, port in zip(node.inputs, node.input_names, strict=False):
            if not isinstance(tensor, Tensor):
                raise BadParamError.at(f"pygraph {label}.{port}", expected="a tensor", got=type(tensor).__name__)
            if not tensor.get_name():
                tensor.set_name(f"{label}::{port}")
        outputs = tuple(
            (given or {}).get(suffix) or self._register(Tensor(is_virtual=True, name=f"{label}::{suffix}"))
            for suffix in node.output_suffixes
        )
        compute = as_data_type(compute_data_type, f"{self._call.method or label}.compute_data_type")
        self._entries.append(Entry(node, outputs, compute, label, self._call))
        return outputs

    def _label(self, name: str) -> str:
        """The prefix of the names of the next operation's tensors: its own name, otherwise the call's."""
        return text(name, "operation.name") or self._call.name

    def _default_name(self, method: str) -> str:
        """The name of a call that is given none: the method and a number, inside of another call behind its name."""
        stem = f"{self._call.name}::{method}" if self._call.name else method
        self._unnamed[stem] += 1
        return f"{stem}.{self._unnamed[stem] - 1}"

    def _with_tensors(self, value: Any, name: str) -> Any:
        """``value`` with tensors of this name in place of arrays: of itself, or of those in a sequence."""
        if isinstance(value, (list, tuple)):
            items = [self._with_tensors(item, f"{name}_{i}") for i, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, Tensor) or not is_array(value):
            return value
        known = next((tensor for tensor, array in self._given_arrays.items() if array is value), None)
        if known is not None:
            return known
        tensor = self.tensor_like(value, name)
        self._given_arrays[tensor] = value
        return tensor

    def _lowered(self) -> OperationGraph:
        """Infers what was left out, numbers the tensors and checks the graph.

        Raises BadParamError, NotSupportedError and their subclasses, naming operation or tensor.
        """
        if not self._entries:
            raise BadParamError.at(f"pygraph {self.name!r}", expected="at least one operation", got="none")
        self._number_tensors()
        for entry in self._entries:
            self._infer(entry)
        for tensor in self._offsets():
            self._infer_type(tensor)
        meanings = {id(tensor): tensor.lowered() for tensor in self._used()}
        return OperationGraph(expanded(self._operation(entry, meanings) for entry in self._entries))

    def _written(self) -> tuple[object, ...]:
        """The state of all that the caller has written so far, for comparison."""
        return (len(self._entries), *((id(tensor), tensor.state) for tensor in self._used()))

    def _infer(self, entry: Entry) -> None:
        """Infers the dims, strides and data types that the operation's tensors lack."""
        for tensor in entry.node.inputs:
            if not tensor.get_dim():
                raise BadParamError.at(f"{tensor.label}.dim", expected="one entry for each dimension", got="none")
            self._infer_type(tensor)
        try:
            inferred(entry.outputs, lambda: entry.node.infer(entry.outputs, self._compute_type(entry)))
        except LowdnnError as error:
            raise entry.call.for_caller(error, entry.ports) from None
        for output in entry.outputs:
            self._infer_type(output)

    def _operation(self, entry: Entry, meanings: Mapping[int, ops.Tensor]) -> HasPorts:
        """The operation of ``entry``; ``meanings`` has the operation graph's tensors by ``id`` of the caller's."""
        try:
            return entry.node.lower(entry.outputs, self._compute_type(entry), lambda tensor: meanings[id(tensor)])
        except LowdnnError as error:
            raise entry.call.for_caller(error, entry.ports) from None

    def _number_tensors(self) -> None:
        """Gives a new uid to each tensor whose uid the caller has set for another tensor."""
        taken: dict[int, Tensor] = {}
        unused = [tensor for tensor in self._tensors if not tensor.uid_assigned]
        for tensor in dict.fromkeys([*sorted(self._used(), key=lambda tensor: not tensor.uid_assigned), *unused]):
            holder = taken.get(tensor.get_uid())
            if holder is not None and tensor.uid_assigned:
                got = f"{tensor.get_uid()}, which {holder.label} has"
                raise DuplicatedEntriesError.at(f"{tensor.label}.uid", expected="a uid of its own", got=got)
            while tensor.get_uid() in taken or tensor.get_uid() == NO_UID:
                self._last_uid += 1
                tensor.take_uid(self._last_uid)
            taken[tensor.get_uid()] = tensor

    def _used(self) -> list[Tensor]:
        """Every tensor that an operation reads or writes, once, in order of first use; then offsets of ragged ones."""
        found = {id(t): t for entry in self._entries for t in (*entry.node.inputs, *entry.outputs)}
        return list((found | {id(t): t for t in self._offsets()}).values())

    def _offsets(self) -> list[Tensor]:
        """The offsets of ragged tensors."""
        tensors = (t for entry in self._entries for t in (*entry.node.inputs, *entry.outputs))
        return [offset for tensor in tensors if (offset := tensor.get_ragged_offset()) is not None]

    def _infer_type(self, tensor: Tensor) -> None:
        if not tensor.get_data_type() and not tensor.is_constant:
            default = self.context.intermediate_data_type if tensor.get_is_virtual() else self.context.io_data_type
            which = "intermediate_data_type" if tensor.get_is_virtual() else "io_data_type"
            if not default:
                raise NotSupportedError.at(
                    f"{tensor.label}.data_type", expected=f"a data type, or the graph's {which}", got="NOT_SET"
                )
            tensor.set_data_type(default)

    def _compute_type(self, entry: Entry) -> DataType:
        return compute_to_backend(
            entry.compute_data_type or self.context.compute_data_type,
            f"operation {entry.name!r}: compute_data_type (or the graph's)",
        )

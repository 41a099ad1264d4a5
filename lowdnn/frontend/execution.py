"""From a caller's tensors to one launch: the part of a pygraph that runs at every step.

The first call with a set of keys finds out which key is which tensor; later calls with the same keys look up the
values in plan order, take their addresses and hand them to the loaded plan, which does nothing for addresses that it
has seen last time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType
from lowdnn.frontend.device_tensor import DeviceTensor
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.interop import host_scalar
from lowdnn.plan import Plan, PlanTensor
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.interchange import view_of
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DuplicatedEntriesError,
    LowdnnError,
    SizeInsufficientError,
    StreamMismatchError,
)

#: What execute takes for a tensor's key.
Key = Tensor | str | int


@dataclass(frozen=True)
class Need:
    """What a plan needs behind an address; ``where`` names it in messages, a data type of None takes any."""

    where: str
    size_bytes: int
    data_type: DataType | None = None
    is_output: bool = False


#: The address of a value, checked as far as values of its type can tell. What must live until the launch goes into the
#: list: others' exports, and host copies of by-value tensors.
AddressOf = Callable[[Any, Handle, Need, list[object]], int]

#: Integers below it are no host address: the first pages of a process are never mapped.
_LOWEST_HOST_ADDRESS = 1 << 16


class PreparedExecution:
    """One loaded plan of a graph and the way from keys to its pointers."""

    def __init__(self, plan: Plan, loaded: LoadedPlan, handle: Handle, tensors: Mapping[int, Tensor]) -> None:
        """``tensors``: the graph's tensors by uid; those with a value need not be given to ``execute``."""
        self.plan = plan
        self._loaded = loaded
        self._handle = handle
        self._tensors = tensors
        self._needs = tuple(_need(tensor) for tensor in plan.tensors)
        self._workspace_need = Need("execute.workspace", plan.workspace_bytes)
        self._recent: _Route | None = None

    def execute(self, values: Mapping[Any, object], workspace: object, handle: Handle) -> None:
        """Launches the plan into ``handle``'s stream with the values' addresses.

        Raises BadParamError for a tensor that is missing, unknown or given twice, StreamMismatchError for memory of
        another device, SizeInsufficientError for a tensor or workspace that is too small, and what
        ``LoadedPlan.execute`` raises.
        """
        if handle.is_debug or not handle.is_open:
            with handle.entered("execute"):
                self._launch(values, workspace, handle)
            return
        try:
            self._launch(values, workspace, handle)
        except LowdnnError as error:
            handle.last_error = str(error)
            raise

    def _launch(self, values: Mapping[Any, object], workspace: object, handle: Handle) -> None:
        if type(values) is not dict and not isinstance(values, Mapping):
            raise AttributeTypeError.at("execute.tensor_dict", expected="a dict of tensors", got=repr(values))
        kept: list[object] = []
        pointers = self._recent.pointers(values, handle, kept) if self._recent is not None else None
        if pointers is None:
            pointers = self._resolved(values, handle, kept)
        address = 0 if workspace is None else self._workspace_address(workspace, handle, kept)
        loaded = self._loaded if handle is self._handle else handle.load(self.plan)
        loaded.execute(pointers, address, handle.stream)

    def _resolved(self, values: Mapping[Any, object], handle: Handle, kept: list[object]) -> tuple[int, ...]:
        """The pointers of a new set of keys or types."""
        keys = self._resolve(values)
        getters = tuple(
            _integer_address if tensor.is_by_value else _address_getter(values[key])
            for tensor, key in zip(self.plan.tensors, keys, strict=True)
        )
        pointers = tuple(
            self._host_address(tensor, key, values, kept)
            if tensor.is_by_value
            else getter(values[key], handle, need, kept)
            for tensor, key, getter, need in zip(self.plan.tensors, keys, getters, self._needs, strict=True)
        )
        if not any(tensor.is_by_value for tensor in self.plan.tensors):
            self._recent = _Route(len(values), keys, tuple(type(values[key]) for key in keys), getters, self._needs)
        return pointers

    def _resolve(self, values: Mapping[Any, object]) -> tuple[Any, ...]:
        """The caller's key for each tensor of the plan; None for a by-value tensor whose value the graph has. Tensors
        of the graph that no operation reads may be given."""
        by_uid: dict[int, Key] = {}
        for key in values:
            uid = self._uid_of(key)
            if uid in by_uid:
                raise DuplicatedEntriesError.at("execute.tensor_dict", expected="each tensor once", got=repr(key))
            by_uid[uid] = key
        known = {tensor.uid for tensor in self.plan.tensors}
        missing = [t for t in self.plan.tensors if t.uid not in by_uid and self._tensors[t.uid].value is None]
        if missing:
            names = ", ".join(f"{tensor.name!r} (uid {tensor.uid})" for tensor in missing)
            raise BadParamError.at("execute.tensor_dict", expected=f"a value for {names}", got="none")
        unread = {uid for uid, tensor in self._tensors.items() if not tensor.get_is_virtual()}
        unknown = [key for uid, key in by_uid.items() if uid not in known | unread]
        if unknown:
            raise BadParamError.at(
                "execute.tensor_dict", expected=f"inputs and outputs of the graph (uids {sorted(known)})", got=unknown
            )
        return tuple(by_uid.get(tensor.uid) for tensor in self.plan.tensors)

    def _uid_of(self, key: object) -> int:
        if isinstance(key, Tensor):
            return key.get_uid()
        if isinstance(key, str):
            named = [uid for uid, tensor in self._tensors.items() if tensor.get_name() == key]
            if len(named) != 1:
                raise BadParamError.at(
                    "execute.tensor_dict", expected="the name of one tensor", got=f"{key!r}, which {len(named)} have"
                )
            return named[0]
        if type(key) is int:
            return key
        raise BadParamError.at("execute.tensor_dict", expected="a tensor, a name or a uid as key", got=repr(key))

    def _host_address(
        self, tensor: PlanTensor, key: Key | None, values: Mapping[Any, object], kept: list[object]
    ) -> int:
        """The host address of a by-value tensor's value: an integer is one, anything else is copied into ``kept``."""
        value = self._tensors[tensor.uid].value if key is None else values[key]
        if key is not None and type(value) is int:
            if value < _LOWEST_HOST_ADDRESS:
                raise BadParamError.at(
                    f"execute.tensor_dict[{key!r}]",
                    expected="a host address, where a by-value tensor is given an integer",
                    got=value,
                    hint="pass a float or a host array of one element",
                )
            return value
        scalar = host_scalar(value, tensor.data_type, f"execute.tensor_dict[{key!r}]")
        kept.append(scalar)
        return int(scalar.ctypes.data)

    def _workspace_address(self, workspace: object, handle: Handle, kept: list[object]) -> int:
        if not self._workspace_need.size_bytes:
            return 0
        return _address_getter(workspace)(workspace, handle, self._workspace_need, kept)


class _Route:
    """Keys, types and getters of the last call, in plan order: what makes the next call with the same ones cheap."""

    def __init__(
        self,
        count: int,
        keys: tuple[Any, ...],
        types: tuple[type, ...],
        getters: tuple[AddressOf, ...],
        needs: tuple[Need, ...],
    ) -> None:
        self._count = count
        self._types = types
        self._steps = tuple(zip(getters, needs, strict=True))
        self._are_addresses = all(kind is int for kind in types)
        self._pick = itemgetter(*keys) if len(keys) > 1 else lambda values: tuple(values[key] for key in keys)

    def pointers(self, values: Mapping[Any, object], handle: Handle, kept: list[object]) -> tuple[int, ...] | None:
        """The pointers, or None where keys or types are others."""
        if len(values) != self._count:
            return None
        try:
            found = self._pick(values)
        except KeyError:
            return None
        if tuple(map(type, found)) != self._types:
            return None
        if self._are_addresses:
            return found
        return tuple(
            [getter(value, handle, need, kept) for value, (getter, need) in zip(found, self._steps, strict=True)]
        )


def pair(uids: Sequence[int], values: Sequence[object] | Mapping[Any, object]) -> dict[int, object]:
    """The values by uid; raises BadParamError unless there is one value for each uid."""
    if isinstance(values, Mapping) or len(uids) != len(values):
        raise BadParamError.at("execute.tensor_dict", expected=f"a list of {len(uids)} values", got=repr(values))
    if len(set(uids)) != len(uids):
        raise DuplicatedEntriesError.at("execute.tensor_uids", expected="each uid once", got=list(uids))
    return dict(zip(uids, values, strict=True))


def _address_getter(value: object) -> AddressOf:
    """How the address of values of this type is taken, the cheapest way that still checks where the memory is."""
    if type(value) is int:
        return _integer_address
    if isinstance(value, DeviceTensor):
        return _tensor_address
    if isinstance(value, (DeviceBuffer, Workspace)):
        return _buffer_address
    if hasattr(value, "data_ptr") and hasattr(value, "get_device"):
        return _torch_address
    return _view_address


def _integer_address(address: Any, handle: Handle, need: Need, kept: list[object]) -> int:
    found: int = address
    return found


def _torch_address(tensor: Any, handle: Handle, need: Need, kept: list[object]) -> int:
    if tensor.get_device() == handle.cuda_device:
        return int(tensor.data_ptr())
    return _view_address(tensor, handle, need, kept)


def _tensor_address(tensor: DeviceTensor, handle: Handle, need: Need, kept: list[object]) -> int:
    if need.data_type is not None and tensor.data_type is not need.data_type:
        _check_data_type(tensor.data_type, need)
    if tensor.handle is handle and tensor.size_bytes >= need.size_bytes:
        return tensor.buffer.address
    return _buffer_address(tensor.buffer, handle, need, kept)


def _buffer_address(buffer: DeviceBuffer | Workspace, handle: Handle, need: Need, kept: list[object]) -> int:
    context = buffer.context
    if context is not handle.runtime.context and context.driver is not handle.runtime.driver:
        raise StreamMismatchError.at(need.where, expected=f"memory of {handle!r}", got="memory of another device")
    if buffer.size_bytes < need.size_bytes:
        _refuse_size(buffer.size_bytes, need)
    return buffer.address


def _view_address(array: object, handle: Handle, need: Need, kept: list[object]) -> int:
    view = view_of(array, handle.runtime.context, handle.stream, need.where)
    if view.data_type is not None and need.data_type is not None:
        _check_data_type(view.data_type, need)
    if view.size_bytes is not None and view.size_bytes < need.size_bytes:
        _refuse_size(view.size_bytes, need)
    if view.is_read_only and need.is_output:
        raise BadParamError.at(need.where, expected="memory that may be written", got="a read-only array")
    kept.append(view)
    return view.address


def _refuse_size(size_bytes: int, need: Need) -> NoReturn:
    raise SizeInsufficientError.at(need.where, expected=f"at least {need.size_bytes} bytes", got=f"{size_bytes} bytes")


def _check_data_type(given: DataType, need: Need) -> None:
    # Arrays of bytes carry types that their producer has no name for.
    if given is not need.data_type and given not in (DataType.INT8, DataType.UINT8) and need.data_type is not None:
        raise BadParamError.at(
            need.where,
            expected=f"elements of {need.data_type.name}",
            got=given.name,
            hint="give the address to have its bytes taken as they are",
        )


def _need(tensor: PlanTensor) -> Need:
    return Need(
        f"execute.tensor_dict[{tensor.name!r} (uid {tensor.uid})]",
        tensor.size_bytes,
        tensor.data_type,
        tensor.is_output,
    )

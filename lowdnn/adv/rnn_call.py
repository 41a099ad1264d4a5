"""One call on a recurrent network: its arguments are taken and checked, then its launches are made ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from lowdnn.adv.argument_types import Types, check_type, check_types
from lowdnn.adv.rnn_descriptors import PADDED_IO_ENABLED, RNNDataDescriptor, RNNDescriptor
from lowdnn.adv.rnn_problems import MAX_ALIGNMENT, Kind, Problem, RnnPlans, StateShape, packed_rows
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType
from lowdnn.runtime.layout import aligned
from lowdnn.runtime.workspace import ALIGNMENT_BYTES, size_anywhere
from lowdnn.status import (
    BadParamError,
    LowdnnError,
    MisalignedPointerError,
    NullPointerError,
    ShapeMismatchError,
    SizeInsufficientError,
)

_LENGTH_BYTES = 4
#: Ports of tensors that may be NULL.
_OPTIONAL = ("hx", "hy", "cx", "cy", "dhy", "dhx", "dcy", "dcx", "seq_lengths")
_TYPES: Mapping[str, Types] = {
    "handle": Handle,
    "rnn_desc": RNNDescriptor,
    "x_desc": RNNDataDescriptor,
    "y_desc": RNNDataDescriptor,
}
#: Fields that must be equal in the descriptors of x and of y.
_OF_ALL_SEQUENCES = ("layout", "max_seq_length", "batch_size", "seq_length_array")


class StateDescriptor(Protocol):
    """The layout of first and last states, such as an ``ops.tensor.Tensor``: (L * D, B, elements), row-major.

    Dimensions of extent 1 may follow, and any stride fits an extent of 1.
    """

    @property
    def data_type(self) -> DataType: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...


class RnnCall:
    """The arguments of one call. Each ``take_*`` checks and stores some of them; ``prepared`` checks the rest."""

    def __init__(
        self,
        where: str,
        handle: Handle,
        rnn_desc: RNNDescriptor,
        x_desc: RNNDataDescriptor,
        y_desc: RNNDataDescriptor,
        kind: Kind,
        *,
        is_training: bool = True,
        is_added: bool = False,
    ) -> None:
        _check_types(where, handle, rnn_desc, x_desc, y_desc)
        self._where, self._handle, self._kind = where, handle, kind
        self._rnn_desc, self._x_desc, self._y_desc = rnn_desc, x_desc, y_desc
        self._is_training, self._is_added = is_training, is_added
        self._plans = handle.companion(RnnPlans)
        self._network = self._plans.network(rnn_desc, x_desc, is_training=is_training)
        self._addresses: dict[str, int] = {}
        self._given = 0
        self._check_descriptors()

    @property
    def drops(self) -> bool:
        return self._network.rnn.drops

    def take_sequences(self, dev_seq_lengths: int, **addresses: int) -> None:
        """Lengths count where sequences may be shorter than the longest one."""
        for port, address in addresses.items():
            if not address:
                raise self._null_error(port)
        self._take(addresses)
        if self._x_desc.is_full:
            return
        if not dev_seq_lengths and self._x_desc.seq_length_array is None:
            raise self._null_error("dev_seq_lengths", "a pointer where the descriptor has no lengths")
        if dev_seq_lengths % _LENGTH_BYTES:
            raise self._misaligned_error("dev_seq_lengths", _LENGTH_BYTES, dev_seq_lengths)
        self._addresses["seq_lengths"] = dev_seq_lengths

    def take_states(self, h_desc: StateDescriptor | None, **addresses: int) -> None:
        self._check_state("h_desc", h_desc, self._network.states, addresses)
        self._take(addresses)

    def take_cell_states(self, c_desc: StateDescriptor | None, **addresses: int) -> None:
        if self._network.rnn.is_lstm:
            self._check_state("c_desc", c_desc, self._network.cell_states, addresses)
            self._take(addresses)

    def take_weights(self, size_bytes: int, **addresses: int) -> None:
        needed = self._rnn_desc.weight_space_bytes
        if size_bytes < needed:
            where = f"{self._where}.weight_space_size"
            raise SizeInsufficientError.at(where, expected=f"at least {needed}", got=size_bytes)
        if not all(addresses.values()):
            raise self._null_error("weight_space" if "w" in addresses else "dweight_space")
        self._take(addresses)

    def take_reserve(self, size_bytes: int, address: int) -> None:
        """Takes the reserve space, which must have exactly the size that the network saves: another size belongs to
        another call."""
        needed = self._network.reserve_bytes
        if size_bytes != needed:
            error = SizeInsufficientError if size_bytes < needed else BadParamError
            expected = f"the {needed} bytes that this network's training saves"
            raise error.at(f"{self._where}.reserve_space_size", expected=expected, got=size_bytes)
        if not address:
            raise self._null_error("reserve_space")
        if address % MAX_ALIGNMENT:
            raise self._misaligned_error("reserve_space", MAX_ALIGNMENT, address)
        for port, offset_bytes in self._network.reserve:
            self._addresses[port] = address + offset_bytes

    def prepared(self, work_space_size: int, work_space: int) -> Callable[[], None]:
        """Checks the workspace, plans within it, loads the kernels, and returns a function that launches the call.

        Where sequences may be shorter than the longest one and the call passes no lengths on the device, each launch
        first copies the lengths of ``x_desc`` into the workspace.
        """
        handle, lengths = self._handle, self._x_desc.seq_length_array
        lengths_bytes = 0 if self._x_desc.is_full else _lengths_bytes(self._x_desc)
        available_bytes = work_space_size - (-work_space % ALIGNMENT_BYTES) - lengths_bytes
        planned = self._plans.fitting(handle, self._problem(), available_bytes)
        begin = self._begin_of(work_space, work_space_size, lengths_bytes + planned.workspace_bytes)
        run = partial(planned.prepared(handle), self._addresses, begin + lengths_bytes)
        if lengths is None or self._addresses.get("seq_lengths") != 0:
            return run
        self._addresses["seq_lengths"] = begin
        write = self._plans.lengths(handle).write

        def run_on_lengths() -> None:
            write(begin, lengths, handle.stream)
            run()

        return run_on_lengths

    def _begin_of(self, work_space: int, size_bytes: int, needed: int) -> int:
        """The first aligned address of the workspace, from which ``needed`` bytes must fit; 0 if none are needed."""
        if not needed:
            return 0
        begin = aligned(work_space, ALIGNMENT_BYTES)
        if work_space + size_bytes < begin + needed:
            where, expected = f"{self._where}.work_space_size", f"at least {needed + begin - work_space}"
            raise SizeInsufficientError.at(where, expected=expected, got=size_bytes)
        if not work_space:
            raise self._null_error("work_space")
        return begin

    def _problem(self) -> Problem:
        given = self._given | MAX_ALIGNMENT
        return Problem(
            self._kind,
            self._network,
            self._x_desc.layout,
            packed_rows(self._x_desc),
            frozenset([port for port in _OPTIONAL if port not in self._addresses]),
            given & -given,
            self._is_training,
            self._is_added,
            self._y_desc.padding_fill,
        )

    def _take(self, addresses: dict[str, int]) -> None:
        """Takes the addresses that are not NULL."""
        size_bytes = self._rnn_desc.element_bytes
        for port, address in addresses.items():
            if address:
                if address.__class__ is not int:
                    check_type(self._where, address, int, port)
                if address % size_bytes:
                    raise self._misaligned_error(port, size_bytes, address)
                self._given |= address
                self._addresses[port] = address

    def _check_descriptors(self) -> None:
        """Raises BadParamError where sequences and network do not fit together."""
        x_desc, y_desc, data_type = self._x_desc, self._y_desc, self._rnn_desc.data_type
        sizes = self._network.row_sizes
        for name, found, size in (("x_desc", x_desc, sizes[0]), ("y_desc", y_desc, sizes[1])):
            if found.data_type is not data_type:
                raise self._type_error(name, found.data_type)
            if found.vector_size != size:
                where = f"{self._where}.{name}.vector_size"
                raise ShapeMismatchError.at(where, expected=size, got=found.vector_size)
        for field in _OF_ALL_SEQUENCES:
            wanted, got = getattr(x_desc, field), getattr(y_desc, field)
            if wanted != got:
                raise ShapeMismatchError.at(f"{self._where}.y_desc.{field}", expected=f"{wanted} of x_desc", got=got)
        if not (x_desc.is_packed or x_desc.is_full or self._rnn_desc.aux_flags & PADDED_IO_ENABLED):
            where, expected = f"{self._where}.rnn_desc.aux_flags", f"{PADDED_IO_ENABLED} for padded sequences"
            raise BadParamError.at(where, expected=expected, got=self._rnn_desc.aux_flags)

    def _check_state(
        self, name: str, found: StateDescriptor | None, shape: StateShape, addresses: dict[str, int]
    ) -> None:
        """Checks the dims of a state that the call passes."""
        if not any(addresses.values()):
            return
        if found is None:
            raise self._null_error(name, "a descriptor for the states that there are")
        if found.data_type is not self._rnn_desc.data_type:
            raise self._type_error(name, found.data_type)
        dims, strides = shape
        if found.dims != dims + (1,) * (len(found.dims) - len(dims)):
            raise ShapeMismatchError.at(f"{self._where}.{name}.dims", expected=list(dims), got=list(found.dims))
        if any(a != b and extent > 1 for a, b, extent in zip(found.strides, strides, dims, strict=False)):
            raise BadParamError.at(f"{self._where}.{name}.strides", expected=list(strides), got=list(found.strides))

    def _null_error(self, argument: str, expected: str = "a pointer") -> LowdnnError:
        return NullPointerError.at(f"{self._where}.{argument}", expected=expected, got="NULL")

    def _misaligned_error(self, argument: str, alignment: int, address: int) -> LowdnnError:
        where, expected = f"{self._where}.{argument}", f"a multiple of {alignment}"
        return MisalignedPointerError.at(where, expected=expected, got=f"{address:#x}")

    def _type_error(self, argument: str, found: DataType) -> LowdnnError:
        expected = f"{self._rnn_desc.data_type.name} of the network"
        return BadParamError.at(f"{self._where}.{argument}.data_type", expected=expected, got=found.name)


def temp_space_sizes(
    handle: Handle, rnn_desc: RNNDescriptor, x_desc: RNNDataDescriptor, *, is_training: bool
) -> tuple[int, int]:
    """Bytes of the workspace, wherever it begins, and of the reserve space."""
    _check_types("get_rnn_temp_space_sizes", handle, rnn_desc, x_desc, x_desc)
    plans = handle.companion(RnnPlans)
    network = plans.network(rnn_desc, x_desc, is_training=is_training)
    largest = plans.workspace_bytes(handle, network, x_desc, is_training=is_training)
    return size_anywhere(_lengths_bytes(x_desc) + largest), network.reserve_bytes if is_training else 0


def _check_types(
    where: str, handle: Handle, rnn_desc: RNNDescriptor, x_desc: RNNDataDescriptor, y_desc: RNNDataDescriptor
) -> None:
    """Raises AttributeTypeError for something else in the place of a descriptor; costs no more than it must."""
    if not (
        isinstance(handle, Handle)
        and isinstance(rnn_desc, RNNDescriptor)
        and isinstance(x_desc, RNNDataDescriptor)
        and isinstance(y_desc, RNNDataDescriptor)
    ):
        given = {"handle": handle, "rnn_desc": rnn_desc, "x_desc": x_desc, "y_desc": y_desc}
        check_types(where, given, _TYPES)


def _lengths_bytes(x_desc: RNNDataDescriptor) -> int:
    """Bytes of the workspace that hold the sequence lengths; not needed if all lengths are equal."""
    return aligned(_LENGTH_BYTES * x_desc.batch_size, ALIGNMENT_BYTES)

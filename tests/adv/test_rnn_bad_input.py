"""Bad arguments of all three calls: the error names the field, the rule and the value, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lowdnn.adv import (
    Dropout,
    ForwardMode,
    RNNDataLayout,
    WgradMode,
    rnn_backward_data,
    rnn_backward_weights,
    rnn_forward,
)
from lowdnn.backend.handle import Handle
from lowdnn.enums import DataType
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    LowdnnError,
    MisalignedPointerError,
    NullPointerError,
    ShapeMismatchError,
    SizeInsufficientError,
)
from tests.support.errors import raises
from tests.support.rnn_step import NETWORK, Memory, Step, check
from tests.support.runtime import download

Arguments = dict[str, Any]

#: The ports of arguments that have other names.
_WEIGHTS = {"weight_space": "w", "dweight_space": "dw"}


@dataclass(frozen=True)
class Call:
    """A call, the arguments of its own, the ports that it writes, and the calls that come before it."""

    run: Callable[..., None]
    given: Arguments
    pointers: tuple[str, ...]
    outputs: tuple[str, ...]
    before: tuple[str, ...]

    def arguments(self, one: Step, memory: Memory) -> Arguments:
        (work, work_size), (reserve, reserve_size) = memory.spaces["work"], memory.spaces["reserve"]
        return {
            **self.given,
            "rnn_desc": one.rnn_desc, "dev_seq_lengths": 0, "x_desc": one.x_desc, "y_desc": one.y_desc,
            "h_desc": one.states("h"), **({} if "dw" in self.outputs else {"c_desc": one.states("c")}),
            **{pointer: memory[_WEIGHTS.get(pointer, pointer)] for pointer in self.pointers},
            "weight_space_size": one.weight_bytes,
            "work_space_size": work_size, "work_space": work,
            "reserve_space_size": reserve_size, "reserve_space": reserve,
        }  # fmt: skip


CALLS = {
    "rnn_forward": Call(
        rnn_forward,
        {"fwd_mode": ForwardMode.TRAINING},
        ("x", "y", "hx", "hy", "cx", "cy", "weight_space"),
        ("y", "hy", "cy"),
        (),
    ),
    "rnn_backward_data": Call(
        rnn_backward_data,
        {},
        ("y", "dy", "dx", "hx", "dhy", "dhx", "cx", "dcy", "dcx", "weight_space"),
        ("dx", "dhx", "dcx"),
        ("rnn_forward",),
    ),
    "rnn_backward_weights": Call(
        rnn_backward_weights,
        {"add_grad": WgradMode.SET},
        ("x", "hx", "y", "dweight_space"),
        ("dw",),
        ("rnn_forward", "rnn_backward_data"),
    ),
}
#: Pointers that may not be NULL.
NEEDED = {
    "rnn_forward": ("x", "y", "weight_space", "work_space", "reserve_space"),
    "rnn_backward_data": ("y", "dy", "dx", "weight_space", "work_space", "reserve_space"),
    "rnn_backward_weights": ("x", "y", "dweight_space", "work_space", "reserve_space"),
}

Bad = tuple[Callable[[Step, Memory], Arguments], type[LowdnnError], str, str, str]
#: By name: other arguments, the error, the field, the rule, the value.
OF_ALL_CALLS: dict[str, Bad] = {
    "no sequences": (lambda s, m: {"x_desc": None}, AttributeTypeError, "x_desc", "of type RNNDataDescriptor", "None"),
    "no network": (lambda s, m: {"rnn_desc": 3}, AttributeTypeError, "rnn_desc", "of type RNNDescriptor", "3"),
    "an array for an address": (
        lambda s, m: {"hx": np.ones(1)}, AttributeTypeError, "hx", "an integer", "array([1.])"
    ),
    "no h_desc": (lambda s, m: {"h_desc": None}, NullPointerError, "h_desc", "a descriptor for the states", "NULL"),
    "an odd state": (lambda s, m: {"hx": m["hx"] + 2}, MisalignedPointerError, "hx", "a multiple of 4", "0x"),
    "odd lengths": (
        lambda s, m: {"dev_seq_lengths": m["x"] + 2}, MisalignedPointerError, "dev_seq_lengths", "a multiple of 4", "0x"
    ),
    "an odd reserve": (
        lambda s, m: {"reserve_space": m.spaces["reserve"][0] + 8},
        MisalignedPointerError, "reserve_space", "a multiple of 16", "0x",
    ),
    "no lengths": (
        lambda s, m: {
            name: replace(desc, seq_length_array=None) for name, desc in (("x_desc", s.x_desc), ("y_desc", s.y_desc))
        },
        NullPointerError, "dev_seq_lengths", "a pointer where the descriptor has no lengths", "NULL",
    ),
    "small weights": (
        lambda s, m: {"weight_space_size": 4}, SizeInsufficientError, "weight_space_size", "at least", "4"
    ),
    "a small workspace": (
        lambda s, m: {"work_space_size": 255}, SizeInsufficientError, "work_space_size", "at least", "255"
    ),
    "a small reserve": (
        lambda s, m: {"reserve_space_size": 8}, SizeInsufficientError, "reserve_space_size", "this network's", "8"
    ),
    "another reserve": (
        lambda s, m: {"reserve_space_size": 1 << 20}, BadParamError, "reserve_space_size", "this network's", "1048576"
    ),
    "a reserve of more layers": (
        lambda s, m: {"reserve_space_size": deeper(s)}, BadParamError, "reserve_space_size", "this network's", ""
    ),
    "another size": (
        lambda s, m: {"x_desc": replace(s.x_desc, vector_size=6)}, ShapeMismatchError, "x_desc.vector_size", "5", "6"
    ),
    "another output size": (
        lambda s, m: {"y_desc": replace(s.y_desc, vector_size=8)}, ShapeMismatchError, "y_desc.vector_size", "16", "8"
    ),
    "another type": (
        lambda s, m: {"y_desc": replace(s.y_desc, data_type=DataType.HALF)},
        BadParamError, "y_desc.data_type", "FLOAT of the network", "HALF",
    ),
    "other lengths": (
        lambda s, m: {"y_desc": replace(s.y_desc, seq_length_array=(4, 2, 2))},
        ShapeMismatchError, "y_desc.seq_length_array", "(4, 2, 1) of x_desc", "(4, 2, 2)",
    ),
    "another layout": (
        lambda s, m: {"y_desc": replace(s.y_desc, layout=RNNDataLayout.BATCH_MAJOR_UNPACKED)},
        ShapeMismatchError, "y_desc.layout", "of x_desc", "",
    ),
    "more steps": (
        lambda s, m: {"y_desc": replace(s.y_desc, max_seq_length=5)},
        ShapeMismatchError, "y_desc.max_seq_length", "4 of x_desc", "5",
    ),
    "another batch": (
        lambda s, m: {"y_desc": replace(s.y_desc, batch_size=2, seq_length_array=(4, 2))},
        ShapeMismatchError, "y_desc.batch_size", "3 of x_desc", "2",
    ),
    "other states": (
        lambda s, m: {"h_desc": with_dims(s, (4, 3, 7))}, ShapeMismatchError, "h_desc.dims", "[4, 3, 8]", "[4, 3, 7]"
    ),
    "states of another type": (
        lambda s, m: {"h_desc": replace(s.states("h"), data_type=DataType.HALF)},
        BadParamError, "h_desc.data_type", "FLOAT of the network", "HALF",
    ),
    "no padded input": (
        lambda s, m: {"rnn_desc": replace(s.rnn_desc, aux_flags=0)},
        BadParamError, "rnn_desc.aux_flags", "1 for padded sequences", "0",
    ),
}  # fmt: skip
#: Arguments of calls that have cell states.
OF_CELLS: dict[str, Bad] = {
    "no c_desc": (lambda s, m: {"c_desc": None}, NullPointerError, "c_desc", "a descriptor for the states", "NULL"),
    "cells of more dimensions": (
        lambda s, m: {"c_desc": with_dims(s, (4, 3, 8, 1, 2))},
        ShapeMismatchError, "c_desc.dims", "[4, 3, 8]", "[4, 3, 8, 1, 2]",
    ),
    "cells with gaps": (
        lambda s, m: {"c_desc": replace(s.states("c"), strides=(48, 16, 1))},
        BadParamError, "c_desc.strides", "[24, 8, 1]", "[48, 16, 1]",
    ),
}  # fmt: skip
OF_FORWARD: dict[str, Bad] = {
    "no states of dropout": (
        lambda s, m: {
            "rnn_desc": replace(s.rnn_desc, dropout_desc=Dropout(0.5)),
            "reserve_space_size": m.spaces["reserve"][1] + 256,
        },
        NullPointerError, "dropout_desc.states", "a pointer to the states of dropout", "NULL",
    ),
    "a number for a mode": (lambda s, m: {"fwd_mode": 1}, AttributeTypeError, "fwd_mode", "of type ForwardMode", "1"),
}  # fmt: skip
OF_WEIGHTS: dict[str, Bad] = {
    "a number for a mode": (lambda s, m: {"add_grad": 0}, AttributeTypeError, "add_grad", "of type WgradMode", "0"),
}
BAD = {
    "rnn_forward": OF_ALL_CALLS | OF_CELLS | OF_FORWARD,
    "rnn_backward_data": OF_ALL_CALLS | OF_CELLS,
    "rnn_backward_weights": OF_ALL_CALLS | OF_WEIGHTS,
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_are_named_and_nothing_is_written(handle: Handle, name: str) -> None:
    one, call = Step(handle, NETWORK, RNNDataLayout.SEQ_MAJOR_UNPACKED, 4, (4, 2, 1)), CALLS[name]
    memory = one.memory()
    for earlier in call.before:
        CALLS[earlier].run(handle, **CALLS[earlier].arguments(one, memory))
    handle.synchronize()
    saved, given = reserve_of(memory), call.arguments(one, memory)
    for others, error, field, expected, got in BAD[name].values():
        with raises(error, f"{name}.{field}", expected=expected, got=got):
            call.run(handle, **(given | others(one, memory)))
    for pointer in NEEDED[name]:
        with raises(NullPointerError, f"{name}.{pointer}", expected="a pointer", got="NULL"):
            call.run(handle, **(given | {pointer: 0}))
    handle.synchronize()
    assert all(np.isnan(one.read(memory, port)).all() for port in call.outputs)
    assert reserve_of(memory) == saved
    call.run(handle, **given)
    check(one, {port: one.results(memory)[port] for port in call.outputs})


def reserve_of(memory: Memory) -> bytes:
    address, _ = memory.spaces["reserve"]
    (buffer,) = (held for held in memory.held if held.address == address)
    return download(buffer, np.uint8).tobytes()


def deeper(one: Step) -> int:
    """Bytes of the reserve space of a network with a layer more."""
    more = replace(one, rnn_desc=replace(one.rnn_desc, num_layers=3))
    return more.memory().spaces["reserve"][1]


def with_dims(one: Step, dims: tuple[int, ...]) -> Any:
    return replace(one.states("h"), dims=dims, strides=packed_strides(dims))

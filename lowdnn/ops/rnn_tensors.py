"""The tensors of recurrent networks by port: their dims, their types, and what the operations check of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowdnn.enums import DataType
from lowdnn.ops.base import HasPorts
from lowdnn.ops.norm import check_dims
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_saved import cell_type, saved_dims
from lowdnn.ops.rnn_weights import WeightSpace
from lowdnn.ops.tensor import Tensor, has_overlap, packed_strides
from lowdnn.schema import declared_in
from lowdnn.status import (
    BadParamError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
)

DATA_TYPES = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE)

Tensors = Mapping[str, Tensor | None]
#: By port: (whether the operation has a tensor, the condition for that in words). A port without one must be None.
Needs = Mapping[str, tuple[bool, str]]

SEQUENCES = ("x", "y", "dy", "dx")
_DROPOUT = ("dropout_seed", "dropout_offset")


def ports_of(operation: HasPorts) -> Tensors:
    """All tensors by port, None where there is none."""
    return {item.field: getattr(operation, item.field) for item in declared_in(type(operation))}


def dims_by_port(rnn: Rnn) -> Mapping[str, tuple[int, ...]]:
    """The dims of all tensors but sequences."""
    states = (rnn.pseudo_layers, rnn.batch_size, rnn.state_size)
    cells = (rnn.pseudo_layers, rnn.batch_size, rnn.hidden_size)
    return {
        **saved_dims(rnn),
        **dict.fromkeys(("hx", "hy", "dhy", "dhx"), states),
        **dict.fromkeys(("cx", "cy", "dcy", "dcx"), cells),
        **dict.fromkeys(("w", "dw"), (WeightSpace(rnn).element_count,)),
        **dict.fromkeys(_DROPOUT, (1,)),
        "seq_lengths": (rnn.batch_size,),
    }


def type_of(port: str, data_type: DataType) -> DataType:
    """The type of the tensor at ``port``, of a network in ``data_type``."""
    if port == "cells":
        return cell_type(data_type)
    if port in _DROPOUT:
        return DataType.INT64
    return DataType.INT32 if port == "seq_lengths" else data_type


def check(where: str, rnn: Rnn, tensors: Tensors) -> None:
    """Raises the error of a tensor, by its port, that does not fit to the network or to the others."""
    there = {port: tensor for port, tensor in tensors.items() if tensor is not None}
    sequences = {port: tensor for port, tensor in there.items() if port in SEQUENCES}
    data_type = next(iter(sequences.values())).data_type
    if rnn.uses_tf32 and data_type is not DataType.FLOAT:
        raise BadParamError.at(f"{where}.rnn.uses_tf32", expected="false but for FLOAT", got=data_type.name)
    _check_sequences(where, rnn, sequences, there.get("seq_lengths"))
    for port, tensor in there.items():
        _check_type(where, port, tensor, data_type)
        if port not in sequences and tensor.strides != packed_strides(tensor.dims):
            expected = f"row-major strides {list(packed_strides(tensor.dims))}"
            raise UnsupportedLayoutError.at(f"{where}.{port}.strides", expected=expected, got=list(tensor.strides))
    dims = dims_by_port(rnn)
    for port, tensor in there.items():
        check_dims(where, dims.get(port, tensor.dims), {port: tensor})


def check_needs(where: str, tensors: Tensors, needs: Needs) -> None:
    for port, (is_needed, reason) in needs.items():
        tensor = tensors[port]
        if is_needed != (tensor is not None):
            expected = f"{'a tensor' if is_needed else 'none'} {reason}"
            raise BadParamError.at(f"{where}.{port}", expected=expected, got="none" if tensor is None else tensor.label)


def taken(kind: type, tensors: Mapping[str, Tensor], needs: Needs) -> dict[str, Any]:
    """The part of ``tensors`` that an operation of ``kind`` with these ``needs`` may have."""
    ports = [item.field for item in declared_in(kind) if needs.get(item.field, (True, ""))[0]]
    return {port: tensors[port] for port in ports if port in tensors}


def dropout_needs(rnn: Rnn) -> Needs:
    """Seed and offset are there exactly where elements are dropped."""
    return dict.fromkeys(_DROPOUT, (rnn.drops, f"{'with' if rnn.drops else 'without'} dropout between layers"))


def _check_sequences(where: str, rnn: Rnn, tensors: Mapping[str, Tensor], lengths: Tensor | None) -> None:
    for port, tensor in tensors.items():
        size = rnn.input_size if port in ("x", "dx") else rnn.output_size
        padded, most_rows = (rnn.max_length, rnn.batch_size, size), rnn.max_length * rnn.batch_size
        if tensor.rank not in (2, 3):
            expected = "(T, B, elements), or (rows, elements) where packed"
            raise UnsupportedShapeError.at(f"{where}.{port}.dims", expected=expected, got=list(tensor.dims))
        if tensor.rank == 2 and lengths is None:
            raise BadParamError.at(f"{where}.seq_lengths", expected=f"a tensor with a packed {port}", got="none")
        if tensor.rank == 2 and not (1 <= tensor.dims[0] <= most_rows and tensor.dims[1] == size):
            expected = f"1 to {most_rows} rows of {size} elements"
            raise ShapeMismatchError.at(f"{where}.{port}.dims", expected=expected, got=list(tensor.dims))
        if tensor.rank == 3:
            check_dims(where, padded, {port: tensor})
        if tensor.strides[-1] != 1 or has_overlap(tensor.dims, tensor.strides):
            expected = "rows of contiguous elements that do not overlap"
            raise UnsupportedLayoutError.at(f"{where}.{port}.strides", expected=expected, got=list(tensor.strides))
    if len({tensor.dims[:-1] for tensor in tensors.values()}) > 1:
        got = ", ".join(f"{port} {list(tensor.dims)}" for port, tensor in tensors.items())
        raise ShapeMismatchError.at(f"{where}.dims", expected="the same rows in all sequences", got=got)


def _check_type(where: str, port: str, tensor: Tensor, data_type: DataType) -> None:
    expected = (type_of(port, data_type),) if data_type in DATA_TYPES else DATA_TYPES
    if tensor.data_type not in expected:
        names = " or ".join(kind.name for kind in expected)
        raise UnsupportedDataTypeError.at(f"{where}.{port}.data_type", expected=names, got=tensor.data_type.name)

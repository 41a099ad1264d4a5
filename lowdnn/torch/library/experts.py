"""Grouped products of a mixture of experts: each routed row times the matrix of its expert.

    y[to(r)] = x[from(r)] @ weight[expert(r)]

Rows are sorted by expert. ``ops.moe_grouped_matmul`` has the forms: rows as they are, gathered, or scattered.
"""

from __future__ import annotations

from typing import Any

import torch

from lowdnn.enums import MoeGroupedMatmulMode
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError
from lowdnn.torch.library.definition import Definition, check_floats, check_shape, wide_type
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.sketch import Sketch, compute_type_of, data_type_of
from lowdnn.torch.sketch import check_floats as decline_other_types

_X, _WEIGHT, _FIRST, _INDEX, _SLOTS = range(5)
_WHERE = "grouped_matmul"


def grouped_matmul(x: Any, weight: Any, first_row: Any, *, gather: Any = None, scatter: Any = None) -> Any:
    """The rows of x (rows, K), each times its expert's matrix of ``weight`` (experts, K, N): (rows, N) in x's type.

    first_row: INT32 (experts,), ascending from 0: an expert's rows end where the next one's begin, the last one's with
    all rows.
    gather: INT32 (R,), the row of x that each routed row reads; the result has R rows.
    scatter: INT32 (rows,), the row of the result that each row becomes, a permutation.
    Values of these are not checked. x and weight, of one type, have gradients. Raises BadParamError for other shapes
    and types, and for ``gather`` and ``scatter`` at once.
    """
    check_floats(_WHERE, x=x, weight=weight)
    for name, tensor in (("first_row", first_row), ("gather", gather), ("scatter", scatter)):
        if tensor is None and name != "first_row":
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int32:
            got = getattr(tensor, "dtype", type(tensor).__name__)
            raise BadParamError.at(f"torch.ops.{_WHERE}.{name}", expected="a tensor of int32", got=got)
    check_shape(_WHERE, "x", x, (None, None), "[rows, K]")
    check_shape(_WHERE, "weight", weight, (None, x.shape[1], None), f"[experts, {x.shape[1]}, N]")
    check_shape(_WHERE, "first_row", first_row, (weight.shape[0],), f"[{weight.shape[0]}], one for each expert")
    check_shape(_WHERE, "gather", gather, (None,), "[R]")
    check_shape(_WHERE, "scatter", scatter, (x.shape[0],), f"[{x.shape[0]}], one for each row")
    if weight.dtype != x.dtype:
        raise BadParamError.at(f"torch.ops.{_WHERE}.weight", expected=f"a tensor of {x.dtype}, as x", got=weight.dtype)
    if gather is not None and scatter is not None:
        raise BadParamError.at(f"torch.ops.{_WHERE}.scatter", expected="None beside gather", got="a tensor")
    return torch.ops.lowdnn.grouped_matmul(x, weight, first_row, gather, scatter)


def _read(x: Any, weight: Any, first_row: Any, gather: Any, scatter: Any) -> Arguments:
    """A scattered row goes to slot 0 of 1 of the row that it becomes."""
    mode = MoeGroupedMatmulMode.NONE if gather is None else MoeGroupedMatmulMode.GATHER
    slots = None
    if scatter is not None:
        mode, slots = MoeGroupedMatmulMode.SCATTER, scatter.new_zeros(1).expand(scatter.shape)
    index = gather if scatter is None else scatter
    return (x, weight, first_row, optional(index), optional(slots)), (mode,)


def _sketched(sketch: Sketch, mode: MoeGroupedMatmulMode) -> Result:
    x, weight, _, index, _ = sketch.tensors
    decline_other_types(x, weight)
    count, columns = (x if index.shape is None else index).shape[0], weight.shape[2]
    y = sketch.allocate((count, columns), x.dtype)
    ports = {"token_index": _INDEX} if mode is not MoeGroupedMatmulMode.NONE else {}
    if mode is MoeGroupedMatmulMode.SCATTER:
        ports["token_ks"] = _SLOTS
    routing = {port: _column(sketch, place, 1) for port, place in ports.items()}
    sketch.add(
        MoeGroupedMatmul(
            mode, compute_type_of(data_type_of(x.dtype)), _rows(sketch, _X), sketch.at(_WEIGHT),
            _column(sketch, _FIRST, 0), _rows(sketch, y), **routing,
            top_k=1 if mode is MoeGroupedMatmulMode.SCATTER else 0,
        )
    )  # fmt: skip
    sketch.end_step()
    return y


def _rows(sketch: Sketch, place: int) -> Tensor:
    """A matrix as a batch of one."""
    rows, columns = sketch.shape_at(place)
    row, column = sketch.strides_at(place)
    return sketch.at(place, (1, rows, columns), (rows * row, row, column))


def _column(sketch: Sketch, place: int, axis: int) -> Tensor:
    """A vector along one of three axes."""
    (extent,), (step,) = sketch.shape_at(place), sketch.strides_at(place)
    dims = tuple(extent if own == axis else 1 for own in range(3))
    return sketch.at(place, dims, (step,) * 3)


def _plain(x: Any, weight: Any, first_row: Any, gather: Any, scatter: Any) -> Any:
    wide = wide_type(x)
    rows = (x if gather is None else x.index_select(0, gather)).to(wide)
    owner = _owners(first_row, rows)
    y = rows.new_zeros(rows.shape[0], weight.shape[2])
    for expert in range(weight.shape[0]):
        y = torch.where(owner == expert, rows @ weight[expert].to(wide), y)
    y = y.to(x.dtype)
    return y if scatter is None else torch.zeros_like(y).index_copy(0, scatter.long(), y)


def _owners(first_row: Any, rows: Any) -> Any:
    """The expert of each row, as a column."""
    places = torch.arange(rows.shape[0], device=rows.device, dtype=torch.int32)
    return (places[:, None] >= first_row).sum(1, keepdim=True) - 1


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Any) -> Any:
    x, weight, first_row, gather, scatter = ctx.saved_tensors
    routed = dy if scatter is None else dy.index_select(0, scatter)
    dx, dweight = None, None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.lowdnn.grouped_matmul(routed, weight.transpose(1, 2), first_row, None, None)
        if gather is not None:
            wide = torch.zeros(x.shape, dtype=wide_type(x), device=x.device)
            dx = wide.index_add(0, gather, dx.to(wide.dtype)).to(x.dtype)
    if ctx.needs_input_grad[1]:
        rows = x if gather is None else x.index_select(0, gather)
        dweight = torch.ops.lowdnn.grouped_matmul_weights(routed, rows, first_row)
    return dx, dweight, None, None, None


def _read_weights(dy: Any, x: Any, first_row: Any) -> Arguments:
    return (dy, x, first_row), ()


def _sketched_weights(sketch: Sketch) -> Result:
    dy, x, first_row = sketch.tensors
    decline_other_types(dy, x)
    place = sketch.allocate((first_row.shape[0], x.shape[1], dy.shape[1]), x.dtype)
    compute = compute_type_of(data_type_of(x.dtype))
    sketch.add(
        MoeGroupedMatmulBackward(
            compute, _rows(sketch, 0), _rows(sketch, 1), _column(sketch, _FIRST, 0), sketch.at(place)
        )
    )
    sketch.end_step()
    return place


def _plain_weights(dy: Any, x: Any, first_row: Any) -> Any:
    wide = wide_type(x)
    owner = _owners(first_row, x)
    parts = [torch.where(owner == expert, x.to(wide), 0.0).t() @ dy.to(wide) for expert in range(first_row.shape[0])]
    return torch.stack(parts).to(x.dtype)


def _second_backward(ctx: Any, gradient: Any) -> Any:
    dy, x, first_row = ctx.saved_tensors
    product = torch.ops.lowdnn.grouped_matmul
    return (
        product(x, gradient, first_row, None, None),
        product(dy, gradient.transpose(1, 2), first_row, None, None),
        None,
    )


def _overload(name: str, read: Any, sketched: Any) -> Overload:
    return Overload(f"lowdnn::{name}", "grouped_matmul", read, sketched, kind="matmul", keys=("CPU",))


DEFINITIONS = (
    Definition(
        "grouped_matmul",
        "(Tensor x, Tensor weight, Tensor first_row, Tensor? gather, Tensor? scatter) -> Tensor",
        _plain, _overload("grouped_matmul", _read, _sketched), _save, _backward,
    ),
    Definition(
        "grouped_matmul_weights", "(Tensor dy, Tensor x, Tensor first_row) -> Tensor", _plain_weights,
        _overload("grouped_matmul_weights", _read_weights, _sketched_weights), _save, _second_backward,
    ),
)  # fmt: skip

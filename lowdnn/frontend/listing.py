"""A pygraph as a list that people read: its inputs, its operations in their order, its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lowdnn.frontend.data_types import data_type
from lowdnn.frontend.graph_nodes import Node
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.ops.tensor import channels_last_strides, packed_strides

_UNKNOWN = "not inferred yet"


def listing(
    title: str,
    inputs: Iterable[Tensor],
    nodes: Iterable[Node],
    outputs: Iterable[Tensor],
    operations: Iterable[str],
    io_data_type: data_type,
) -> str:
    """The text.

    operations: their names, where the graph has no nodes.  io_data_type: an input without a data type will have it.

    Tensors stand with data type, extents and, where they are not packed in row-major order, strides in elements.
    """
    sections = [
        ("inputs", [_row(tensor, io_data_type) for tensor in inputs]),
        ("operations", [_node_row(node) for node in nodes] or [(operation,) for operation in operations]),
        ("outputs", [_row(tensor, data_type.NOT_SET) for tensor in outputs]),
    ]
    return "\n".join([title, *(line for name, rows in sections if rows for line in (f"  {name}", *_aligned(rows)))])


def _row(tensor: Tensor, default: data_type) -> tuple[str, ...]:
    kind = tensor.get_data_type() or default
    return tensor.get_name() or f"uid {tensor.get_uid()}", kind.name if kind else _UNKNOWN, _layout(tensor)


def _node_row(node: Node) -> tuple[str, ...]:
    arguments = [f"{port}={_value(tensor)}" for port, tensor in node.inputs.items()]
    tensors = {id(tensor) for tensor in node.inputs.values()}
    given = [
        f"{name}={value}"
        for name, value in node.params.items()
        if name != "mode" and value is not None and id(value) not in tensors and not _is_constant(node, value)
    ]
    names = ", ".join(tensor.get_name() for tensor in node.outputs.values())
    return names, f"= {node.method}({', '.join([*arguments, *given])})"


def _is_constant(node: Node, value: object) -> bool:
    """Whether ``value`` is a number that an input stands for."""
    return any(tensor.is_constant and tensor.get_pass_by_value() == value for tensor in node.inputs.values())


def _value(tensor: Tensor) -> str:
    return str(tensor.get_pass_by_value()) if tensor.is_constant else tensor.get_name()


def _layout(tensor: Tensor) -> str:
    dims, strides = tuple(tensor.get_dim()), tuple(tensor.get_stride())
    if not dims:
        return _UNKNOWN
    text = str(list(dims))
    if tensor.get_is_pass_by_value():
        return f"{text}, passed by value"
    if strides == packed_strides(dims):
        return text
    return f"{text}, channels last" if strides == channels_last_strides(dims) else f"{text}, strides {list(strides)}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()

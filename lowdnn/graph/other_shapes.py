"""A graph with other extents: stored tensors get the dims and strides that are given, and virtual ones follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops import matmul, pointwise, transpose
from lowdnn.ops.base import Operation, inputs_of, outputs_of, with_tensors
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.ragged import RaggedLoad, RaggedMove, packed_shape
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.ops.transpose import Transpose
from lowdnn.status import BadParamError, InvalidDynamicShapeError

Dims = tuple[int, ...]


def with_shapes(graph: OperationGraph, shapes: Mapping[int, tuple[Dims, Dims]]) -> OperationGraph:
    """``graph`` with tensors of other (dims, strides), by uid; a ragged tensor's are those of its padded form.

    Raises BadParamError for a uid that the graph has not and for another rank, InvalidDynamicShapeError where the dims
    of a virtual tensor do not follow, and the errors of operations whose tensors no longer fit each other.
    """
    for uid, (dims, strides) in shapes.items():
        known = graph.tensors.get(uid)
        if known is None or known.is_virtual:
            raise BadParamError.at("with_shapes.uid", expected="a stored tensor of the graph", got=uid)
        if (len(dims), len(strides)) != (known.rank, known.rank):
            got = f"{list(dims)} and {list(strides)}"
            raise BadParamError.at(
                f"with_shapes: {known.label}", expected=f"dims and strides of rank {known.rank}", got=got
            )
    packed = _packed_uids(graph)
    tensors: dict[int, Tensor] = {}
    for uid, shape in shapes.items():
        dims, strides = packed_shape(*shape) if uid in packed else shape
        tensors[uid] = replace(graph.tensors[uid], dims=dims, strides=strides)
    return OperationGraph(_followed(op, tensors, shapes) for op in graph.operations)


def _packed_uids(graph: OperationGraph) -> frozenset[int]:
    return frozenset(op.packed.uid for op in graph.operations if isinstance(op, RaggedMove))


def _followed(op: Operation, tensors: dict[int, Tensor], shapes: Mapping[int, tuple[Dims, Dims]]) -> Operation:
    """``op`` on ``tensors``, to which its virtual outputs are added where they change."""
    for output in outputs_of(op).values():
        if not output.is_virtual or output.uid in tensors:
            continue
        dims = shapes[op.x.uid][0] if isinstance(op, RaggedLoad) and op.x.uid in shapes else _dims(op, output, tensors)
        if dims != output.dims:
            order = sorted(range(output.rank), key=lambda axis: (-output.strides[axis], axis))
            tensors[output.uid] = replace(output, dims=dims, strides=packed_strides(dims, tuple(order)))
    return with_tensors(op, tensors)


def _dims(op: Operation, output: Tensor, tensors: Mapping[int, Tensor]) -> Dims:
    """The dims of a virtual output of ``op``, whose inputs are in ``tensors`` where they changed."""
    old = inputs_of(op)
    new = {port: tensors.get(tensor.uid, tensor).dims for port, tensor in old.items()}
    match op:
        case MatmulOperation():
            return matmul.output_dims(new["a"], new["b"])
        case ConvolutionForward():
            return op.convolution.output_dims(new["x"], new["w"])
        case Transpose():
            return transpose.output_dims(new["x"], op.permutation)
        case PointwiseOperation() if output.dims == pointwise.output_dims({port: x.dims for port, x in old.items()}):
            return pointwise.output_dims(new)
    return tuple(
        _extent(output, axis, [(x.dims[axis], new[port][axis]) for port, x in old.items() if x.rank == output.rank])
        for axis in range(output.rank)
    )


def _extent(output: Tensor, axis: int, inputs: list[tuple[int, int]]) -> int:
    """The new extent of ``output`` along ``axis``: that of the inputs whose old extent was the output's.

    inputs: the old and the new extent of each input.  An extent of 1 stays 1 if an input had more: it was reduced.
    """
    own = output.dims[axis]
    found = {now for before, now in inputs if before == own}
    if own == 1 and any(before != 1 for before, _ in inputs):
        return 1
    if len(found) > 1:
        got = " and ".join(map(str, sorted(found)))
        raise InvalidDynamicShapeError.at(
            f"with_shapes: {output.label}.dims[{axis}]", expected="one extent that it follows", got=got
        )
    return found.pop() if found else own

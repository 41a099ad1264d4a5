"""Kernels of the gradients of convolutions and products, compiled into the disk cache during a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lowdnn.backend.handle import Handle
from lowdnn.engines.base import Engine
from lowdnn.enums import HeurMode, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, rank
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import Plan


def begin_gradients(handle: Handle, forward: Candidate) -> None:
    """Begins to compile, in other threads, what the gradients of ``forward`` are likely to need.

    Does nothing where ``forward`` has no ``gradients_of``, or without a disk cache. Errors are those of the plans
    that need the kernels then.
    """
    for gradient in gradients_of(forward.graph):
        handle.runtime.begin_kernels(partial(_likely_plan, handle, gradient, forward.engine))


def gradients_of(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    """The graphs of the gradients for both operands, if ``graph`` is one convolution or one product, with a bias or
    without; otherwise none.

    A product's gradient is stored as PyTorch asks for it: that of a transposed operand is transposed, too.
    """
    (operation, *others) = graph.operations
    response = _response(operation, others)
    if response is None:
        return ()
    if isinstance(operation, ConvolutionForward):
        geometry, x, w = operation.convolution, operation.x, operation.w
        data = ConvolutionBackwardData(geometry, w, dy=response, dx=x)
        return OperationGraph((data,)), OperationGraph((ConvolutionBackwardFilter(geometry, x, dy=response, dw=w),))
    a, b, dc = operation.a, operation.b, response
    of_a = (b, _transposed(dc)) if _is_transposed(a) else (dc, _transposed(b))
    of_b = (_transposed(dc), a) if _is_transposed(b) else (_transposed(a), dc)
    return tuple(_product(operation, *factors, own) for factors, own in ((of_a, a), (of_b, b)))


def _response(operation: object, others: Sequence[object]) -> Tensor | None:
    """What a convolution or product with its bias writes; None for graphs of other kinds."""
    if not isinstance(operation, ConvolutionForward | MatmulOperation):
        return None
    own = operation.y if isinstance(operation, ConvolutionForward) else operation.c
    if not others:
        return own
    (add, *more) = others
    if more or not isinstance(add, PointwiseOperation) or add.pointwise.mode is not PointwiseMode.ADD:
        return None
    summand = add.b if add.x.uid == own.uid else add.x
    is_bias = summand is not None and summand.element_count == max(summand.dims)
    return add.y if is_bias and add.y.dims == own.dims else None


def _product(like: MatmulOperation, a: Tensor, b: Tensor, operand: Tensor) -> OperationGraph:
    """The graph of a @ b, stored contiguously in place of ``operand``."""
    dims = (*a.dims[:-1], b.dims[-1])
    result = replace(operand, dims=dims, strides=packed_strides(dims))
    return OperationGraph((MatmulOperation(like.matmul, a, b, result),))


def _transposed(tensor: Tensor) -> Tensor:
    dims, strides = tensor.dims, tensor.strides
    return replace(tensor, dims=(*dims[:-2], dims[-1], dims[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def _is_transposed(tensor: Tensor) -> bool:
    """Whether the elements of a column lie side by side, and those of a row do not."""
    return tensor.strides[-2] == 1 and tensor.strides[-1] != 1


def _likely_plan(handle: Handle, graph: OperationGraph, forward: Engine) -> Plan | None:
    """The first plan that whoever chose ``forward`` may take, by engines' numerical notes; None where there is none."""
    allowed = set(forward.numerical_notes)
    candidates = rank(graph, handle.arch, HeurMode.INSTANT, handle.engines).candidates
    return next((found.plan for found in candidates if allowed.issuperset(found.engine.numerical_notes)), None)

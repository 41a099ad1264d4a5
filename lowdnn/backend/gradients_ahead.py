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
    if isinstance(operation, ConvolutionForward):
        return _of_convolution(operation, _behind_bias(operation.y, others))
    if isinstance(operation, MatmulOperation):
        return _of_product(operation, _behind_bias(operation.c, others))
    return ()


def _of_convolution(forward: ConvolutionForward, dy: Tensor | None) -> tuple[OperationGraph, ...]:
    if dy is None:
        return ()
    geometry, x, w = forward.convolution, forward.x, forward.w
    gradients = ConvolutionBackwardData(geometry, w, dy=dy, dx=x), ConvolutionBackwardFilter(geometry, x, dy=dy, dw=w)
    return tuple(OperationGraph((gradient,)) for gradient in gradients)


def _of_product(forward: MatmulOperation, dc: Tensor | None) -> tuple[OperationGraph, ...]:
    if dc is None:
        return ()
    a, b = forward.a, forward.b
    of_a = (b, _transposed(dc)) if _is_transposed(a) else (dc, _transposed(b))
    of_b = (_transposed(dc), a) if _is_transposed(b) else (_transposed(a), dc)
    return _product(forward, *of_a, operand=a), _product(forward, *of_b, operand=b)


def _behind_bias(response: Tensor, others: Sequence[object]) -> Tensor | None:
    """``response``, or its sum with a bias that ``others`` computes; None where they compute anything else."""
    if not others:
        return response
    (add, *more) = others
    if more or not isinstance(add, PointwiseOperation) or add.pointwise.mode is not PointwiseMode.ADD:
        return None
    summands = [tensor for tensor in (add.x, add.b) if tensor is not None and tensor.uid != response.uid]
    is_bias = all(tensor.element_count == max(tensor.dims) for tensor in summands)
    return add.y if is_bias and add.y is not None and add.y.dims == response.dims else None


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

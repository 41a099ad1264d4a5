"""Reductions, with the places of minima and maxima, and the gradient of a convolution's bias."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from lowdnn import dtypes
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.reduction_indices import EXTREMES, add_indices, index_bytes
from lowdnn.capi.calls.shared import was_set
from lowdnn.capi.classic_enums import ReduceTensorIndices
from lowdnn.capi.descriptors import ReduceTensorDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Builder, Launched, compute_type_of
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import NanPropagation, ReduceTensorOp
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import BadParamError, ShapeMismatchError, SizeInsufficientError

#: A stand-in address with the largest alignment that an engine needs, for calls without addresses.
_ALIGNED = 256
#: The value that replaces a NaN where an extreme passes over it.
_NEUTRAL = {ReduceTensorOp.MIN: float("inf"), ReduceTensorOp.MAX: -float("inf"), ReduceTensorOp.AMAX: 0.0}


def reduce_tensor(
    state: State, handle: Address, reduction: Address, indices: Address, indices_bytes: int, workspace: Address,
    workspace_bytes: int, alpha: Address, a_desc: Address, a: Address, beta: Address, c_desc: Address, c: Address,
) -> Launched:  # fmt: skip
    """C = alpha * reduction(A) + beta * C over the axes along which C has extent 1.

    indices: packed as C is in row-major order; each is the place among the elements that are reduced, in row-major
    order, of the first extreme, or of the first NaN where that propagates. Not read without FLATTENED_INDICES.
    """
    frame = Frame.of(state, handle, "cudnnReduceTensor")
    found, source, target = _operands(frame, reduction, a_desc, c_desc)
    scales = (frame.scale(alpha, found.compute_type, "alpha"), frame.scale(beta, found.compute_type, "beta"))
    needed = _indices_bytes(found, target)
    if indices_bytes < needed:
        where = f"{frame.name}.indicesSizeInBytes"
        raise SizeInsufficientError.at(where, expected=f"at least {needed}", got=indices_bytes)
    _build(frame, frame.builder, found, (source, a), (target, c), scales, indices)

    def told_bytes() -> int:
        return _workspace_bytes(frame, found, source, target)

    return frame.run((workspace, workspace_bytes), told_bytes=told_bytes)


def reduction_workspace_size(
    state: State, handle: Address, reduction: Address, a_desc: Address, c_desc: Address, size: Address
) -> None:
    """The most that any alpha and beta need."""
    frame = Frame.of(state, handle, "cudnnGetReductionWorkspaceSize")
    needed = _workspace_bytes(frame, *_operands(frame, reduction, a_desc, c_desc))
    write_outputs((size, "Q", needed, f"{frame.name}.sizeInBytes"))


def reduction_indices_size(
    state: State, handle: Address, reduction: Address, a_desc: Address, c_desc: Address, size: Address
) -> None:
    """One index for each element of C; 0 where the descriptor asks for none."""
    frame = Frame.of(state, handle, "cudnnGetReductionIndicesSize")
    found, _, target = _operands(frame, reduction, a_desc, c_desc)
    write_outputs((size, "Q", _indices_bytes(found, target), f"{frame.name}.sizeInBytes"))


def backward_bias(
    state: State, handle: Address, alpha: Address, dy_desc: Address, dy: Address, beta: Address, db_desc: Address,
    db: Address,
) -> Launched:  # fmt: skip
    """db[k] = alpha * (the sum of dy[:, k, ...]) + beta * db[k]."""
    frame = Frame.of(state, handle, "cudnnConvolutionBackwardBias")
    gradient, source = frame.tensor(dy_desc, dy, "dy"), frame.descriptor(dy_desc, "dy")
    target = frame.descriptor(db_desc, "db")
    expected = (1, source.dims[1], *(1,) * (len(source.dims) - 2))
    if target.dims != expected:
        raise ShapeMismatchError.at(f"{frame.name}.dbDesc.dims", expected=list(expected), got=list(target.dims))

    def write(result: Tensor) -> None:
        frame.builder.reduced(gradient, result, ReduceTensorOp.ADD)

    frame.builder.store(write, target, db, frame.scales(alpha, beta, target), f"{frame.name}.db")
    return frame.run()


def _operands(
    frame: Frame, reduction: Address, a_desc: Address, c_desc: Address
) -> tuple[ReduceTensorDescriptor, TensorDescriptor, TensorDescriptor]:
    """The descriptors of the reduction, A and C, checked against each other."""
    found = was_set(frame.state, reduction, ReduceTensorDescriptor, f"{frame.name}.reduceTensorDesc")
    source, target = frame.descriptor(a_desc, "a"), frame.descriptor(c_desc, "c")
    frame.check_repeats(target, source, "c")
    if found.indices is ReduceTensorIndices.FLATTENED_INDICES and found.operation not in EXTREMES:
        expected = " or ".join(operation.name for operation in EXTREMES)
        raise BadParamError.at(
            f"{frame.name}.reduceTensorOp", expected=f"{expected} for indices", got=found.operation.name
        )
    return found, source, target


def _build(
    frame: Frame, builder: Builder, reduction: ReduceTensorDescriptor, a: tuple[TensorDescriptor, Address],
    c: tuple[TensorDescriptor, Address], scales: tuple[float, float], indices: Address,
) -> None:  # fmt: skip
    """Adds the reduction of a call to the graph. ``a`` and ``c``: descriptors and addresses."""
    source = builder.tensor(*a, f"{frame.name}.A")
    passes_nan = reduction.nan_propagation is NanPropagation.PROPAGATE_NAN
    neutral = _NEUTRAL.get(reduction.operation)
    if neutral is not None and not passes_nan and dtypes.info(source.data_type).kind is dtypes.Kind.FLOAT:
        compute = compute_type_of(source.data_type)
        source = builder.without_nan(source, builder.constant(neutral, source.rank, compute))

    def write(result: Tensor) -> None:
        builder.reduced(source, result, reduction.operation)

    if reduction.indices is ReduceTensorIndices.FLATTENED_INDICES:
        extreme = builder.virtual(c[0].dims, compute_type_of(source.data_type))
        write(extreme)
        add_indices(builder, source, extreme, indices, reduction.indices_type, frame.name)
        builder.blend(extreme, *c, scales, f"{frame.name}.C")
    else:
        builder.store(write, *c, scales, f"{frame.name}.C")


def _indices_bytes(reduction: ReduceTensorDescriptor, target: TensorDescriptor) -> int:
    if reduction.indices is ReduceTensorIndices.NO_INDICES:
        return 0
    return prod(target.dims) * index_bytes(reduction.indices_type)


def _workspace_bytes(
    frame: Frame, reduction: ReduceTensorDescriptor, source: TensorDescriptor, target: TensorDescriptor
) -> int:
    """The most that aligned tensors need, with any alpha and beta."""
    needed = 0
    for scales in ((1.0, 0.0), (2.0, 0.0), (2.0, 1.0)):
        builder = Builder()
        _build(frame, builder, reduction, (source, _ALIGNED), (target, _ALIGNED), scales, _ALIGNED)
        planned = frame.state.graphs.planned(frame.handle, builder)
        needed = max(needed, planned.candidate(0, frame.name).plan.workspace_bytes)
    return size_anywhere(needed)


CALLS: Mapping[str, Call] = {
    "cudnnReduceTensor": reduce_tensor,
    "cudnnGetReductionWorkspaceSize": reduction_workspace_size,
    "cudnnGetReductionIndicesSize": reduction_indices_size,
    "cudnnConvolutionBackwardBias": backward_bias,
}

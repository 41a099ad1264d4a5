"""Softmax and its gradient, reductions, and the gradient of a convolution's bias."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import member, was_set
from lowdnn.capi.classic_enums import ReduceTensorIndices, SoftmaxAlgorithm, SoftmaxMode
from lowdnn.capi.descriptors import ReduceTensorDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Builder, compute_type_of
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import PointwiseMode, ReduceTensorOp
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor
from lowdnn.status import NotSupportedError, ShapeMismatchError

#: An address with all alignment that an engine could ask for, where a call has none.
_ALIGNED = 256


def softmax_forward(
    state: State, handle: Address, algorithm: int, mode: int, alpha: Address, x_desc: Address, x: Address,
    beta: Address, y_desc: Address, y: Address,
) -> None:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnSoftmaxForward")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    frame.check_dims(frame.descriptor(x_desc, "x"), target, "y")
    is_log = member(SoftmaxAlgorithm, algorithm, f"{frame.name}.algo") is SoftmaxAlgorithm.LOG
    axes = _axes(frame, mode, target)

    def write(result: Tensor) -> None:
        frame.builder.operations.append(Softmax(source, result, axes=axes, is_log=is_log))

    frame.builder.store(write, target, y, frame.scales(alpha, beta, target), f"{frame.name}.y")
    frame.run()


def softmax_backward(
    state: State, handle: Address, algorithm: int, mode: int, alpha: Address, y_desc: Address, y: Address,
    dy_desc: Address, dy: Address, beta: Address, dx_desc: Address, dx: Address,
) -> None:  # fmt: skip
    """dx = y * (dy - sum(y * dy)); of the logarithm, dx = dy - exp(y) * sum(dy)."""
    frame = Frame.of(state, handle, "cudnnSoftmaxBackward")
    values, gradient = frame.tensor(y_desc, y, "y"), frame.tensor(dy_desc, dy, "dy")
    target = frame.descriptor(dx_desc, "dx")
    for argument, address in (("y", y_desc), ("dy", dy_desc)):
        frame.check_dims(target, frame.descriptor(address, argument), argument)
    is_log = member(SoftmaxAlgorithm, algorithm, f"{frame.name}.algo") is SoftmaxAlgorithm.LOG
    axes, builder, compute = _axes(frame, mode, target), frame.builder, compute_type_of(target.data_type)
    sums = tuple(1 if axis in axes else extent for axis, extent in enumerate(target.dims))

    def between(dims: tuple[int, ...] = target.dims) -> Tensor:
        return builder.virtual(dims, compute)

    def write(result: Tensor) -> None:
        if is_log:
            total = _reduced(builder, gradient, between(sums), ReduceTensorOp.ADD)
            weights = builder.pointwise(PointwiseMode.EXP, between(), values)
            share = builder.pointwise(PointwiseMode.MUL, between(), weights, total)
            builder.pointwise(PointwiseMode.SUB, result, gradient, share)
            return
        product = builder.pointwise(PointwiseMode.MUL, between(), values, gradient)
        total = _reduced(builder, product, between(sums), ReduceTensorOp.ADD)
        centred = builder.pointwise(PointwiseMode.SUB, between(), gradient, total)
        builder.pointwise(PointwiseMode.MUL, result, centred, values)

    builder.store(write, target, dx, frame.scales(alpha, beta, target), f"{frame.name}.dx")
    frame.run()


def reduce_tensor(
    state: State, handle: Address, reduction: Address, indices: Address, indices_bytes: int, workspace: Address,
    workspace_bytes: int, alpha: Address, a_desc: Address, a: Address, beta: Address, c_desc: Address, c: Address,
) -> None:  # fmt: skip
    """C = alpha * reduction(A) + beta * C over the axes along which C has extent 1."""
    frame = Frame.of(state, handle, "cudnnReduceTensor")
    found = _reduction(state, frame.name, reduction)
    source, target = frame.tensor(a_desc, a, "a"), frame.descriptor(c_desc, "c")
    frame.check_repeats(target, frame.descriptor(a_desc, "a"), "c")
    scales = (frame.scale(alpha, found.compute_type, "alpha"), frame.scale(beta, found.compute_type, "beta"))

    def write(result: Tensor) -> None:
        _reduced(frame.builder, source, result, found.operation)

    frame.builder.store(write, target, c, scales, f"{frame.name}.C")

    def told_bytes() -> int:
        return _workspace_bytes(frame, found, frame.descriptor(a_desc, "a"), target)

    frame.run((workspace, workspace_bytes), told_bytes=told_bytes)


def reduction_workspace_size(
    state: State, handle: Address, reduction: Address, a_desc: Address, c_desc: Address, size: Address
) -> None:
    """The most that any alpha and beta need."""
    frame = Frame.of(state, handle, "cudnnGetReductionWorkspaceSize")
    found = _reduction(state, frame.name, reduction)
    needed = _workspace_bytes(frame, found, frame.descriptor(a_desc, "a"), frame.descriptor(c_desc, "c"))
    write_outputs((size, "Q", needed, f"{frame.name}.sizeInBytes"))


def reduction_indices_size(
    state: State, handle: Address, reduction: Address, a_desc: Address, c_desc: Address, size: Address
) -> None:
    """0: indices of extremes are not written."""
    name = "cudnnGetReductionIndicesSize"
    state.objects.get(handle, Handle, f"{name}.handle")
    _reduction(state, name, reduction)
    for address, argument in ((a_desc, "a"), (c_desc, "c")):
        was_set(state, address, TensorDescriptor, f"{name}.{argument}Desc")
    write_outputs((size, "Q", 0, f"{name}.sizeInBytes"))


def backward_bias(
    state: State, handle: Address, alpha: Address, dy_desc: Address, dy: Address, beta: Address, db_desc: Address,
    db: Address,
) -> None:  # fmt: skip
    """db[k] = alpha * (the sum of dy[:, k, ...]) + beta * db[k]."""
    frame = Frame.of(state, handle, "cudnnConvolutionBackwardBias")
    gradient, source = frame.tensor(dy_desc, dy, "dy"), frame.descriptor(dy_desc, "dy")
    target = frame.descriptor(db_desc, "db")
    expected = (1, source.dims[1], *(1,) * (len(source.dims) - 2))
    if target.dims != expected:
        raise ShapeMismatchError.at(f"{frame.name}.dbDesc.dims", expected=list(expected), got=list(target.dims))

    def write(result: Tensor) -> None:
        _reduced(frame.builder, gradient, result, ReduceTensorOp.ADD)

    frame.builder.store(write, target, db, frame.scales(alpha, beta, target), f"{frame.name}.db")
    frame.run()


def _reduction(state: State, name: str, address: Address) -> ReduceTensorDescriptor:
    found = was_set(state, address, ReduceTensorDescriptor, f"{name}.reduceTensorDesc")
    if found.indices is not ReduceTensorIndices.NO_INDICES:
        where = f"{name}.reduceTensorIndices"
        raise NotSupportedError.at(where, expected=ReduceTensorIndices.NO_INDICES.name, got=found.indices.name)
    return found


def _workspace_bytes(
    frame: Frame, reduction: ReduceTensorDescriptor, source: TensorDescriptor, target: TensorDescriptor
) -> int:
    """The most that aligned tensors need, with any alpha and beta."""
    needed = 0
    for scales in ((1.0, 0.0), (2.0, 0.0), (2.0, 1.0)):
        builder = Builder()
        tensor = builder.tensor(source, _ALIGNED, f"{frame.name}.A")

        def write(result: Tensor, builder: Builder = builder, tensor: Tensor = tensor) -> None:
            _reduced(builder, tensor, result, reduction.operation)

        builder.store(write, target, _ALIGNED, scales, f"{frame.name}.C")
        planned = frame.state.graphs.planned(frame.handle, builder)
        needed = max(needed, planned.candidate(0, frame.name).plan.workspace_bytes)
    return needed


def _reduced(builder: Builder, x: Tensor, y: Tensor, operation: ReduceTensorOp) -> Tensor:
    """Adds y = operation over the axes of x along which y has extent 1; returns y."""
    reduction = Reduction(operation, compute_type_of(x.data_type, y.data_type))
    builder.operations.append(ReductionOperation(reduction, x, y))
    return y


def _axes(frame: Frame, mode: int, of: TensorDescriptor) -> tuple[int, ...]:
    """The axes that a softmax sums over: the channels, or all but the first one."""
    is_channel = member(SoftmaxMode, mode, f"{frame.name}.mode") is SoftmaxMode.CHANNEL
    return (1,) if is_channel else tuple(range(1, len(of.dims)))


CALLS: Mapping[str, Call] = {
    "cudnnSoftmaxForward": softmax_forward,
    "cudnnSoftmaxBackward": softmax_backward,
    "cudnnReduceTensor": reduce_tensor,
    "cudnnGetReductionWorkspaceSize": reduction_workspace_size,
    "cudnnGetReductionIndicesSize": reduction_indices_size,
    "cudnnConvolutionBackwardBias": backward_bias,
}

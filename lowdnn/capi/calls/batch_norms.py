"""cudnnBatchNormalization*: training, inference, gradients, and the sizes that the fused forms need."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.normalisation import Normalisation
from lowdnn.capi.calls.shared import change, member, was_set
from lowdnn.capi.classic_enums import BatchNormMode, BatchNormOps
from lowdnn.capi.descriptors import TensorDescriptor, packed_strides
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched, no_bytes
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
from lowdnn.enums import DataType, TensorFormat

#: Descriptor and address of a tensor that the call does not have.
_NONE = (None, None)
#: A stand-in address with the largest alignment that an engine needs, for calls without addresses.
ALIGNED = 256


def forward_training(
    state: State, handle: Address, mode: int, alpha: Address, beta: Address, x_desc: Address, x: Address,
    y_desc: Address, y: Address, parameters: Address, scale: Address, bias: Address, factor: float,
    running_mean: Address, running_variance: Address, epsilon: float, mean: Address, inv_variance: Address,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnBatchNormalizationForwardTraining")
    norm = _normalisation(frame, mode, BatchNormOps.BN, parameters)
    norm.train(
        frame.scales(alpha, beta, frame.descriptor(y_desc, "y")), (x_desc, x), _NONE, (y_desc, y), scale, bias, factor,
        (running_mean, running_variance), epsilon, (mean, inv_variance),
    )  # fmt: skip
    return frame.run()


def forward_training_ex(
    state: State, handle: Address, mode: int, operations: int, alpha: Address, beta: Address, x_desc: Address,
    x: Address, z_desc: Address, z: Address, y_desc: Address, y: Address, parameters: Address, scale: Address,
    bias: Address, factor: float, running_mean: Address, running_variance: Address, epsilon: float, mean: Address,
    inv_variance: Address, activation: Address, workspace: Address, workspace_bytes: int, reserve: Address,
    reserve_bytes: int,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnBatchNormalizationForwardTrainingEx")
    norm = _normalisation(frame, mode, operations, parameters, activation)
    norm.train(
        frame.scales(alpha, beta, frame.descriptor(y_desc, "y")), (x_desc, x), (z_desc, z), (y_desc, y), scale, bias,
        factor, (running_mean, running_variance), epsilon, (mean, inv_variance),
    )  # fmt: skip
    return frame.run((workspace, workspace_bytes), told_bytes=no_bytes)


def forward_inference(
    state: State, handle: Address, mode: int, alpha: Address, beta: Address, x_desc: Address, x: Address,
    y_desc: Address, y: Address, parameters: Address, scale: Address, bias: Address, mean: Address,
    variance: Address, epsilon: float,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnBatchNormalizationForwardInference")
    norm = _normalisation(frame, mode, BatchNormOps.BN, parameters)
    scales = frame.scales(alpha, beta, frame.descriptor(y_desc, "y"))
    norm.infer(scales, (x_desc, x), _NONE, (y_desc, y), scale, bias, (mean, variance), epsilon)
    return frame.run()


def backward(
    state: State, handle: Address, mode: int, alpha: Address, beta: Address, alpha_parameters: Address,
    beta_parameters: Address, x_desc: Address, x: Address, dy_desc: Address, dy: Address, dx_desc: Address,
    dx: Address, parameters: Address, scale: Address, dscale: Address, dbias: Address, epsilon: float,
    mean: Address, inv_variance: Address,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnBatchNormalizationBackward")
    norm = _normalisation(frame, mode, BatchNormOps.BN, parameters)
    target = frame.descriptor(dx_desc, "dx")
    scales = (*frame.scales(alpha, beta, target), *frame.scales(alpha_parameters, beta_parameters, target))
    norm.differentiate(
        scales, (x_desc, x), _NONE, (dy_desc, dy), _NONE, (dx_desc, dx), scale, (dscale, dbias), epsilon,
        (mean, inv_variance),
    )  # fmt: skip
    return frame.run()


def backward_ex(
    state: State, handle: Address, mode: int, operations: int, alpha: Address, beta: Address,
    alpha_parameters: Address, beta_parameters: Address, x_desc: Address, x: Address, y_desc: Address, y: Address,
    dy_desc: Address, dy: Address, dz_desc: Address, dz: Address, dx_desc: Address, dx: Address, parameters: Address,
    scale: Address, bias: Address, dscale: Address, dbias: Address, epsilon: float, mean: Address,
    inv_variance: Address, activation: Address, workspace: Address, workspace_bytes: int, reserve: Address,
    reserve_bytes: int,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnBatchNormalizationBackwardEx")
    norm = _normalisation(frame, mode, operations, parameters, activation)
    target = frame.descriptor(dx_desc, "dx")
    scales = (*frame.scales(alpha, beta, target), *frame.scales(alpha_parameters, beta_parameters, target))
    norm.differentiate(
        scales, (x_desc, x), (y_desc, y), (dy_desc, dy), (dz_desc, dz), (dx_desc, dx), scale, (dscale, dbias),
        epsilon, (mean, inv_variance),
    )  # fmt: skip
    return frame.run((workspace, workspace_bytes), told_bytes=no_bytes)


def forward_workspace_size(
    state: State, handle: Address, mode: int, operations: int, x_desc: Address, z_desc: Address, y_desc: Address,
    parameters: Address, activation: Address, size: Address,
) -> None:  # fmt: skip
    """The size for alpha 1, beta 0, running and saved statistics. If other calls need more, they use the handle's own
    memory."""
    frame = Frame.of(state, handle, "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize")
    norm = _normalisation(frame, mode, operations, parameters, activation)
    write_outputs((size, "Q", norm.training_bytes(x_desc, z_desc, y_desc, ALIGNED), f"{frame.name}.sizeInBytes"))


def backward_workspace_size(
    state: State, handle: Address, mode: int, operations: int, x_desc: Address, y_desc: Address, dy_desc: Address,
    dz_desc: Address, dx_desc: Address, parameters: Address, activation: Address, size: Address,
) -> None:  # fmt: skip
    """The size for alpha 1 and beta 0; where others need more, the handle's own memory stands in."""
    frame = Frame.of(state, handle, "cudnnGetBatchNormalizationBackwardExWorkspaceSize")
    norm = _normalisation(frame, mode, operations, parameters, activation)
    descriptors = (x_desc, y_desc, dy_desc, dz_desc, dx_desc)
    write_outputs((size, "Q", norm.gradient_bytes(descriptors, ALIGNED), f"{frame.name}.sizeInBytes"))


def reserve_space_size(
    state: State, handle: Address, mode: int, operations: int, activation: Address, x_desc: Address, size: Address
) -> None:
    """0: the gradients need nothing that the forward call would have to keep beside its statistics."""
    name = "cudnnGetBatchNormalizationTrainingExReserveSpaceSize"
    state.objects.get(handle, Handle, f"{name}.handle")
    member(BatchNormMode, mode, f"{name}.mode")
    member(BatchNormOps, operations, f"{name}.bnOps")
    was_set(state, x_desc, TensorDescriptor, f"{name}.xDesc")
    write_outputs((size, "Q", 0, f"{name}.sizeInBytes"))


def derive_descriptor(state: State, descriptor: Address, x_desc: Address, mode: int) -> None:
    """The descriptor of scale, bias and statistics: FLOAT, or DOUBLE as x."""
    name = "cudnnDeriveBNTensorDescriptor"

    def new(_: TensorDescriptor) -> TensorDescriptor:
        x = was_set(state, x_desc, TensorDescriptor, f"{name}.xDesc")
        return derived(name, x, member(BatchNormMode, mode, f"{name}.mode") is BatchNormMode.PER_ACTIVATION)

    change(state, descriptor, TensorDescriptor, f"{name}.derivedBnDesc", new)


def derived(name: str, x: TensorDescriptor, is_per_activation: bool) -> TensorDescriptor:
    """The descriptor of scale, bias and statistics."""
    dims = (1, *x.dims[1:]) if is_per_activation else (1, x.dims[1], *(1,) * (len(x.dims) - 2))
    kind = DataType.DOUBLE if x.data_type is DataType.DOUBLE else DataType.FLOAT
    return TensorDescriptor.of(f"{name}.xDesc", kind, dims, packed_strides(TensorFormat.NCHW, dims))


def _normalisation(
    frame: Frame, mode: int, operations: int, parameters: Address, activation: Address = None
) -> Normalisation:
    return Normalisation(
        frame,
        member(BatchNormMode, mode, f"{frame.name}.mode") is BatchNormMode.PER_ACTIVATION,
        member(BatchNormOps, operations, f"{frame.name}.bnOps"),
        parameters,
        activation,
    )


CALLS: Mapping[str, Call] = {
    "cudnnBatchNormalizationForwardTraining": forward_training,
    "cudnnBatchNormalizationForwardTrainingEx": forward_training_ex,
    "cudnnBatchNormalizationForwardInference": forward_inference,
    "cudnnBatchNormalizationBackward": backward,
    "cudnnBatchNormalizationBackwardEx": backward_ex,
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize": forward_workspace_size,
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize": backward_workspace_size,
    "cudnnGetBatchNormalizationTrainingExReserveSpaceSize": reserve_space_size,
    "cudnnDeriveBNTensorDescriptor": derive_descriptor,
}

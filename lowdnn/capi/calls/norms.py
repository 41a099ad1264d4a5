"""cudnnNormalization*: batch normalisation with one descriptor more and a count of groups, which is 1."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.backend.handle import Handle
from lowdnn.capi.calls.batch_norms import ALIGNED, derived
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.normalisation import Normalisation
from lowdnn.capi.calls.shared import change, member, was_set
from lowdnn.capi.classic_enums import BatchNormOps, NormAlgo, NormMode, NormOps
from lowdnn.capi.descriptors import TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched, no_bytes
from lowdnn.capi.memory import Address, write_outputs
from lowdnn.capi.state import State
from lowdnn.status import NotSupportedError


def forward_training(
    state: State, handle: Address, mode: int, operations: int, algorithm: int, alpha: Address, beta: Address,
    x_desc: Address, x: Address, parameters: Address, scale: Address, bias: Address, factor: float,
    statistics: Address, running_mean: Address, running_variance: Address, epsilon: float, mean: Address,
    inv_variance: Address, activation: Address, z_desc: Address, z: Address, y_desc: Address, y: Address,
    workspace: Address, workspace_bytes: int, reserve: Address, reserve_bytes: int, groups: int,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnNormalizationForwardTraining")
    norm = _normalisation(frame, mode, operations, algorithm, parameters, statistics, activation, groups)
    norm.train(
        frame.scales(alpha, beta, frame.descriptor(y_desc, "y")), (x_desc, x), (z_desc, z), (y_desc, y), scale, bias,
        factor, (running_mean, running_variance), epsilon, (mean, inv_variance),
    )  # fmt: skip
    return frame.run((workspace, workspace_bytes), told_bytes=no_bytes)


def forward_inference(
    state: State, handle: Address, mode: int, operations: int, algorithm: int, alpha: Address, beta: Address,
    x_desc: Address, x: Address, parameters: Address, scale: Address, bias: Address, statistics: Address,
    mean: Address, variance: Address, z_desc: Address, z: Address, activation: Address, y_desc: Address, y: Address,
    epsilon: float, groups: int,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnNormalizationForwardInference")
    norm = _normalisation(frame, mode, operations, algorithm, parameters, statistics, activation, groups)
    scales = frame.scales(alpha, beta, frame.descriptor(y_desc, "y"))
    norm.infer(scales, (x_desc, x), (z_desc, z), (y_desc, y), scale, bias, (mean, variance), epsilon)
    return frame.run()


def backward(
    state: State, handle: Address, mode: int, operations: int, algorithm: int, alpha: Address, beta: Address,
    alpha_parameters: Address, beta_parameters: Address, x_desc: Address, x: Address, y_desc: Address, y: Address,
    dy_desc: Address, dy: Address, dz_desc: Address, dz: Address, dx_desc: Address, dx: Address, parameters: Address,
    scale: Address, bias: Address, dscale: Address, dbias: Address, epsilon: float, statistics: Address,
    mean: Address, inv_variance: Address, activation: Address, workspace: Address, workspace_bytes: int,
    reserve: Address, reserve_bytes: int, groups: int,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnNormalizationBackward")
    norm = _normalisation(frame, mode, operations, algorithm, parameters, statistics, activation, groups)
    target = frame.descriptor(dx_desc, "dx")
    scales = (*frame.scales(alpha, beta, target), *frame.scales(alpha_parameters, beta_parameters, target))
    norm.differentiate(
        scales, (x_desc, x), (y_desc, y), (dy_desc, dy), (dz_desc, dz), (dx_desc, dx), scale, (dscale, dbias),
        epsilon, (mean, inv_variance),
    )  # fmt: skip
    return frame.run((workspace, workspace_bytes), told_bytes=no_bytes)


def forward_workspace_size(
    state: State, handle: Address, mode: int, operations: int, algorithm: int, x_desc: Address, z_desc: Address,
    y_desc: Address, parameters: Address, activation: Address, statistics: Address, size: Address, groups: int,
) -> None:  # fmt: skip
    """The size that cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize tells."""
    frame = Frame.of(state, handle, "cudnnGetNormalizationForwardTrainingWorkspaceSize")
    norm = _normalisation(frame, mode, operations, algorithm, parameters, statistics, activation, groups)
    write_outputs((size, "Q", norm.training_bytes(x_desc, z_desc, y_desc, ALIGNED), f"{frame.name}.sizeInBytes"))


def backward_workspace_size(
    state: State, handle: Address, mode: int, operations: int, algorithm: int, x_desc: Address, y_desc: Address,
    dy_desc: Address, dz_desc: Address, dx_desc: Address, parameters: Address, activation: Address,
    statistics: Address, size: Address, groups: int,
) -> None:  # fmt: skip
    """The size that cudnnGetBatchNormalizationBackwardExWorkspaceSize tells."""
    frame = Frame.of(state, handle, "cudnnGetNormalizationBackwardWorkspaceSize")
    norm = _normalisation(frame, mode, operations, algorithm, parameters, statistics, activation, groups)
    descriptors = (x_desc, y_desc, dy_desc, dz_desc, dx_desc)
    write_outputs((size, "Q", norm.gradient_bytes(descriptors, ALIGNED), f"{frame.name}.sizeInBytes"))


def reserve_space_size(
    state: State, handle: Address, mode: int, operations: int, algorithm: int, activation: Address, x_desc: Address,
    size: Address, groups: int,
) -> None:  # fmt: skip
    """The size that cudnnGetBatchNormalizationTrainingExReserveSpaceSize tells."""
    name = "cudnnGetNormalizationTrainingReserveSpaceSize"
    state.objects.get(handle, Handle, f"{name}.handle")
    _check(name, mode, operations, algorithm, groups)
    was_set(state, x_desc, TensorDescriptor, f"{name}.xDesc")
    write_outputs((size, "Q", 0, f"{name}.sizeInBytes"))


def derive_descriptors(
    state: State, parameters: Address, statistics: Address, x_desc: Address, mode: int, groups: int
) -> None:
    """Both descriptors: FLOAT, or DOUBLE as x."""
    name = "cudnnDeriveNormTensorDescriptor"

    def new(_: TensorDescriptor) -> TensorDescriptor:
        x = was_set(state, x_desc, TensorDescriptor, f"{name}.xDesc")
        _check_groups(name, groups)
        return derived(name, x, member(NormMode, mode, f"{name}.mode") is NormMode.PER_ACTIVATION)

    state.objects.get(statistics, TensorDescriptor, f"{name}.derivedNormMeanVarDesc")
    change(state, parameters, TensorDescriptor, f"{name}.derivedNormScaleBiasDesc", new)
    change(state, statistics, TensorDescriptor, f"{name}.derivedNormMeanVarDesc", new)


def _normalisation(
    frame: Frame, mode: int, operations: int, algorithm: int, parameters: Address, statistics: Address,
    activation: Address, groups: int,
) -> Normalisation:  # fmt: skip
    is_per_activation, following = _check(frame.name, mode, operations, algorithm, groups)
    frame.check_dims(
        frame.descriptor(parameters, "normScaleBias"), frame.descriptor(statistics, "normMeanVar"), "normMeanVar"
    )
    return Normalisation(frame, is_per_activation, following, parameters, activation)


def _check(name: str, mode: int, operations: int, algorithm: int, groups: int) -> tuple[bool, BatchNormOps]:
    """Whether each element of a sample is a channel, and what follows."""
    is_per_activation = member(NormMode, mode, f"{name}.mode") is NormMode.PER_ACTIVATION
    following = member(NormOps, operations, f"{name}.normOps")
    member(NormAlgo, algorithm, f"{name}.algo")
    _check_groups(name, groups)
    return is_per_activation, BatchNormOps(following)


def _check_groups(name: str, groups: int) -> None:
    if groups != 1:
        raise NotSupportedError.at(f"{name}.groupCnt", expected="1", got=groups)


CALLS: Mapping[str, Call] = {
    "cudnnNormalizationForwardTraining": forward_training,
    "cudnnNormalizationForwardInference": forward_inference,
    "cudnnNormalizationBackward": backward,
    "cudnnGetNormalizationForwardTrainingWorkspaceSize": forward_workspace_size,
    "cudnnGetNormalizationBackwardWorkspaceSize": backward_workspace_size,
    "cudnnGetNormalizationTrainingReserveSpaceSize": reserve_space_size,
    "cudnnDeriveNormTensorDescriptor": derive_descriptors,
}

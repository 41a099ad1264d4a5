"""cudnnConvolutionBiasActivationForward: y = activation(alpha1 * convolution(x, w) + alpha2 * z + bias)."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.capi.calls.activations import activate
from lowdnn.capi.calls.convolution_algorithms import FORWARD
from lowdnn.capi.calls.convolutions import Problem, geometry
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import was_set
from lowdnn.capi.descriptors import ActivationDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched, compute_type_of, no_bytes
from lowdnn.capi.memory import Address
from lowdnn.capi.state import State
from lowdnn.enums import ActivationMode, PointwiseMode
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.status import NotSupportedError


def forward(
    state: State, handle: Address, alpha1: Address, x_desc: Address, x: Address, w_desc: Address, w: Address,
    convolution: Address, algorithm: int, workspace: Address, workspace_bytes: int, alpha2: Address,
    z_desc: Address, z: Address, bias_desc: Address, bias: Address, activation: Address, y_desc: Address, y: Address,
) -> Launched:  # fmt: skip
    """The plan is the best one for the fused graph, whatever the algorithm, which must be a valid number.

    z is not read where alpha2 is 0. Where the caller's workspace is too small, the handle's own memory stands in.
    """
    frame = Frame.of(state, handle, "cudnnConvolutionBiasActivationForward")
    problem = Problem.of(state, frame.name, FORWARD, convolution, (x_desc, w_desc, y_desc), (x, w, y))
    problem.check_groups(frame.name)
    FORWARD.check(algorithm, f"{frame.name}.algo")
    found = was_set(state, activation, ActivationDescriptor, f"{frame.name}.activationDesc")
    if found.mode not in (ActivationMode.RELU, ActivationMode.IDENTITY):
        where = f"{frame.name}.activationDesc.mode"
        raise NotSupportedError.at(where, expected="RELU or IDENTITY", got=found.mode.name)
    builder, target = frame.builder, frame.descriptor(y_desc, "y")
    scales = [
        frame.scale(address, target.data_type, name) for address, name in ((alpha1, "alpha1"), (alpha2, "alpha2"))
    ]
    compute = compute_type_of(target.data_type)
    image, filters = (
        builder.tensor(descriptor, address, f"{frame.name}.{port}")
        for descriptor, address, port in zip(problem.tensors[:2], (x, w), "xw", strict=True)
    )
    product = builder.virtual(target.dims, compute)
    builder.operations.append(ConvolutionForward(geometry(problem.convolution), image, filters, product))
    result = product if scales[0] == 1 else builder.scaled(scales[0], product, compute)
    if scales[1] != 0:
        frame.check_dims(target, frame.descriptor(z_desc, "z"), "z")
        old, total = frame.tensor(z_desc, z, "z"), builder.virtual(target.dims, compute)
        result = builder.pointwise(PointwiseMode.ADD, total, result, builder.scaled(scales[1], old, compute))
    frame.check_repeats(frame.descriptor(bias_desc, "bias"), target, "bias")
    shifted = builder.virtual(target.dims, compute)
    builder.pointwise(PointwiseMode.ADD, shifted, result, frame.tensor(bias_desc, bias, "bias"))
    activate(builder, found, shifted, builder.result(target, y, f"{frame.name}.y"))
    return state.graphs.run(
        frame.handle,
        builder,
        frame.name,
        (workspace, workspace_bytes),
        mode=problem.mode,
        told_bytes=no_bytes,
    )


CALLS: Mapping[str, Call] = {"cudnnConvolutionBiasActivationForward": forward}

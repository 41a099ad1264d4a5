"""cudnnPoolingForward and cudnnPoolingBackward."""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.calls.shared import was_set
from lowdnn.capi.classic_enums import PoolingMode
from lowdnn.capi.descriptors import PoolingDescriptor, TensorDescriptor
from lowdnn.capi.errors import Call
from lowdnn.capi.graphs import Launched, compute_type_of
from lowdnn.capi.memory import Address
from lowdnn.capi.state import State
from lowdnn.enums import DataType, PaddingMode, ResampleMode
from lowdnn.ops.resample import Resample
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import Tensor
from lowdnn.status import ShapeMismatchError

_MODES: Mapping[PoolingMode, tuple[ResampleMode, PaddingMode]] = {
    PoolingMode.MAX: (ResampleMode.MAXPOOL, PaddingMode.NEG_INF_PAD),
    PoolingMode.MAX_DETERMINISTIC: (ResampleMode.MAXPOOL, PaddingMode.NEG_INF_PAD),
    PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING: (ResampleMode.AVGPOOL_INCLUDE_PADDING, PaddingMode.ZERO_PAD),
    PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING: (ResampleMode.AVGPOOL_EXCLUDE_PADDING, PaddingMode.ZERO_PAD),
}


def forward(
    state: State, handle: Address, pooling: Address, alpha: Address, x_desc: Address, x: Address, beta: Address,
    y_desc: Address, y: Address,
) -> Launched:  # fmt: skip
    frame = Frame.of(state, handle, "cudnnPoolingForward")
    found = was_set(state, pooling, PoolingDescriptor, f"{frame.name}.poolingDesc")
    source, target = frame.tensor(x_desc, x, "x"), frame.descriptor(y_desc, "y")
    _check_output(frame, found, frame.descriptor(x_desc, "x"), target)
    resample = _resample(found, target.data_type)

    def write(result: Tensor) -> None:
        frame.builder.operations.append(ResampleForward(resample, source, result))

    frame.builder.store(write, target, y, frame.scales(alpha, beta, target), f"{frame.name}.y")
    return frame.run()


def backward(
    state: State, handle: Address, pooling: Address, alpha: Address, y_desc: Address, y: Address, dy_desc: Address,
    dy: Address, x_desc: Address, x: Address, beta: Address, dx_desc: Address, dx: Address,
) -> Launched:  # fmt: skip
    """The gradient goes to the first maximum of each window; y is not needed."""
    frame = Frame.of(state, handle, "cudnnPoolingBackward")
    found = was_set(state, pooling, PoolingDescriptor, f"{frame.name}.poolingDesc")
    frame.tensor(y_desc, y, "y")
    frame.check_dims(frame.descriptor(dy_desc, "dy"), frame.descriptor(y_desc, "y"), "y")
    gradient, target = frame.tensor(dy_desc, dy, "dy"), frame.descriptor(dx_desc, "dx")
    source = frame.tensor(x_desc, x, "x")
    frame.check_dims(target, frame.descriptor(x_desc, "x"), "x")
    _check_output(frame, found, target, frame.descriptor(dy_desc, "dy"))
    resample = _resample(found, target.data_type)
    image = source if resample.mode is ResampleMode.MAXPOOL else None

    def write(result: Tensor) -> None:
        frame.builder.operations.append(ResampleBackward(resample, gradient, result, x=image))

    frame.builder.store(write, target, dx, frame.scales(alpha, beta, target), f"{frame.name}.dx")
    return frame.run()


def _resample(pooling: PoolingDescriptor, data_type: DataType) -> Resample:
    mode, padding_mode = _MODES[pooling.mode]
    return Resample(
        len(pooling.window),
        pooling.window,
        pooling.strides,
        pooling.paddings,
        pooling.paddings,
        mode,
        compute_type_of(data_type),
        pooling.nan_propagation,
        padding_mode,
    )


def _check_output(
    frame: Frame, pooling: PoolingDescriptor, image: TensorDescriptor, response: TensorDescriptor
) -> None:
    expected = pooling.output_dims(frame.name, image)
    if response.dims != expected:
        raise ShapeMismatchError.at(f"{frame.name}.yDesc.dims", expected=list(expected), got=list(response.dims))


CALLS: Mapping[str, Call] = {"cudnnPoolingForward": forward, "cudnnPoolingBackward": backward}

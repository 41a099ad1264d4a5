"""Layers: functions that write the graphs of one layer, forward and backward, bound to their memory.

Activations are (N, C, H, W), channels last. Behind the last pooling they are read as rows, (1, N, features), in which
the features of an image lie as its pixels do.
"""

from __future__ import annotations

from dataclasses import dataclass

import lowdnn.frontend as cudnn
from lowdnn.cli.training.parameters import Parameter
from lowdnn.cli.training.session import BoundGraph, Session, dims_of, view
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer

#: The epsilon that batch norms add to the variance.
EPSILON = 1e-5
#: Padding of every convolution.
PADDING = [1, 1]
#: Window and stride of every pooling.
WINDOW = [2, 2]
#: Weight of the newest batch in the running mean and variance.
_RUNNING_WEIGHT = 0.1


@dataclass(frozen=True)
class Value:
    """An activation and the gradient of the loss with respect to it, in the same layout."""

    data: DeviceBuffer
    grad: DeviceBuffer


@dataclass(frozen=True)
class Statistics:
    """The running mean and variance, (1, C, 1, 1) in fp32, that a batch norm leaves for inference."""

    mean: DeviceBuffer
    variance: DeviceBuffer


@dataclass(frozen=True)
class Layer:
    """The output of a layer and its graphs, each tuple in the order in which they run."""

    output: Value
    forward: tuple[BoundGraph, ...]
    backward: tuple[BoundGraph, ...]


def convolution(session: Session, name: str, x: DeviceBuffer, weight: Parameter, dx: DeviceBuffer | None) -> Layer:
    """y = conv(x, w) for w (K, C, 3, 3); without ``dx`` the gradient of x is not computed."""
    n, _, height, width = dims_of(x)
    y = _value(session, (n, dims_of(weight.value)[0], height, width))
    forward = session.graph(f"{name} forward")
    forward.write(forward.conv_fprop(forward.read(x), forward.read(weight.value), padding=PADDING), y.data)
    wgrad = session.graph(f"{name} weight gradient")
    wgrad.write(wgrad.conv_wgrad(wgrad.read(x), wgrad.read(y.grad), padding=PADDING), weight.grad)
    backward = [wgrad.built()]
    if dx is not None:
        dgrad = session.graph(f"{name} data gradient")
        dgrad.write(dgrad.conv_dgrad(dgrad.read(y.grad), dgrad.read(weight.value), padding=PADDING), dx)
        backward.append(dgrad.built())
    return Layer(y, (forward.built(),), tuple(backward))


def batch_norm_relu(
    session: Session, name: str, x: Value, scale: Parameter, bias: Parameter, running: Statistics
) -> Layer:
    """y = relu(batchnorm(x)); also updates the running statistics, in place."""
    y = _value(session, dims_of(x.data))
    mean, inv_variance = (session.zeros(dims_of(scale.value)) for _ in range(2))
    forward = session.graph(f"{name} forward")
    made = forward.batchnorm(
        forward.read(x.data),
        forward.read(scale.master),
        forward.read(bias.master),
        forward.read(running.mean),
        forward.read(running.variance),
        forward.tensor_scalar(EPSILON, cudnn.scalar_type.COMPILE_TIME_CONST),
        forward.tensor_scalar(_RUNNING_WEIGHT, cudnn.scalar_type.COMPILE_TIME_CONST),
    )
    forward.write(forward.relu(made[0]), y.data)
    for tensor, array in zip(made[1:], (mean, inv_variance, running.mean, running.variance), strict=True):
        forward.write(tensor, array)
    backward = session.graph(f"{name} gradients")
    # relu's gradient is zero where its output is.
    dy = backward.relu_backward(backward.read(y.grad), backward.read(y.data))
    gradients = backward.batchnorm_backward(
        dy, backward.read(x.data), backward.read(scale.master), backward.read(mean), backward.read(inv_variance)
    )
    for tensor, array in zip(gradients, (x.grad, scale.grad, bias.grad), strict=True):
        backward.write(tensor, array)
    return Layer(y, (forward.built(),), (backward.built(),))


def max_pool(session: Session, name: str, x: Value) -> Layer:
    """The largest value of each 2x2 window."""
    n, channels, height, width = dims_of(x.data)
    y = _value(session, (n, channels, height // 2, width // 2))
    places = session.zeros(dims_of(y.data), DataType.INT8)
    forward = session.graph(f"{name} forward")
    largest, index = forward.resample(
        forward.read(x.data), cudnn.resample_mode.MAXPOOL, WINDOW, WINDOW, generate_index=True
    )
    forward.write(largest, y.data)
    forward.write(index, places)
    backward = session.graph(f"{name} gradient")
    dx = backward.resample_backward(
        backward.read(y.grad), cudnn.resample_mode.MAXPOOL, WINDOW, WINDOW, index=backward.read(places)
    )
    backward.write(dx, x.grad)
    return Layer(y, (forward.built(),), (backward.built(),))


def linear(session: Session, name: str, x: Value, weight: Parameter, bias: Parameter) -> Layer:
    """y = rows(x) w + b for w (1, features, classes), b (1, 1, classes); y is fp32, (1, N, classes)."""
    _, features, classes = dims_of(weight.value)
    n = dims_of(x.data)[0]
    rows = view(x.data, (1, n, features))
    columns = view(x.data, (1, features, n), (n * features, 1, features))
    transposed = view(weight.value, (1, classes, features), (features * classes, 1, classes))
    y = Value(session.zeros((1, n, classes)), session.zeros((1, n, classes), session.activation_type))
    forward = session.graph(f"{name} forward")
    product = forward.matmul(forward.read(rows), forward.read(weight.value))
    forward.write(forward.bias(product, forward.read(bias.master)), y.data)
    parameters = session.graph(f"{name} parameter gradients")
    dy = parameters.read(y.grad)
    parameters.write(parameters.matmul(parameters.read(columns), dy), weight.grad)
    parameters.write(parameters.reduction(dy, cudnn.reduction_mode.ADD), bias.grad)
    data = session.graph(f"{name} data gradient")
    data.write(data.matmul(data.read(y.grad), data.read(transposed)), view(x.grad, (1, n, features)))
    return Layer(y, (forward.built(),), (parameters.built(), data.built()))


def softmax_cross_entropy(session: Session, logits: Value, targets: DeviceBuffer, loss: Value) -> Layer:
    """loss = -sum(targets * log softmax(logits)) / N; the gradient of the logits is that of loss * loss.grad.

    targets: (1, N, classes), rows that add up to 1.  loss: (1, 1, 1); its gradient is the loss scale.  All in fp32.
    """
    images = dims_of(targets)[1]
    log_shares = session.zeros(dims_of(targets))
    forward = session.graph("loss forward")
    made, _ = forward.softmax(forward.read(logits.data), is_log=True)
    forward.write(made, log_shares)
    losses = forward.mul(forward.mul(made, forward.read(targets)), -1 / images)
    forward.write(forward.reduction(losses, cudnn.reduction_mode.ADD), loss.data)
    backward = session.graph("loss gradient")
    excess = backward.sub(backward.exp(backward.read(log_shares)), backward.read(targets))
    backward.write(backward.mul(backward.mul(excess, backward.read(loss.grad)), 1 / images), logits.grad)
    return Layer(loss, (forward.built(),), (backward.built(),))


def _value(session: Session, dims: tuple[int, ...]) -> Value:
    return Value(session.zeros(dims, session.activation_type), session.zeros(dims, session.activation_type))

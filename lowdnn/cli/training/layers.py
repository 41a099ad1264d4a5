"""Layers: functions that write the graphs of one layer, forward and backward, bound to their memory.

Activations are (N, C, H, W), channels last. Behind the last pooling they are read as rows, (1, N, features), in which
the features of an image lie as its pixels do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import lowdnn.frontend as cudnn
from lowdnn.cli.training.parameters import Parameter
from lowdnn.cli.training.session import Parts, Session, dims_of, part_views, view
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer

#: The epsilon that batch norms add to the variance.
EPSILON = 1e-5
#: Padding of every convolution.
PADDING = [1, 1]
#: Window and stride of every pooling.
WINDOW = [2, 2]
#: Weight of the newest batch in the running mean and variance.
RUNNING_WEIGHT = 0.1


#: Gives work to the stream.
Step = Callable[[], None]


@dataclass(frozen=True)
class Value:
    """An activation and the gradient of the loss with respect to it, in the same layout, for each part of the batch."""

    data: Parts
    grad: Parts


@dataclass(frozen=True)
class Statistics:
    """The running mean and variance, (1, C, 1, 1) in fp32, that a batch norm leaves for inference."""

    mean: DeviceBuffer
    variance: DeviceBuffer


@dataclass(frozen=True)
class Layer:
    """The output of a layer and its steps, each tuple in the order in which they run.

    ``parameters``: the parameters whose gradients are on their way behind ``backward``.
    """

    output: Value
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    parameters: tuple[Parameter, ...] = ()


def convolution(session: Session, name: str, x: Parts, weight: Parameter, dx: Parts | None) -> Layer:
    """y = conv(x, w) for w (K, C, 3, 3); without ``dx`` the gradient of x is not computed."""
    n, _, height, width = dims_of(x)
    y = new_value(session, (n, dims_of(weight.value)[0], height, width))
    forward = session.graph(f"{name} forward")
    forward.write(forward.conv_fprop(forward.read(x), forward.read(weight.value), padding=PADDING), y.data)
    wgrad = session.graph(f"{name} weight gradient")
    wgrad.write(wgrad.conv_wgrad(wgrad.read(x), wgrad.read(y.grad), padding=PADDING), weight.partial_grad)
    backward = [wgrad.built().launch]
    if dx is not None:
        dgrad = session.graph(f"{name} data gradient")
        dgrad.write(dgrad.conv_dgrad(dgrad.read(y.grad), dgrad.read(weight.value), padding=PADDING), dx)
        backward.append(dgrad.built().launch)
    return Layer(y, (forward.built().launch,), tuple(backward), (weight,))


def batch_norm_relu(
    session: Session, name: str, x: Value, scale: Parameter, bias: Parameter, running: Statistics
) -> Layer:
    """y = relu(batchnorm(x)); also updates the running statistics, in place."""
    y = new_value(session, dims_of(x.data))
    mean, inv_variance = (session.zeros(dims_of(scale.value)) for _ in range(2))
    forward = session.graph(f"{name} forward")
    made = forward.batchnorm(
        forward.read(x.data),
        forward.read(scale.master),
        forward.read(bias.master),
        forward.read(running.mean),
        forward.read(running.variance),
        forward.tensor_scalar(EPSILON, cudnn.scalar_type.COMPILE_TIME_CONST),
        forward.tensor_scalar(RUNNING_WEIGHT, cudnn.scalar_type.COMPILE_TIME_CONST),
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
    for tensor, parts in zip(gradients, (x.grad, scale.partial_grad, bias.partial_grad), strict=True):
        backward.write(tensor, parts)
    return Layer(y, (forward.built().launch,), (backward.built().launch,), (scale, bias))


def max_pool(session: Session, name: str, x: Value) -> Layer:
    """The largest value of each 2x2 window."""
    n, channels, height, width = dims_of(x.data)
    y = new_value(session, (n, channels, height // 2, width // 2))
    places = session.part_zeros(dims_of(y.data), DataType.INT8)
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
    return Layer(y, (forward.built().launch,), (backward.built().launch,))


def linear(session: Session, name: str, x: Value, weight: Parameter, bias: Parameter) -> Layer:
    """y = rows(x) w + b for w (1, features, classes), b (1, 1, classes); y is fp32, (1, N, classes)."""
    _, features, classes = dims_of(weight.value)
    n = dims_of(x.data)[0]
    rows = part_views(x.data, (1, n, features))
    columns = part_views(x.data, (1, features, n), (n * features, 1, features))
    transposed = view(weight.value, (1, classes, features), (features * classes, 1, classes))
    y = Value(session.part_zeros((1, n, classes)), session.part_zeros((1, n, classes), session.activation_type))
    forward = session.graph(f"{name} forward")
    product = forward.matmul(forward.read(rows), forward.read(weight.value))
    forward.write(forward.bias(product, forward.read(bias.master)), y.data)
    parameters = session.graph(f"{name} parameter gradients")
    dy = parameters.read(y.grad)
    parameters.write(parameters.matmul(parameters.read(columns), dy), weight.partial_grad)
    parameters.write(parameters.reduction(dy, cudnn.reduction_mode.ADD), bias.partial_grad)
    data = session.graph(f"{name} data gradient")
    data.write(data.matmul(data.read(y.grad), data.read(transposed)), part_views(x.grad, (1, n, features)))
    backward = (parameters.built().launch, data.built().launch)
    return Layer(y, (forward.built().launch,), backward, (weight, bias))


def softmax_cross_entropy(session: Session, logits: Value, targets: Parts, loss: Parts, scale: DeviceBuffer) -> Layer:
    """loss = -sum(targets * log softmax(logits)) / N; the gradient of the logits is that of loss * scale.

    N counts the images of all parts, so that the losses of the parts add up to the batch's.
    targets: (1, N / parts, classes), rows that add up to 1.  loss, scale: (1, 1, 1).  All in fp32.
    """
    images = dims_of(targets)[1] * session.split.parts
    log_shares = session.part_zeros(dims_of(targets))
    forward = session.graph("loss forward")
    made, _ = forward.softmax(forward.read(logits.data), is_log=True)
    forward.write(made, log_shares)
    losses = forward.mul(forward.mul(made, forward.read(targets)), -1 / images)
    forward.write(forward.reduction(losses, cudnn.reduction_mode.ADD), loss)
    backward = session.graph("loss gradient")
    excess = backward.sub(backward.exp(backward.read(log_shares)), backward.read(targets))
    backward.write(backward.mul(backward.mul(excess, backward.read(scale)), 1 / images), logits.grad)
    return Layer(Value(loss, loss), (forward.built().launch,), (backward.built().launch,))


def new_value(session: Session, dims: tuple[int, ...]) -> Value:
    """Zeros in the type of the activations."""
    return Value(session.part_zeros(dims, session.activation_type), session.part_zeros(dims, session.activation_type))

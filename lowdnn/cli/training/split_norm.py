"""Batch norm of a batch in parts, on one rank or several, with the statistics of the whole batch.

Forward: the parts' sums of x and x^2 are added up over all of them, then each part is normalised. Backward: with
xhat = (x - mean) * inv_variance and M elements of each channel in the whole batch,

    dbias = sum(dy)        dscale = sum(dy * xhat)        dx = scale * inv_variance * (dy - (dbias + xhat * dscale) / M)

where the sums in dx are those over all parts.
Source: S. Ioffe and C. Szegedy, 2015, "Batch Normalization", section 3.
"""

from __future__ import annotations

import lowdnn.frontend as cudnn
from lowdnn.cli.training.layers import EPSILON, RUNNING_WEIGHT, Layer, Statistics, Step, Value, new_value
from lowdnn.cli.training.parameters import Parameter
from lowdnn.cli.training.session import BoundGraph, Session, dims_of, part_views, view
from lowdnn.runtime.buffer import DeviceBuffer


def split_batch_norm_relu(
    session: Session, name: str, x: Value, scale: Parameter, bias: Parameter, running: Statistics
) -> Layer:
    """y = relu(batchnorm(x)) over the batch of all ranks; also updates the running statistics, in place."""
    y = new_value(session, dims_of(x.data))
    mean, inv_variance = (session.zeros(dims_of(scale.value)) for _ in range(2))
    forward = _forward(session, name, x, y, scale, bias, running, Statistics(mean, inv_variance))
    backward = _backward(session, name, x, y, scale, bias, Statistics(mean, inv_variance))
    return Layer(y, forward, backward, (scale, bias))


def _forward(
    session: Session,
    name: str,
    x: Value,
    y: Value,
    scale: Parameter,
    bias: Parameter,
    running: Statistics,
    saved: Statistics,
) -> tuple[Step, ...]:
    channels = dims_of(scale.value)
    total, partials, add_up = session.sum_of_parts((2, channels[1]))
    statistics = session.graph(f"{name} statistics")
    for place, tensor in enumerate(statistics.genstats(statistics.read(x.data))):
        statistics.write(tensor, part_views(partials, channels, offset=place * channels[1]))
    finalize = session.graph(f"{name} finalize")
    factors = [session.zeros(channels) for _ in range(2)]
    sums, squares = (finalize.read(view(total, channels, offset=place * channels[1])) for place in range(2))
    made = finalize.bn_finalize(
        sums,
        squares,
        finalize.read(scale.master),
        finalize.read(bias.master),
        finalize.tensor_scalar(EPSILON, cudnn.scalar_type.COMPILE_TIME_CONST),
        finalize.tensor_scalar(_elements(session, x), cudnn.scalar_type.COMPILE_TIME_CONST),
        finalize.read(running.mean),
        finalize.read(running.variance),
        finalize.tensor_scalar(RUNNING_WEIGHT, cudnn.scalar_type.COMPILE_TIME_CONST),
    )
    outputs = (*factors, saved.mean, saved.variance, running.mean, running.variance)
    for result, array in zip(made, outputs, strict=True):
        finalize.write(result, array)
    apply = session.graph(f"{name} forward")
    scaled = apply.mul(apply.read(x.data), apply.read(factors[0]))
    apply.write(apply.relu(apply.add(scaled, apply.read(factors[1]))), y.data)
    return statistics.built().launch, add_up, finalize.built().launch, apply.built().launch


def _backward(
    session: Session, name: str, x: Value, y: Value, scale: Parameter, bias: Parameter, saved: Statistics
) -> tuple[Step, ...]:
    channels = dims_of(scale.value)
    total, partials, add_up = session.sum_of_parts((2, channels[1]))
    sums = session.graph(f"{name} parameter gradients")
    dy, xhat = _gradient_and_normalised(sums, x, y, saved.mean, saved.variance)
    for place, (terms, parameter) in enumerate(((dy, bias), (sums.mul(dy, xhat), scale))):
        partial = sums.reduction(terms, cudnn.reduction_mode.ADD).set_dim(channels)
        sums.write(partial, parameter.partial_grad)
        sums.write(sums.identity(partial), part_views(partials, channels, offset=place * channels[1]))
    data = session.graph(f"{name} data gradient")
    dy, xhat = _gradient_and_normalised(data, x, y, saved.mean, saved.variance)
    dbias, dscale = (data.read(view(total, channels, offset=place * channels[1])) for place in range(2))
    share = data.mul(data.add(data.mul(xhat, dscale), dbias), 1 / _elements(session, x))
    factor = data.mul(data.read(scale.master), data.read(saved.variance))
    data.write(data.mul(data.sub(dy, share), factor), x.grad)
    return sums.built().launch, add_up, data.built().launch


def _gradient_and_normalised(
    graph: BoundGraph, x: Value, y: Value, mean: DeviceBuffer, inv_variance: DeviceBuffer
) -> tuple[cudnn.Tensor, cudnn.Tensor]:
    """(the gradient of the norm's output, the normalised input): relu's gradient is zero where its output is."""
    dy = graph.relu_backward(graph.read(y.grad), graph.read(y.data))
    return dy, graph.mul(graph.sub(graph.read(x.data), graph.read(mean)), graph.read(inv_variance))


def _elements(session: Session, x: Value) -> float:
    """The elements of each channel in the whole batch."""
    n, _, height, width = dims_of(x.data)
    return float(n * session.split.parts * height * width)

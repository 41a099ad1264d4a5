"""Random normalisations: over neighbours, across channels and within each, and over the batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.capi.classic_enums import BatchNormMode
from lowdnn.enums import DataType
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.lrn import LrnBackward, LrnForward
from tests.support.random_calls.elementwise import pair
from tests.support.random_calls.operands import (
    AddressOf,
    Call,
    Draw,
    Enum,
    Family,
    Made,
    Operand,
    blended,
)


def _local(draw: Draw) -> tuple[Made, dict[str, Any]]:
    parameters = (draw.rng.randint(1, 5), 0.9, 0.75, 1.5)
    names = ("lrn_n", "lrn_alpha", "lrn_beta", "lrn_k")
    return Made("LRN", "cudnnSetLRNDescriptor", parameters), dict(zip(names, parameters, strict=True))


def lrn_forward(draw: Draw) -> Call:
    (made, parameters), scales, dims = _local(draw), draw.scales(), draw.dims()
    x, y = draw.operand("x", draw.normal(dims)), draw.operand("y", draw.old(dims, scales[1]))
    result = LrnForward(x.tensor, y.tensor, **parameters).reference({"x": x.values})["y"]
    arguments = [made, Enum(0), draw.scale(scales[0]), *pair(x), draw.scale(scales[1]), *pair(y)]
    return Call("cudnnLRNCrossChannelForward", arguments, {"y": blended(scales, result, y.values)}, 2e-5)


def lrn_backward(draw: Draw) -> Call:
    (made, parameters), scales, dims = _local(draw), draw.scales(), draw.dims()
    x, dy, y = (draw.operand(port, draw.normal(dims)) for port in ("x", "dy", "y"))
    dx = draw.operand("dx", draw.old(dims, scales[1]))
    values = {"x": x.values, "dy": dy.values}
    result = LrnBackward(x.tensor, dy.tensor, dx.tensor, **parameters).reference(values)["dx"]
    arguments = [made, Enum(0), draw.scale(scales[0]), *pair(y), *pair(dy), *pair(x), draw.scale(scales[1]), *pair(dx)]
    return Call("cudnnLRNCrossChannelBackward", arguments, {"dx": blended(scales, result, dx.values)}, 1e-4)


def divisive_forward(draw: Draw) -> Call:
    (made, parameters), scales, dims = _local(draw), draw.scales(), draw.dims()
    x = draw.operand("x", draw.normal(dims))
    means = draw.operand("means", draw.normal(dims), like=x)
    y, has_means = draw.operand("y", draw.old(dims, scales[1])), draw.happens(0.6)
    values = {"x": x.values} | ({"means": means.values} if has_means else {})
    given = {"means": means.tensor} if has_means else {}
    result = DivisiveNormalizationForward(x.tensor, y.tensor, **given, **parameters).reference(values)["y"]
    temporary = AddressOf(Operand("temp", draw.data_type, np.zeros(dims), x.strides), is_optional=True)
    arguments = [
        made, Enum(0), draw.scale(scales[0]), *pair(x), AddressOf(means, is_optional=True) if has_means else 0,
        temporary, temporary, draw.scale(scales[1]), *pair(y),
    ]  # fmt: skip
    return Call("cudnnDivisiveNormalizationForward", arguments, {"y": blended(scales, result, y.values)}, 2e-5)


def divisive_backward(draw: Draw) -> Call:
    (made, parameters), scales, dims = _local(draw), draw.scales(), draw.dims()
    x = draw.operand("x", draw.normal(dims))
    means, dy = (draw.operand(port, draw.normal(dims), like=x) for port in ("means", "dy"))
    dx = draw.operand("dx", draw.old(dims, scales[1]))
    dmeans = draw.operand("dmeans", draw.old(dims, scales[1]), like=dx)
    tensors = {operand.port: operand.tensor for operand in (x, dy, dx, means, dmeans)}
    values = {operand.port: operand.values for operand in (x, dy, means)}
    found = DivisiveNormalizationBackward(**tensors, **parameters).reference(values)
    temporary = AddressOf(Operand("temp", draw.data_type, np.zeros(dims), x.strides), is_optional=True)
    arguments = [
        made, Enum(0), draw.scale(scales[0]), *pair(x), AddressOf(means, is_optional=True), AddressOf(dy), temporary,
        temporary, draw.scale(scales[1]), *pair(dx), AddressOf(dmeans, is_optional=True),
    ]  # fmt: skip
    expected = {operand.port: blended(scales, found[operand.port], operand.values) for operand in (dx, dmeans)}
    return Call("cudnnDivisiveNormalizationBackward", arguments, expected, 1e-4)


_EPSILON, _FACTOR = 0.1, 0.25


def _row(draw: Draw, mode: BatchNormMode, dims: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], DataType]:
    """The extents of the parameters, the axes that statistics go over, the parameters' type."""
    is_each = mode is BatchNormMode.PER_ACTIVATION
    row = (1, *dims[1:]) if is_each else (1, dims[1], *(1,) * (len(dims) - 2))
    kind = DataType.DOUBLE if draw.data_type is DataType.DOUBLE else DataType.FLOAT
    return row, (0,) if is_each else (0, *range(2, len(dims))), kind


def _parameters(draw: Draw, row: tuple[int, ...], kind: DataType, *ports: str) -> list[Operand]:
    """Operands that one descriptor describes."""
    first = draw.operand("shape", np.zeros(row), kind)
    return [draw.operand(port, draw.normal(row, kind), kind, like=first) for port in ports]


def batch_norm_inference(draw: Draw) -> Call:
    mode, scales, dims = draw.choose(BatchNormMode), draw.scales(), draw.dims()
    row, _, kind = _row(draw, mode, dims)
    weight, bias, mean, variance = _parameters(draw, row, kind, "scale", "bias", "mean", "variance")
    variance.values = np.abs(variance.values)
    x = draw.operand("x", draw.normal(dims))
    y = x if draw.happens(0.3) else draw.operand("y", draw.old(dims, scales[1]))
    result = (x.values - mean.values) / np.sqrt(variance.values + _EPSILON) * weight.values + bias.values
    arguments = [
        Enum(mode), draw.scale(scales[0]), draw.scale(scales[1]), *pair(x), *pair(y), *pair(weight),
        *map(AddressOf, (bias, mean, variance)), _EPSILON,
    ]  # fmt: skip
    return Call("cudnnBatchNormalizationForwardInference", arguments, {y.port: blended(scales, result, y.values)}, 2e-5)


def batch_norm_training(draw: Draw) -> Call:
    mode, scales, dims = draw.choose(BatchNormMode), draw.scales(), draw.dims()
    row, axes, kind = _row(draw, mode, dims)
    ports = ("scale", "bias", "running_mean", "running_variance", "saved_mean", "saved_inv_variance")
    rows = _parameters(draw, row, kind, *ports)
    weight, bias, running_mean, running_variance, saved_mean, saved_root = rows
    x = draw.operand("x", draw.normal(dims))
    y = x if draw.happens(0.3) else draw.operand("y", draw.old(dims, scales[1]))
    mean, variance = x.values.mean(axes, keepdims=True), x.values.var(axes, keepdims=True)
    count, root = x.values.size // mean.size, 1 / np.sqrt(variance + _EPSILON)
    result = (x.values - mean) * root * weight.values + bias.values
    unbiased = variance * count / max(count - 1, 1)
    expected = {
        y.port: blended(scales, result, y.values),
        "running_mean": (1 - _FACTOR) * running_mean.values + _FACTOR * mean,
        "running_variance": (1 - _FACTOR) * running_variance.values + _FACTOR * unbiased,
        "saved_mean": mean,
        "saved_inv_variance": root,
    }
    arguments = [
        Enum(mode), draw.scale(scales[0]), draw.scale(scales[1]), *pair(x), *pair(y), *pair(weight), AddressOf(bias),
        _FACTOR, AddressOf(running_mean), AddressOf(running_variance), _EPSILON, AddressOf(saved_mean),
        AddressOf(saved_root),
    ]  # fmt: skip
    return Call("cudnnBatchNormalizationForwardTraining", arguments, expected, 1e-4)


def batch_norm_backward(draw: Draw) -> Call:
    mode, scales, row_scales, dims = draw.choose(BatchNormMode), draw.scales(), draw.scales(), draw.dims()
    row, axes, kind = _row(draw, mode, dims)
    weight, mean_row, root_row, dscale, dbias = _parameters(draw, row, kind, "scale", "mean", "root", "dscale", "dbias")
    x, dy = draw.operand("x", draw.normal(dims)), draw.operand("dy", draw.normal(dims))
    dx = dy if draw.happens(0.3) else draw.operand("dx", draw.old(dims, scales[1]))
    mean, variance = x.values.mean(axes, keepdims=True), x.values.var(axes, keepdims=True)
    root = 1 / np.sqrt(variance + _EPSILON)
    mean_row.values, root_row.values = draw.rounded(mean, kind), draw.rounded(root, kind)
    xhat, count = (x.values - mean) * root, x.values.size // mean.size
    sums = [(dy.values * xhat).sum(axes, keepdims=True), dy.values.sum(axes, keepdims=True)]
    result = weight.values * root * (dy.values - (sums[1] + xhat * sums[0]) / count)
    expected = {dx.port: blended(scales, result, dx.values)}
    expected |= {o.port: blended(row_scales, total, o.values) for o, total in zip((dscale, dbias), sums, strict=True)}
    saved = [AddressOf(mean_row), AddressOf(root_row)] if draw.happens(0.5) else [0, 0]
    arguments = [
        Enum(mode), *map(draw.scale, (*scales, *row_scales)), *pair(x), *pair(dy), *pair(dx), *pair(weight),
        AddressOf(dscale), AddressOf(dbias), _EPSILON, *saved,
    ]  # fmt: skip
    return Call("cudnnBatchNormalizationBackward", arguments, expected, 2e-4)


FAMILIES: tuple[Family, ...] = (
    lrn_forward,
    lrn_backward,
    divisive_forward,
    divisive_backward,
    batch_norm_inference,
    batch_norm_training,
    batch_norm_backward,
)

"""Causal convolutions along sequences, and their gradients, for growing graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowdnn.enums import DataType
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.tensor import Tensor
from lowdnn.subquadratic_enums import CausalConv1dActivation
from tests.support.random_graphs.growth import FLOATS, SMALL_FLOATS, Dims, Growth


@dataclass(frozen=True)
class _Operands:
    """Inputs that both directions have, and the dims of the states."""

    x: Tensor
    weight: Tensor
    optional: dict[str, Tensor]
    states: Dims
    activation: CausalConv1dActivation


def causal_conv1d(growth: Growth) -> None:
    operands = _operands(growth)
    x, outputs = operands.x, dict[str, Tensor]()
    if operands.weight.dims[1] > 1 and growth.chance(0.5):
        outputs["final_states"] = growth.output(operands.states, x.data_type, name="final_states")
    y = growth.output(x.dims, growth.choose(FLOATS))
    growth.add(
        CausalConv1dForward(
            x=x, weight=operands.weight, y=y, activation=operands.activation, **operands.optional, **outputs
        )
    )


def causal_conv1d_backward(growth: Growth) -> None:
    operands = _operands(growth)
    x, weight, outputs = operands.x, operands.weight, dict[str, Tensor]()
    if growth.chance(0.7):
        outputs["dbias"] = growth.output(weight.dims[:1], growth.choose(FLOATS), name="dbias")
    if "initial_states" in operands.optional and growth.chance(0.7):
        outputs["dinitial_states"] = growth.output(operands.states, x.data_type, name="dinitial_states")
    growth.add(
        CausalConv1dBackward(
            x=x,
            weight=weight,
            dy=growth.like(x.dims, growth.choose(FLOATS), "dy"),
            dx=growth.output(x.dims, growth.choose(FLOATS), name="dx"),
            dweight=growth.output(weight.dims, growth.choose(FLOATS), name="dweight"),
            activation=operands.activation,
            **operands.optional,
            **outputs,
        )
    )


def b2b_causal_conv1d(growth: Growth) -> None:
    given, dims = _gated(growth)
    outputs = {"y": growth.output(dims, growth.choose(FLOATS), name="y")} if growth.chance(0.5) else {}
    growth.add(B2BCausalConv1dForward(y_gated=growth.output(dims, growth.choose(FLOATS)), **given, **outputs))


def b2b_causal_conv1d_backward(growth: Growth) -> None:
    given, dims = _gated(growth)
    y, dy = (growth.like(dims, growth.choose(FLOATS), name) for name in ("y", "dy"))
    made = {f"d{port}": growth.output(given[port].dims, growth.choose(FLOATS), name=f"d{port}") for port in given}
    growth.add(B2BCausalConv1dBackward(y=y, dy=dy, **given, **made))


def _gated(growth: Growth) -> tuple[dict[str, Tensor], Dims]:
    """The inputs of back-to-back convolutions, and the dims of y."""
    batch, channels, length = (growth.extent(name, most) for name, most in (("b", 3), ("d", 3), ("l", 40)))
    projection, mixer = growth.choose((1, 2, 4, 9)), growth.choose((1, 3, 8, 17))
    filters = {"weights_proj": (3 * channels, projection), "weights_mixer": (channels, mixer), "skip_bias": (channels,)}
    x, kind = growth.like((batch, 3 * channels, length), growth.choose(FLOATS)), growth.choose(FLOATS)
    given = {"x": x} | {port: growth.input(dims, kind, name=port) for port, dims in filters.items()}
    return given, (batch, channels, length)


def _operands(growth: Growth) -> _Operands:
    batch, channels, length = (growth.extent(name, most) for name, most in (("b", 3), ("d", 6), ("l", 40)))
    taps = growth.choose((1, 2, 4, 4, 5, 8, 9, 17))
    optional: dict[str, Tensor] = {}
    kind, form = growth.choose((DataType.INT32, DataType.INT64)), growth.choose(("", "", "lengths", "offsets"))
    count = batch
    if form == "lengths":
        optional["lengths"] = growth.input((batch,), kind, growth.rng.integers(0, length + 1, batch), name=form)
    if form == "offsets":
        batch, count = 1, int(growth.rng.integers(0, 5))
        bounds = np.sort(growth.rng.integers(0, length + 1, count + 1))
        optional["offsets"] = growth.input((count + 1,), kind, bounds, name=form)
    x = growth.like((batch, channels, length), growth.choose((*FLOATS, *SMALL_FLOATS)))
    parameters = growth.choose(FLOATS)
    weight = growth.input((channels, taps), parameters, name="weight")
    if growth.chance(0.6):
        optional["bias"] = growth.input((channels,), parameters, name="bias")
    states = (count, channels, taps - 1)
    if taps > 1 and growth.chance(0.5):
        optional["initial_states"] = growth.input(states, x.data_type, name="initial_states")
    return _Operands(x, weight, optional, states, growth.choose(tuple(CausalConv1dActivation)))

"""Runs the three operations of a recurrent network on a device and compares each with its reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.engines.base import Anchors, Choices, Engine
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_backward_data import RnnBackwardData
from lowdnn.ops.rnn_backward_weights import RnnBackwardWeights
from lowdnn.ops.rnn_forward import RnnForward
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.recurrent import Training, batch_major, draw, training
from tests.support.running import check_outputs

Array = NDArray[Any]
RnnOperation = RnnForward | RnnBackwardData | RnnBackwardWeights

LAYOUTS = ("time", "batch", "packed")

#: A NaN whose bits are all set, in narrower types too.
_ALL_BITS = np.array(-1).view(np.float64)


def check_training(
    runtime: Runtime,
    engine: Engine,
    rnn: Rnn,
    data_type: DataType,
    *,
    lengths: tuple[int, ...] | None = None,
    layout: str = "time",
    is_added: bool = False,
    without: tuple[str, ...] = (),
    choices: Choices | None = None,
    arch: ArchSpec = SM_90A,
    padding_fill: float = 0.0,
    nan_in: str = "",
    anchors: Anchors = (),
) -> list[Plan]:
    """An inference, a training pass and both gradients, as far as ``engine`` computes them, each on the values that the
    references of the others give.

    without: optional ports that are left out.  choices: the tiles of those engines that have them.  nan_in: a port
    whose first two values are NaNs with all bits set.  anchors: the operations that are checked, or () for all of them.
    Returns the plans.
    """
    seed = fresh_seed()
    rng, given = np.random.default_rng(seed), None if lengths is None else np.array(lengths)
    made = training(rnn, data_type, given, is_packed=layout == "packed")
    if layout == "batch":
        made = _batch_major(made)
    if layout == "spaced":
        made = _spaced(made)
    made = _without(made, without)
    values = _stored_values(rng, made, given, nan_in)
    backward_weights = replace(made.backward_weights, is_added=is_added)
    forward = replace(made.forward, padding_fill=padding_fill)
    return [
        _check(runtime, engine, operation, values, arch, choices or {}, f"seed {seed}")
        for operation in (_inference(forward), forward, made.backward_data, backward_weights)
        if isinstance(operation, anchors or engine.anchors)
    ]


def _inference(forward: RnnForward) -> RnnForward:
    if forward.rnn.drops:
        rnn = replace(forward.rnn, dropout_probability=0.0)
        forward = replace(forward, rnn=rnn, dropout_seed=None, dropout_offset=None)
    return replace(forward, gates=None, cells=None, outputs=None, unprojected=None)


def _check(
    runtime: Runtime,
    engine: Engine,
    operation: RnnOperation,
    values: Mapping[str, Array],
    arch: ArchSpec,
    choices: Choices,
    context: str,
) -> Plan:
    graph = OperationGraph([operation])
    refusal = engine.refuse(graph, arch)
    assert refusal is None, str(refusal)
    knobs = {knob.type for knob in engine.knobs(graph, arch)}
    plan = engine.plan(graph, arch, {knob: value for knob, value in choices.items() if knob in knobs})
    ports = inputs_of(operation)
    if isinstance(operation, RnnBackwardWeights) and operation.is_added:
        ports |= outputs_of(operation)
    inputs = {tensor.uid: values[port] for port, tensor in ports.items()}
    check_outputs(runtime, plan, graph, inputs, 1, f"{context}, {type(operation).__name__} {operation.rnn}")
    return plan


def _stored_values(rng: np.random.Generator, made: Training, lengths: Array | None, nan_in: str) -> dict[str, Array]:
    """Storage arrays by port. Padding of what the kernels read is NaN."""
    tensors: dict[str, Any] = {}
    for operation in (made.forward, made.backward_data, made.backward_weights):
        tensors |= inputs_of(operation) | outputs_of(operation)
    drawn = {port: values for port, values in draw(rng, made, lengths).items() if port in tensors}
    if nan_in:
        drawn[nan_in].flat[:2] = _ALL_BITS
    stored = {port: _stored(values, tensors[port].data_type) for port, values in drawn.items()}
    values = made.reference({port: dtypes.to_values(stored[port], tensors[port].data_type) for port in stored})
    values |= {"dw": rng.standard_normal(tensors["dw"].dims)}
    if lengths is not None and len(tensors["x"].dims) == 3:
        padding = np.arange(made.forward.rnn.max_length)[:, np.newaxis] >= lengths
        for port in ("x", "dy"):
            values[port] = np.where(padding[..., np.newaxis], np.nan, values[port])
    return {port: _stored(values[port], tensor.data_type) for port, tensor in tensors.items()}


def _stored(values: Array, data_type: DataType) -> Array:
    return dtypes.from_float64(np.asarray(values), data_type)


def _batch_major(made: Training) -> Training:
    def changed(operation: Any, *ports: str) -> Any:
        found = {port: getattr(operation, port) for port in ports}
        return replace(operation, **{port: batch_major(tensor) for port, tensor in found.items() if tensor})

    return Training(
        changed(made.forward, "x", "y"),
        changed(made.backward_data, "dy", "dx", "y"),
        changed(made.backward_weights, "x", "y"),
    )


def _spaced(made: Training) -> Training:
    """Rows of the output with an element between them, so that most begin at no multiple of 16 bytes."""
    y = made.forward.y
    rows, elements = y.dims[:-1], y.dims[-1] + 1
    spaced = replace(y, strides=(*(stride // y.dims[-1] * elements for stride in y.strides[: len(rows)]), 1))
    return replace(made, forward=replace(made.forward, y=spaced))


def _without(made: Training, ports: tuple[str, ...]) -> Training:
    def changed(operation: Any) -> Any:
        return replace(operation, **{port: None for port in ports if hasattr(operation, port)})

    return Training(changed(made.forward), changed(made.backward_data), changed(made.backward_weights))

"""Expected results of a random graph, their tolerances, and a run of the graph.

A tolerance follows from the graph: it is evaluated several times with every intermediate changed at random by about
its rounding error, and a kernel's result may differ by a few times the changes that this makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.cases.compare import EXACT, differences, sums_exactly, tolerance
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import Operation, RoundsInside, inputs_of, outputs_of
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.ragged import RaggedStore
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.random_graphs.growth import Array, Grown
from tests.support.running import is_of_sequences, run_plan

#: Evaluations with changed intermediates.
_EVALUATIONS = 6
#: Times their greatest change that a result may be off.
_FACTOR = 4.0
#: Roundings of the arithmetic inside of one operation.
_ROUNDINGS = 16
_TF32_EPSILON, _FAST_FP8_EPSILON = 2.0**-10, 2.0**-13


def planned(grown: Grown, arch: ArchSpec) -> Plan:
    """The plan of first choice. Fails if no engine takes the graph."""
    ranking = rank(grown.graph, arch, HeurMode.A, ENGINES)
    assert ranking.best is not None, f"refused: {ranking.explain()}"
    return ranking.best.plan


def problem_of(runtime: Runtime, grown: Grown, plan: Plan, unrounded: Collection[int] | None = None) -> str:
    """The mistake in the results of ``plan``, or an empty string.

    unrounded: uids of virtual tensors that kernels may round in another way; None: all of them, or not at all.
    """
    actual = run_plan(runtime, plan, grown.graph, grown.inputs)
    for op in grown.graph.operations:
        # Rows outside of sequences stay as they are, which the oracle has as zeros; a virtual tensor has none.
        if isinstance(op, RaggedStore) and op.y.uid in actual:
            stored = actual[op.y.uid]
            is_kept = is_of_sequences(op, grown.inputs)[:, None]
            actual[op.y.uid] = np.where(is_kept, stored, np.zeros_like(stored))
    expected = evaluate(grown.graph, grown.inputs)
    is_exact = grown.is_exact and sums_exactly(plan)
    changed = [] if is_exact else _changed(grown, plan.numerical_notes, unrounded)
    found = (
        _problem(grown.graph.tensors[uid], actual[uid], wanted, [values[uid] for values in changed])
        for uid, wanted in expected.items()
    )
    return "\n".join(filter(None, found))


def _problem(tensor: Tensor, actual: Array, expected: Array, changed: list[Array]) -> str:
    """How one output differs. ``changed``: its values in the other evaluations, none if it must be exact."""
    if not changed:
        wrong = differences(actual, expected, tensor.data_type, EXACT)
        return f"{tensor.label}: {wrong}" if wrong else ""
    base = tolerance(ToleranceClass.POINTWISE, tensor.data_type)
    got, wanted = (_values(array, tensor) for array in (actual, expected))
    others = [_values(array, tensor) for array in changed]
    with np.errstate(invalid="ignore"):
        spread = np.max([np.abs(other - wanted) for other in others], axis=0)
        allowed = base.absolute + base.relative * np.abs(wanted) + _FACTOR * (spread + _mean(spread))
        near = np.abs(got - wanted) <= allowed
    is_open = np.any([np.isnan(other) != np.isnan(wanted) for other in others], axis=0)
    same = (near & np.isfinite(wanted)) | (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | is_open
    if same.all():
        return ""
    place = tuple(int(index) for index in np.argwhere(~same)[0])
    count = int((~same).sum())
    return (
        f"{tensor.label}: {count} of {same.size} elements differ, at {place}: got {got[place]!r}, expected "
        f"{wanted[place]!r} within {allowed[place]:.3g}"
    )


def _changed(
    grown: Grown, notes: Collection[NumericalNote], unrounded: Collection[int] | None
) -> list[dict[int, Array]]:
    """The outputs by uid of evaluations with changed intermediates, and of one that rounds none of them."""
    rng = np.random.default_rng(0)
    graph, inputs = grown.graph, grown.inputs
    rounds_elsewhere = unrounded is None or any(isinstance(op, RoundsInside) for op in graph.operations)
    found = [evaluate(graph, inputs, rounds_virtual=False)] if rounds_elsewhere else []
    with np.errstate(over="ignore", invalid="ignore"):  # changes may lead beyond the greatest number
        return [*found, *(_evaluated(graph, inputs, notes, rng, unrounded or ()) for _ in range(_EVALUATIONS))]


def _evaluated(
    graph: OperationGraph,
    inputs: Mapping[int, Array],
    notes: Collection[NumericalNote],
    rng: np.random.Generator,
    unrounded: Collection[int] = (),
) -> dict[int, Array]:
    values = {
        tensor.uid: (
            dtypes.to_values(inputs[tensor.uid], tensor.data_type)
            if tensor.constant_value is None
            else dtypes.rounded(np.full(tensor.dims, tensor.constant_value), tensor.data_type)
        )
        for tensor in graph.tensors.values()
        if tensor.constant_value is not None or tensor.uid in inputs
    }
    stored: dict[int, Array] = {}
    for operation in graph.operations:
        ports = inputs_of(operation) | {port: t for port, t in outputs_of(operation).items() if t.uid in values}
        given = {port: values[tensor.uid] for port, tensor in ports.items()}
        if isinstance(operation, RoundsInside):
            with _rounding_either_way(rng):
                results = operation.rounded_reference(given)
        else:
            results = operation.reference(given)
        for port, tensor in outputs_of(operation).items():
            error = dtypes.info(tensor.data_type).epsilon if tensor.uid in unrounded else 0.0
            changed = _perturbed(results[port], max(error, _error(operation, notes)), rng)
            stored[tensor.uid] = dtypes.from_float64(changed, tensor.data_type)
            values[tensor.uid] = dtypes.to_values(stored[tensor.uid], tensor.data_type)
    return {tensor.uid: stored[tensor.uid] for tensor in graph.outputs}


@contextmanager
def _rounding_either_way(rng: np.random.Generator) -> Iterator[None]:
    """Lets intermediates be rounded to either of their neighbours: errors before the rounding may decide which."""
    exact = dtypes.rounded

    def rounded(values: Array, data_type: DataType) -> Array:
        error = dtypes.info(data_type).epsilon / 2
        return exact(values * (1 + error * rng.uniform(-1, 1, values.shape)), data_type)

    with patch.object(dtypes, "rounded", rounded):
        yield


def _error(operation: Operation, notes: Collection[NumericalNote]) -> float:
    """The error of one result of an operation, relative to the larger of its results."""
    if operation.tolerance_class is ToleranceClass.EXACT:
        return 0.0
    sums = dtypes.info(accumulator_type(operation.compute_type))
    epsilon = _ROUNDINGS * sums.epsilon if sums.kind is dtypes.Kind.FLOAT else 0.0
    if operation.tolerance_class is not ToleranceClass.CONTRACTION:
        return epsilon
    operands = {tensor.data_type for tensor in inputs_of(operation).values()}
    if operands & set(dtypes.FP8_TYPES):
        epsilon = max(epsilon, _FAST_FP8_EPSILON)
    return max(epsilon, _TF32_EPSILON) if NumericalNote.TF32_INPUTS in notes else epsilon


def _perturbed(values: Array, error: float, rng: np.random.Generator) -> Array:
    """``values``, floats, with random errors relative to each value and to their mean magnitude."""
    if values.dtype.kind != "f":
        return values
    size = np.abs(values) + _mean(np.abs(values))
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values), values + error * size * rng.uniform(-1, 1, values.shape), values)


def _mean(values: Array) -> float:
    """The mean of the finite values."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else 0.0


def _values(array: Array, tensor: Tensor) -> Array:
    return dtypes.to_values(array, tensor.data_type).astype(np.float64)

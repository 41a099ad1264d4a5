"""Checks of near misses: what recognises them and the engines that take them agree with the oracle, fused or not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases.compare import Tolerance, differences, tolerance
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Engine
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.near_misses.drawing import NearMiss, exact, near_misses, with_data, with_inputs
from tests.support.near_misses.meaning import gradients_as_one, gradients_in_parts, meanings
from tests.support.near_misses.mutations import KINDS
from tests.support.near_misses.pattern import Array, Known
from tests.support.random_graphs.checking import problem_of
from tests.support.random_graphs.growth import Grown

#: Problems that a failure shows.
_SHOWN = 5
#: Roundings of one result of few bits on its way, which may fall to the other side.
_ROUNDINGS = 4
#: The relative error of a weight from rounding an exponent of 10,000 to fp32; a wrong reading is off by far more.
_OF_EXPONENTS = 1e-3
#: The share of elements that may be farther off, since a value between two that are so rounded decides over them.
_FAR = 0.06


def assert_read_right(known: Known, most: int | None = None) -> None:
    """The engines of the pattern take it, and what recognises it or a near miss of it reads it as the oracle does.

    most: near misses that are read, drawn where there are more; ``tools/checks/near_misses.py`` reads the others too.
    """
    seed = fresh_seed()
    problems = misreadings(known, seed, most)
    assert not problems, "\n".join([f"seed {seed}, {len(problems)} near misses", *problems[:_SHOWN]])


def assert_run_right(runtime: Runtime, known: Known, fused: int = 2, apart: int = 1) -> None:
    """Near misses that are drawn, so many that one kernel takes and that several take, give what the oracle does.

    ``tools/checks/near_misses.py`` runs the others too.
    """
    seed = fresh_seed()
    problems = wrong_runs(runtime, known, seed, {True: fused, False: apart})
    assert not problems, "\n".join([f"seed {seed}", *problems])


def misreadings(known: Known, seed: int, most: int | None = None) -> list[str]:
    """The mistakes of recognisers of the pattern, and of its near misses or ``most`` that are drawn of them."""
    rng, pattern, name = np.random.default_rng(seed), known.pattern, known.name
    itself = exact(pattern, rng).graph
    taken = {engine.name for engine in takers(itself)}
    problems = [f"{name}: expected {', '.join(known.engines)} to take it, got {', '.join(sorted(taken))}"]
    problems = [] if taken >= set(known.engines) else problems
    found = _repeated_misreading(known, ("exact", "itself", itself), rng)
    problems += [f"{name}: {found}"] if found else []
    for kind, label, graph in islice(near_misses(pattern, rng=None if most is None else rng), most):
        found = _repeated_misreading(known, (kind, label, graph), rng)
        problems += [f"{name}, {kind}, {label}: {found}"] if found else []
    return problems


def _repeated_misreading(known: Known, drawn: tuple[str, str, OperationGraph], rng: np.random.Generator) -> str:
    """The mistake that recognisers of the graph make with two draws of inputs, or an empty string.

    A wrong reading is wrong with any inputs. A value halfway between two numbers of its type, which one order of sums
    rounds up and another down, comes with few.
    """
    found = ""
    for _ in range(2):
        found = misreading(NearMiss(*drawn, with_inputs(known.pattern, drawn[2], rng)))
        if not found:
            break
    return found


def misreading(near_miss: NearMiss) -> str:
    """The mistake of a recogniser of the graph, or an empty string, also where the inputs mean nothing."""
    with np.errstate(all="ignore"):
        try:
            expected = evaluate(near_miss.graph, near_miss.inputs)
        except (ValueError, IndexError, KeyError):
            return ""
        try:
            return _misreading(near_miss.graph, near_miss.inputs, expected)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def wrong_runs(runtime: Runtime, known: Known, seed: int, counts: dict[bool, int]) -> list[str]:
    """The wrong results of near misses drawn at random.  counts: runs of those that one kernel takes (True), and that
    several take (False)."""
    rng, pattern = np.random.default_rng(seed), known.pattern
    by_kind = {kind: near_misses(pattern, (kind,), rng) for kind in KINDS}
    problems, left = [], dict(counts)
    while any(left.values()) and by_kind:
        kind = str(rng.choice([*by_kind]))
        drawn = next(by_kind[kind], None)
        if drawn is None:
            del by_kind[kind]
            continue
        engines = takers(drawn[2])
        is_fused = engines[:1] != [] and engines[0].name != "composite"
        near_miss = with_data(pattern, *drawn, rng) if left[is_fused] or not engines else None
        if near_miss is None:
            continue
        left[is_fused] -= 1
        engine = engines[int(rng.integers(len(engines)))] if engines else None
        where = f"{known.name}, {kind}, {drawn[1]}"
        if engine is None:
            problems.append(f"{where}: expected an engine that takes it, got none")
            continue
        try:
            with np.errstate(all="ignore"):
                found = wrong_run(runtime, near_miss, engine)
        except Exception as error:  # an error spoils the device
            return [*problems, f"{where}, {engine.name}: {type(error).__name__}: {error}"]
        problems += [f"{where}, {engine.name}: {found}"] if found else []
    return problems


def takers(graph: OperationGraph) -> list[Engine]:
    """The engines that take the whole graph on the newest generation; ``composite`` where no other does."""
    return [engine for engine in ENGINES if graph.derive(engine.refuse, SM_90A) is None]


def wrong_run(runtime: Runtime, near_miss: NearMiss, engine: Engine) -> str:
    """The mistake in the results of ``engine``, or an empty string."""
    plan = engine.plan(near_miss.graph, SM_90A, {})
    grown = Grown(near_miss.graph, near_miss.inputs, is_exact=False)
    return problem_of(runtime, grown, plan, unrounded=near_miss.unrounded)


def _misreading(graph: OperationGraph, inputs: dict[int, Array], expected: dict[int, Array]) -> str:
    for name, found in meanings(graph, inputs):
        if problem := _difference(graph, found, expected):
            return f"{name}: {problem}"
    for other in (gradients_in_parts(graph), gradients_as_one(graph)):
        if other is not None and (problem := _difference_from(graph, other, inputs)):
            return problem
    return ""


def _difference_from(graph: OperationGraph, other: OperationGraph, inputs: dict[int, Array]) -> str:
    """The difference of the outputs of ``other`` from those of ``graph``, whose inputs it may describe transposed."""
    own = {
        uid: array if array.shape == other.tensors[uid].dims else array.swapaxes(-1, -2)
        for uid, array in inputs.items()
        if uid in other.tensors
    }
    found, wanted = (evaluate(each, given, rounds_virtual=False) for each, given in ((other, own), (graph, inputs)))
    return _difference(graph, found, wanted, of_exponents=_OF_EXPONENTS)


def _difference(
    graph: OperationGraph, found: dict[int, Array], expected: dict[int, Array], of_exponents: float = 0.0
) -> str:
    """of_exponents: a relative error of results that is allowed beside their rounding."""
    if set(found) != set(expected):
        labels = sorted(graph.tensors[uid].label for uid in set(found) ^ set(expected))
        return f"expected the graph's outputs, got others: {', '.join(labels)}"
    for uid, wanted in expected.items():
        tensor = graph.tensors[uid]
        allowed = _tolerance(tensor.data_type)
        allowed = replace(allowed, relative=max(allowed.relative, of_exponents))
        if _far_share(found[uid], wanted, tensor.data_type, allowed) > _FAR:
            return f"{tensor.label}: {differences(found[uid], wanted, tensor.data_type, allowed)}"
    return ""


def _far_share(found: Array, wanted: Array, data_type: DataType, allowed: Tolerance) -> float:
    """The share of the elements that are far off; 1 where shapes differ."""
    if found.shape != wanted.shape or not found.size:
        return float(found.shape != wanted.shape)
    got, right = (dtypes.to_values(array, data_type).astype(np.float64) for array in (found, wanted))
    with np.errstate(invalid="ignore"):
        near = np.abs(got - right) <= allowed.limits(right)
    return float(1 - (near | (got == right) | (np.isnan(got) & np.isnan(right))).mean())


def _tolerance(data_type: DataType) -> Tolerance:
    """DOUBLE holds what is computed in FLOAT; fewer bits round to either side."""
    if data_type in (DataType.FLOAT, DataType.DOUBLE):
        return tolerance(ToleranceClass.POINTWISE, DataType.FLOAT)
    allowed = tolerance(ToleranceClass.POINTWISE, data_type)
    return Tolerance(_ROUNDINGS * allowed.relative, _ROUNDINGS * allowed.absolute)

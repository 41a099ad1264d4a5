"""Making bundles, which takes a compiler and no device, and checking the plans of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.cases import parse_case
from lowdnn.cases.base import Case
from lowdnn.documents import is_name
from lowdnn.driver import nvrtc
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.bundled_plans import bundled_plan, made_again
from lowdnn.heuristics.ranking import Candidate, rank
from lowdnn.heuristics.tuning.record_books import Records
from lowdnn.plan import KernelRef
from lowdnn.runtime.bundle import Bundle, BundledImage, BundledPlan
from lowdnn.runtime.compile import KernelCompiler, machine_arch_of
from lowdnn.status import BadParamError, NotSupportedError

#: The text of a graph, and the candidate that is to run it.
Chosen = tuple[str, Candidate]


def bundle_of(chosen: Iterable[Chosen], arch: ArchSpec, compiler: KernelCompiler, jobs: int | None = None) -> Bundle:
    """The choices of candidates for ``arch``, the first one of each graph, and the images of their kernels.

    jobs: kernels that are compiled at a time, by default as many as there are processors.
    Raises CompilationFailedError.
    """
    plans: dict[str, BundledPlan] = {}
    kernels: dict[KernelRef, None] = {}
    for text, candidate in chosen:
        if candidate.graph.key not in plans:
            plans[candidate.graph.key] = bundled_plan(candidate, text if is_name(text) else "")
            kernels |= dict.fromkeys(candidate.plan.kernels)

    def images(kernel: KernelRef) -> list[BundledImage]:
        machine_arch = machine_arch_of(kernel, arch.compute_capability)
        return compiler.to_bundle(kernel, machine_arch if nvrtc.assembles_for(machine_arch) else "")

    compiler_build = compiler.build()
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        found = sorted(chain.from_iterable(pool.map(images, kernels)), key=lambda image: (image.kernel, image.output))
    ordered = sorted(plans.values(), key=lambda plan: (plan.case, plan.graph))
    return Bundle(arch.name, arch.sm_count, compiler_build, tuple(found), tuple(ordered))


def best_choices(cases: Iterable[Case], arch: ArchSpec, records: Records | None = None) -> Iterator[Chosen]:
    """The first choices of heuristics mode A for the graphs of ``cases``.

    records: the tuning records that they follow, by default those of the package alone.
    Raises NotSupportedError, with the case, for a graph that no engine takes.
    """
    seen = set()
    for case in cases:
        graph = _graph(case)
        if graph.key not in seen:
            seen.add(graph.key)
            yield str(case), _best(case, graph, arch, records)


def check_plans(bundle: Bundle) -> None:
    """Makes each plan of a bundle again whose case is told, and compares it. Raises BadParamError for another one."""
    arch = spec_named(bundle.arch).with_sm_count(bundle.sm_count)
    for place, plan in enumerate(bundle.plans):
        if not plan.case:
            continue
        where = f"bundle.plans[{place}]"
        graph = parse_case(plan.case).graph()
        if graph.key != plan.graph:
            raise BadParamError.at(f"{where}.graph", expected=f"{graph.key}, that of {plan.case!r}", got=plan.graph)
        made_again(plan, graph, arch, ENGINES, where)


def _graph(case: Case) -> OperationGraph:
    try:
        return case.graph()
    except (BadParamError, NotSupportedError) as error:
        raise type(error)(f"{error.detail}; in {str(case)!r}") from None


def _best(case: Case, graph: OperationGraph, arch: ArchSpec, records: Records | None) -> Candidate:
    ranking = rank(graph, arch, HeurMode.A, ENGINES, records)
    if ranking.best is None:
        raise NotSupportedError.at(f"case {str(case)!r}", expected="an engine that takes it", got=ranking.explain())
    return ranking.best

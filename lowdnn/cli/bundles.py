"""``lowdnn cache export`` and ``import``: bundles, which take a compiler to make and none to use."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence

from lowdnn.arch.specs import ArchSpec, spec_from_outside, spec_named
from lowdnn.cases.ranges import has_ranges
from lowdnn.cli.kernels import shapes_of
from lowdnn.cli.options import check_ranges
from lowdnn.cli.reading import ReadCase, read_cases, read_lines
from lowdnn.config import Config
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.events import Counters
from lowdnn.heuristics.bundling import Chosen, best_choices, bundle_of, check_plans
from lowdnn.heuristics.kernel_sets import kernel_set
from lowdnn.heuristics.ranking import rank
from lowdnn.heuristics.tuning.record_books import Records, records_of
from lowdnn.runtime.bundle import PTX, Bundle
from lowdnn.runtime.bundle_file import check_bundle_place, load_bundle, write_bundle
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import KernelCompiler
from lowdnn.runtime.imported import import_bundle
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError


def export_bundle(arguments: argparse.Namespace, cache: DiskCache | None) -> int:
    """Writes the bundle of the cases; what ``cache`` has is not compiled again.

    1 where there are more shapes than the kernels serve that the caller allows, otherwise 0.
    """
    check_bundle_place(arguments.output)
    texts = [*arguments.cases, *(f"@{path}" for path in arguments.log)]
    check_ranges("cache.export", arguments, {"jobs": (1, 256), "shapes": (1, 10**5), "max_kernels": (1, 10**6)})
    counters, sources = Counters(), SourceTree()
    compiler = KernelCompiler(sources=sources, store=ModuleStore.installed(), cache=cache, counters=counters)
    records = records_of(Config.from_environment(), sources, takes_estimates=False)
    arch = _arch(arguments)
    chosen, waiting = _chosen(texts, arch, records, arguments)
    bundle = bundle_of(chosen, arch, compiler, arguments.jobs)
    if not bundle.plans:
        raise BadParamError.at("cache.export.cases", expected="at least one case", got="none")
    size_bytes = write_bundle(arguments.output, bundle)
    facts = {"file": arguments.output, "bytes": size_bytes, **_facts(bundle), "shapes_without_kernel": waiting}
    _print({**facts, "compiled": counters.snapshot().get("compiles", 0)}, arguments)
    return 1 if waiting else 0


def import_bundle_file(arguments: argparse.Namespace, cache: DiskCache) -> int:
    """Puts a bundle into ``cache``, all of it or nothing; its plans are made here and compared before."""
    bundle = load_bundle(arguments.file, trust=arguments.trust)
    check_plans(bundle)
    import_bundle(bundle, cache)
    _print({"file": arguments.file, **_facts(bundle), "directory": cache.facts().directory}, arguments)
    return 0


def _chosen(
    texts: Sequence[str], arch: ArchSpec, records: Records, arguments: argparse.Namespace
) -> tuple[Iterable[Chosen], int]:
    """The best plans of the cases; of cases with ranges, and under a bound of kernels, those of a set of kernels, and
    the number of shapes that the set leaves without one."""
    lines = list(read_lines(texts))
    if arguments.max_kernels is None and not any(has_ranges(line.text) for line in lines):
        return _best_choices(read_cases(texts), arch, records), 0
    found = kernel_set(
        shapes_of(lines, arguments.shapes),
        lambda graph: rank(graph, arch, HeurMode.A, ENGINES, records),
        ENGINES,
        arguments.max_kernels,
    )
    return [(each.shape.name, each.served) for each in found.shapes if each.served is not None], found.waiting


def _best_choices(cases: Iterable[ReadCase], arch: ArchSpec, records: Records) -> Iterable[Chosen]:
    for read in cases:
        with read.line.named():
            yield from best_choices([read.case], arch, records)


def _arch(arguments: argparse.Namespace) -> ArchSpec:
    sm_count = spec_named(arguments.arch).sm_count if arguments.sm_count is None else arguments.sm_count
    arch = spec_from_outside(arguments.arch, sm_count, "cache.export")
    return arch if arguments.product is None else arch.with_product(arguments.product)


def _facts(bundle: Bundle) -> dict[str, object]:
    outputs = Counter(image.output == PTX for image in bundle.images)
    return {
        "arch": bundle.arch,
        "sm_count": bundle.sm_count,
        "plans": len(bundle.plans),
        "machine_code": outputs[False],
        "ptx": outputs[True],
    }


def _print(facts: dict[str, object], arguments: argparse.Namespace) -> None:
    lines = (f"{name.replace('_', ' '):22} {value}" for name, value in facts.items())
    print(json.dumps(facts) if arguments.json else "\n".join(lines))

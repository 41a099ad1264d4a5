"""``lowdnn cache export`` and ``import``: bundles, which take a compiler to make and none to use."""

from __future__ import annotations

import argparse
import json
from collections import Counter

from lowdnn.arch.specs import ArchSpec, spec_from_outside, spec_named
from lowdnn.cli.reading import read_cases
from lowdnn.config import Config
from lowdnn.events import Counters
from lowdnn.heuristics.bundling import bundle_of, check_plans
from lowdnn.heuristics.tuning.record_books import records_of
from lowdnn.runtime.bundle import PTX, Bundle
from lowdnn.runtime.bundle_file import load_bundle, write_bundle
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import KernelCompiler
from lowdnn.runtime.imported import import_bundle
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError


def export_bundle(arguments: argparse.Namespace, cache: DiskCache | None) -> int:
    """Writes the bundle of the cases; what ``cache`` has is not compiled again."""
    cases = list(read_cases([*arguments.cases, *(f"@{path}" for path in arguments.log)]))
    if not cases:
        raise BadParamError.at("cache.export.cases", expected="at least one case", got="none")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise BadParamError.at("cache.export.jobs", expected="at least 1", got=arguments.jobs)
    counters, sources = Counters(), SourceTree()
    compiler = KernelCompiler(sources=sources, store=ModuleStore.installed(), cache=cache, counters=counters)
    records = records_of(Config.from_environment(), sources, takes_estimates=False)
    bundle = bundle_of(cases, _arch(arguments), compiler, records, arguments.jobs)
    size_bytes = write_bundle(arguments.output, bundle)
    compiled = counters.snapshot().get("compiles", 0)
    _print({"file": arguments.output, "bytes": size_bytes, **_facts(bundle), "compiled": compiled}, arguments)
    return 0


def import_bundle_file(arguments: argparse.Namespace, cache: DiskCache) -> int:
    """Puts a bundle into ``cache``, all of it or nothing; its plans are made here and compared before."""
    bundle = load_bundle(arguments.file, trust=arguments.trust)
    check_plans(bundle)
    import_bundle(bundle, cache)
    _print({"file": arguments.file, **_facts(bundle), "directory": cache.facts().directory}, arguments)
    return 0


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
    lines = (f"{name:13} {value}" for name, value in facts.items())
    print(json.dumps(facts) if arguments.json else "\n".join(lines))

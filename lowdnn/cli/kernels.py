"""``lowdnn kernels``: the kernels that a workload needs, few that serve it, and their compilation ahead."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

from lowdnn.backend.building import built, checked_cache
from lowdnn.backend.handle import Handle
from lowdnn.cli.kernels_arguments import add_kernels_arguments
from lowdnn.cli.options import Options, opened
from lowdnn.cli.reading import Line, read_lines, short_text
from lowdnn.config import CompilePolicy
from lowdnn.enums import HeurMode
from lowdnn.frontend.kernel_sets import workload_of
from lowdnn.heuristics.kernel_sets import KernelSet, Shape, kernel_set

#: Most cases without a kernel that the output lists.
_MOST_WAITING = 10


def kernels(arguments: argparse.Namespace) -> int:
    """Prints the set and, with ``--build``, compiles it; 1 where the set leaves shapes without a kernel."""
    workload = shapes_of(read_lines(arguments.cases), arguments.shapes)
    policy = CompilePolicy.AVOID  # so that all kernels, those with precompiled PTX included, become machine code
    with opened(arguments, Options("kernels", arguments, add_kernels_arguments), policy) as handle:
        if arguments.build:
            checked_cache(handle)  # choosing a set may take minutes
        found = kernel_set(
            workload, lambda graph: handle.rank(graph, HeurMode.A), handle.engines, arguments.max_kernels
        )
        if arguments.json:
            print(json.dumps(_document(found)))
        else:
            print("\n".join(_table(found)), flush=True)
        if arguments.build:
            _build(found, handle, is_silent=arguments.json)
    return 1 if found.waiting else 0


def shapes_of(lines: Iterable[Line], shapes: int) -> list[Shape]:
    """The shapes that the lines stand for (``workload_of``). Raises BadParamError, with the place of a line."""
    found: list[Shape] = []
    for line in lines:
        with line.named():
            found += workload_of([line.text], shapes)
    return found


def _build(found: KernelSet, handle: Handle, *, is_silent: bool) -> None:
    for number, kernel in enumerate(built(found, handle), 1):
        if not is_silent:
            print(f"{number:4} of {len(found.kernels)} on disk  {kernel.name}", flush=True)


def _table(found: KernelSet) -> Iterable[str]:
    shapes, served = len(found.shapes), len(found.shapes) - found.waiting
    begin = f"{shapes} shape{'' if shapes == 1 else 's'}: the best plans need {found.needed} kernels; "
    if found.steps:
        last = found.steps[-1]
        yield (
            f"{begin}{last.count} make {served} of them {last.mean:.2f} times as slow as predicted for these, "
            f"{last.worst:.2f} at worst"
        )
    else:
        yield f"{begin}none is taken, and {served} of them run without"
    yield f"{'kernels':>7} {'mean':>6} {'worst':>6} {'waiting':>8}  added"
    for step in found.steps:
        names = ", ".join(kernel.name for kernel in step.added)
        yield f"{step.count:7} {step.mean:6.2f} {step.worst:6.2f} {step.waiting:8}  {names}"
    waiting = [shape.shape.name for shape in found.shapes if shape.served is None]
    for case in waiting[:_MOST_WAITING]:
        yield f"waits for a compiler: {short_text(case)}"
    if len(waiting) > _MOST_WAITING:
        yield f"and {len(waiting) - _MOST_WAITING} more"


def _document(found: KernelSet) -> dict[str, object]:
    return {
        "needed": found.needed,
        "steps": [
            {
                "added": [kernel.name for kernel in step.added],
                "kernels": step.count,
                "mean_slowdown": step.mean,
                "worst_slowdown": step.worst,
                "waiting": step.waiting,
            }
            for step in found.steps
        ],
        "shapes": [
            {
                "case": shape.shape.name,
                "weight": shape.shape.weight,
                "best": shape.best.plan.name,
                "served": None if shape.served is None else shape.served.plan.name,
                "slowdown": shape.slowdown,
            }
            for shape in found.shapes
        ],
    }

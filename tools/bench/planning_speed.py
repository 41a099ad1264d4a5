"""Time and memory that planning takes, for graphs of several shapes and sizes.

    python -m tools.bench.planning_speed [--shapes NAME,...] [--counts 8,16,...] [--varied] [--limit SECONDS]

A row is a graph: its operations, processor time from the operations to the plan of the first choice, and that time for
each operation. Then come the most memory in use meanwhile (from a run of its own, since counting it takes time) and the
launches of the plan. A shape ends with the first graph that takes longer than the limit.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc

from lowdnn.arch.specs import SM_90A
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import Operation
from lowdnn.plan import Plan
from tests.support.large_graphs import SHAPES

_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1000)


def main() -> None:
    options = _options()
    print(f"{'shape':<14}{'operations':>11}{'seconds':>10}{'ms each':>10}{'MiB':>9}{'launches':>10}")
    for shape in options.shapes.split(","):
        SHAPES[shape](_COUNTS[0])
        _plan(SHAPES[shape](_COUNTS[0], is_varied=options.varied).operations)  # every first plan loads modules
        for count in map(int, options.counts.split(",")):
            operations = SHAPES[shape](count, is_varied=options.varied).operations
            gc.collect()
            start = time.process_time()
            plan = _plan(operations)
            seconds = time.process_time() - start
            each_ms = 1e3 * seconds / len(operations)
            memory = f"{_peak_bytes(operations) / 2**20:>9.1f}" if seconds < options.limit / 2 else f"{'':>9}"
            row = f"{shape:<14}{len(operations):>11}{seconds:>10.3f}{each_ms:>10.2f}{memory}{len(plan.launches):>10}"
            print(row, flush=True)
            if seconds > options.limit:
                break


def _plan(operations: tuple[Operation, ...]) -> Plan:
    best = rank(OperationGraph(operations), SM_90A, HeurMode.A, ENGINES).best
    if best is None:
        sys.exit("an engine was expected to take the graph")
    return best.plan


def _peak_bytes(operations: tuple[Operation, ...]) -> int:
    """The most memory that planning holds at a time."""
    gc.collect()
    tracemalloc.start()
    _plan(operations)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"some of {', '.join(SHAPES)}")
    parser.add_argument("--counts", default=",".join(map(str, _COUNTS)), help="operations of the graphs")
    parser.add_argument("--varied", action="store_true", help="no layer has the extents of another one")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a graph, after which a shape ends")
    return parser.parse_args()


if __name__ == "__main__":
    main()

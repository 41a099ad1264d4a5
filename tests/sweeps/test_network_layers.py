"""Every layer of the benchmark networks at batch 1, in three directions: integers, bit for bit, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.bench.networks import networks
from lowdnn.cases import parse_case
from lowdnn.cases.compare import sums_exactly
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import inputs_of
from tests.support.data import fresh_seed
from tests.sweeps.torch_reference import reference
from tests.sweeps.torch_tensors import blank, execute, integers

#: Sums stay exact in fp32, and most results in bf16 too.
_LARGEST = 2
_SUM_LIMIT = 2**23


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="the reference runs on the GPU")


@pytest.fixture(scope="module")
def handle(torch: Any) -> Iterator[Handle]:
    torch.cuda.init()
    with Handle.open("cuda") as opened:
        yield opened


@pytest.mark.gpu
@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("network", networks())
def test_layers_are_exact(torch: Any, handle: Handle, network: str, direction: str) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    lines = dict.fromkeys(str(replace(layer, n=1, dir=direction)) for layer in networks()[network])
    wrong = [report for line in lines for report in _wrong_engines(torch, handle, line)]
    assert not wrong, f"seed {seed}:\n" + "\n".join(wrong)


def _wrong_engines(torch: Any, handle: Handle, line: str) -> Iterator[str]:
    """A line for each engine whose result is not exact, of all that take the case."""
    graph = parse_case(line).graph()
    (operation,) = graph.operations
    (output,) = graph.outputs
    largest = max(1, min(_LARGEST, int((_SUM_LIMIT / parse_case(line).length) ** 0.5)))
    tensors = {tensor.uid: integers(torch, tensor, largest) for tensor in graph.inputs}
    inputs = {port: tensors[tensor.uid].double() for port, tensor in inputs_of(operation).items()}
    expected = reference(torch, operation, inputs).bfloat16()
    candidates = rank(graph, handle.arch, HeurMode.A, handle.engines).candidates
    for candidate in (found for found in candidates if sums_exactly(found.plan)):
        tensors[output.uid] = blank(torch, output)
        execute(torch, handle, candidate.plan, tensors)
        differing = int((tensors[output.uid] != expected).sum())
        if differing:
            yield f"{differing} of {prod(output.dims)} differ: lowdnn run --engine {candidate.engine.name} '{line}'"

"""All-reduce, residual and RMS norm in one kernel, against float64, under every policy, and its mutants."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.backend import Handle
from lowdnn.distributed import AllReduceNorm, CommunicationTimeoutError, InProcessCommunicator
from lowdnn.driver.base import DriverError
from lowdnn.engines.norm import all_reduce_norm as engine
from lowdnn.engines.norm.all_reduce_norm import AllReduceNormProblem
from lowdnn.enums import DataType
from lowdnn.frontend.device_tensor import DeviceTensor
from lowdnn.ops.peer_stats import HEADER_WORDS
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import (
    LowdnnError,
    NotSupportedError,
    OutOfBoundError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
)
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.peer_norm import Host
from tests.support.ranks import on_handles
from tests.support.runtime import download, upload

Array = NDArray[Any]
EPSILON = 1e-3
POLICIES = ("lockstep,races", "cta-reverse,races", "warp-serial(7),races", "fuzz(1),early,races", "fuzz(5),late,races")


class Ranks:
    """Data of ``launches`` calls on each of ``ranks`` ranks, on one host thread."""

    def __init__(self, ranks: int, rows: int, columns: int, data_type: DataType, launches: int = 3) -> None:
        self.problem = AllReduceNormProblem(ranks, rows + 1, columns, data_type, EPSILON)
        rng = np.random.default_rng(fresh_seed())

        def drawn(*shape: int) -> Array:
            return dtypes.from_float64(rng.normal(size=shape), data_type)

        self.x = [[drawn(rows, columns) for _ in range(ranks)] for _ in range(launches)]
        self.residual, self.weight = drawn(rows, columns), drawn(columns)
        self.rows = rows

    def run(self, policy: str, sources: SourceTree | None = None, limit_ns: int = 10**10) -> None:
        """All launches behind each other; every rank must get the same bits, near float64's."""
        ranks, info = self.problem.ranks, dtypes.info(self.problem.data_type)
        with Host(ranks, policy, sources, limit_ns=limit_ns) as host, ExitStack() as owned:
            buffers = host.buffers(4 * HEADER_WORDS + self.problem.buffer_bytes)
            outputs, calls = [], []
            for rank, runtime in enumerate(host.runtimes):

                def put(array: Array, runtime: Any = runtime) -> Any:
                    return owned.enter_context(upload(runtime, array))

                plan = runtime.load(self.problem.plan(SM_90A, self.rows))
                common = {engine.RESIDUAL: put(self.residual).address, engine.WEIGHT: put(self.weight).address}
                common |= {engine.FIRST_BUFFER + step: buffers[(rank + step) % ranks].address for step in range(ranks)}
                for number, of_ranks in enumerate(self.x):
                    y, after = put(self.residual), put(self.residual)
                    pointers = {
                        engine.X: put(of_ranks[rank]).address,
                        engine.Y: y.address,
                        engine.NEXT_RESIDUAL: after.address,
                    }
                    calls.append((plan, {**common, **pointers}))
                    outputs.append((number, y, after))
            for plan, pointers in calls:  # all memory is there: copies from the host wait for the launches before them
                plan.execute(pointers)
            first: dict[int, bytes] = {}
            for number, y, after in outputs:
                found = [download(one, info.storage) for one in (y, after)]
                bits = b"".join(one.tobytes() for one in found)
                assert bits == first.setdefault(number, bits), "ranks differ"
                for one, wanted in zip(found, self.expected(number), strict=True):
                    values = dtypes.to_float64(one, info.data_type).reshape(wanted.shape)
                    step = 2.0 ** -(info.mantissa_bits + 1)
                    np.testing.assert_allclose(values, wanted, rtol=1.01 * step + 1e-6, atol=1e-6)

    def expected(self, number: int) -> tuple[Array, Array]:
        """(y, the next residual) in float64."""
        wide = [dtypes.to_float64(one, self.problem.data_type) for one in (*self.x[number], self.residual, self.weight)]
        total = sum(wide[1:-1], start=wide[0])
        return total / np.sqrt((total**2).mean(1, keepdims=True) + EPSILON) * wide[-1], total


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(policy: str, ranks: int) -> None:
    Ranks(ranks, 2, 40, DataType.FLOAT).run(policy)


@pytest.mark.parametrize(
    ("ranks", "rows", "columns", "data_type"),
    [
        (8, 1, 64, DataType.BFLOAT16),
        (2, 3, 130, DataType.HALF),
        (3, 140, 8, DataType.BFLOAT16),
        (2, 1, 4096 + 8, DataType.BFLOAT16),
        (1, 2, 33, DataType.FLOAT),
    ],
)
def test_against_float64(ranks: int, rows: int, columns: int, data_type: DataType) -> None:
    """Many ranks; odd columns; more rows than blocks; several groups in a thread; one rank alone."""
    Ranks(ranks, rows, columns, data_type, launches=1).run("fuzz(3)")


#: Edits of ``all_reduce_norm.cu``, and what they take away.
MUTANTS = {
    "the flag": ("return load_acquire_system(flag) == sequence;", "return true;"),
    "the acquire": ("load_acquire_system(flag)", "load_relaxed_system(flag)"),
    "the release": ("store_release_system(buffer_of", "store_relaxed_system(buffer_of"),
    "the barrier before the flag": (
        "  __syncthreads();\n  if (threadIdx.x > 0",
        "  if (threadIdx.x > 0",
    ),
    "the epoch": ("if (threadIdx.x == 0) *own.count(row) = sequence;", ""),
    "the double buffer": ("half = sequence & 1;", "half = 0;"),
    "the barrier before the count": ("__syncthreads_and(is_there)", "is_there"),
    "the order of the ranks": (
        "group_at(writer == rank ? p.x + first : buffer_of(p, 0).row(half, writer, row), column)",
        "group_at(writer == 0 ? p.x + first : buffer_of(p, 0).row(half, (rank + writer) % PEERS, row), column)",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_reported(mutant: str, tmp_path: Path) -> None:
    """By a race, by a wait for ever, or by a wrong result."""
    old, new = MUTANTS[mutant]
    engines = tmp_path / "engines"
    shutil.copytree(Path(lowdnn.__file__).parent / "engines", engines, ignore=shutil.ignore_patterns("*.py*"))
    kernel = engines / "norm" / "all_reduce_norm.cu"
    text = kernel.read_text(encoding="utf-8")
    assert text.count(old) == 1, mutant
    kernel.write_text(text.replace(old, new), encoding="utf-8")
    ranks = Ranks(3 if mutant == "the order of the ranks" else 2, 1, 2 * 4 * 64, DataType.FLOAT, launches=4)
    assert any(_fails(ranks, policy, SourceTree(engines)) for policy in POLICIES), mutant


def _fails(ranks: Ranks, policy: str, sources: SourceTree) -> bool:
    try:
        ranks.run(policy, sources, limit_ns=20_000)
    except (DriverError, AssertionError):
        return True
    return False


COLUMNS = 24


def on_ranks(
    work: Callable[[InProcessCommunicator, Callable[[Array], DeviceTensor], AllReduceNorm], None], **norm: Any
) -> None:
    """``work(communicator, device, call)`` on two ranks, for four rows of COLUMNS floats."""

    def of_rank(handle: Handle, communicator: InProcessCommunicator) -> None:
        def device(array: Array) -> DeviceTensor:
            return lowdnn.from_numpy(np.ascontiguousarray(array, np.float32), handle)

        with AllReduceNorm(communicator, handle, 4, COLUMNS, DataType.FLOAT, **norm) as call:
            call.prepare(2)
            communicator.barrier(stream=handle.borrowed_stream())
            work(communicator, device, call)

    on_handles(2, of_rank, policy="lockstep,timeout=1")


def test_calls_in_place() -> None:
    rng = np.random.default_rng(fresh_seed())
    x, residual = rng.normal(size=(2, 2, COLUMNS)), rng.normal(size=(2, COLUMNS))
    total = x.sum(0) + residual

    def work(communicator: InProcessCommunicator, device: Callable[[Array], DeviceTensor], call: AllReduceNorm) -> None:
        own, stream_of_layers, weight = device(x[communicator.rank]), device(residual), device(np.ones(COLUMNS))
        call(own, stream_of_layers, weight, own, stream_of_layers)
        call.check()
        np.testing.assert_allclose(stream_of_layers.numpy(), total, rtol=1e-5, atol=1e-5)
        norm = np.sqrt((total**2).mean(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(own.numpy(), total / norm, rtol=1e-5, atol=1e-5)

    on_ranks(work)


def test_a_rank_that_is_missing() -> None:
    def work(communicator: InProcessCommunicator, device: Callable[[Array], DeviceTensor], call: AllReduceNorm) -> None:
        if communicator.rank == 1:
            return
        x, residual, y = (device(np.full((2, COLUMNS), 7)) for _ in range(3))
        call(x, residual, device(np.ones(COLUMNS)), y, residual)
        with raises(CommunicationTimeoutError, "PeerBuffers of rank 0", expected="rank 1 to"):
            call.check()
        assert np.isnan(y.numpy()).all()
        assert (residual.numpy() == 7).all(), "nothing of the residual is lost"

    on_ranks(work, timeout_s=2e-5)


def test_what_is_no_operand() -> None:
    def work(communicator: InProcessCommunicator, device: Callable[[Array], DeviceTensor], call: AllReduceNorm) -> None:
        good, weight = device(np.zeros((2, COLUMNS))), device(np.zeros(COLUMNS))
        half = lowdnn.from_numpy(np.zeros((2, COLUMNS), np.float16), communicator_handle(call))
        wide, long = device(np.zeros((COLUMNS, 2))), device(np.zeros((5, COLUMNS)))
        cases: tuple[tuple[type[LowdnnError], str, tuple[object, ...]], ...] = (
            (UnsupportedDataTypeError, "x", (half, good, weight, good, good)),
            (ShapeMismatchError, "y", (good, good, weight, wide, good)),
            (ShapeMismatchError, "residual", (good, device(np.zeros((3, COLUMNS))), weight, good, good)),
            (ShapeMismatchError, "weight", (good, good, good, good, good)),
            (
                OutOfBoundError,
                "rows",
                (long, long, weight, long, long),
            ),
        )
        for error, field, operands in cases:
            with pytest.raises(error, match=field):
                call(*operands)

    on_ranks(work)


def communicator_handle(call: AllReduceNorm) -> Handle:
    return call._handle


@pytest.mark.parametrize(
    ("changes", "error", "expected"),
    [
        ({"ranks": 9}, OutOfBoundError, "1 to 8"),
        ({"most_rows": 0}, OutOfBoundError, "1 to"),
        ({"columns": 512 * 8 * 4 + 4}, NotSupportedError, "at most 16384"),
        ({"data_type": DataType.DOUBLE}, UnsupportedDataTypeError, "FLOAT, HALF, BFLOAT16"),
    ],
)
def test_what_the_kernel_does_not_take(changes: dict[str, Any], error: type[LowdnnError], expected: str) -> None:
    given: dict[str, Any] = {"ranks": 2, "most_rows": 1, "columns": 8, "data_type": DataType.FLOAT, "epsilon": EPSILON}
    with pytest.raises(error, match=expected):
        AllReduceNormProblem(**{**given, **changes})

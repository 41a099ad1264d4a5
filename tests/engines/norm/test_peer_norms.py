"""Batch norms of several ranks: the statistics of the whole batch, in one launch on each rank, whatever the order."""

from __future__ import annotations

import random
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lowdnn
from lowdnn.arch.specs import SM_90A, spec_named
from lowdnn.arch.targets import GENERATIONS
from lowdnn.cases import parse_case
from lowdnn.driver.base import DriverError
from lowdnn.engines.norm.batch_norm import BatchNorm
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.norm_forward import NormForward
from lowdnn.runtime.compile import machine_arch_of
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.peer_norm import ENGINE, Host, PeerCase
from tools.assemble import assemble

#: Every policy, with copies that land early and late, and the race detector where its order may show a race.
POLICIES = ("lockstep,races", "cta-reverse,races", "warp-serial(7),races", "fuzz(1),early,races", "fuzz(5),late,races")
FORWARD = "norm dims=1x4x2x2 mode=batch"
BACKWARD = f"{FORWARD} dir=bwd"
#: Blocks of a grid share each row.
SHARED = ((KnobType.CTA_COUNT, 2), (KnobType.THREADS_PER_ROW, 32), (KnobType.MULTIPLY, 1), (KnobType.TILE_CGA_M, 1))
#: A warp for each row, and one multiprocessor for all of them: blocks walk over rows.
WALKING = ((KnobType.THREADS_PER_ROW, 32), (KnobType.MULTIPLY, 1), (KnobType.CTA_COUNT, 1), (KnobType.TILE_CGA_M, 1))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("line", [FORWARD, BACKWARD])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(policy: str, line: str, ranks: int) -> None:
    """Three launches behind each other, so that both halves of the mailboxes are used again."""
    case, seed = PeerCase(line, ranks), fresh_seed()
    inputs = case.drawn(seed)
    with Host(ranks, policy) as host:
        case.check(inputs, host.run(case, inputs, 3))


@pytest.mark.parametrize(
    "case",
    [
        PeerCase(f"{FORWARD} running=yes", 3),
        PeerCase("norm dims=2x40x2x2 mode=batch layout=nhwc dtype=bf16 epilogue=relu", 2, room=5),
        PeerCase("norm dims=2x40x2x2 mode=batch layout=nhwc dtype=fp16 dir=bwd", 2, room=5),
        PeerCase("norm dims=1x3x16x16 mode=batch epilogue=residual+relu", 2, SHARED, room=3),
        PeerCase("norm dims=1x3x16x16 mode=batch dir=bwd", 2, SHARED, room=3),
        PeerCase("norm dims=1x50x4x4 mode=batch", 2, WALKING, sm_count=1),
        PeerCase("norm dims=1x50x4x4 mode=batch dir=bwd", 2, WALKING, sm_count=1),
        PeerCase("norm dims=1x5x5x5 mode=batch dtype=fp64", 8),
        PeerCase("norm dims=1x5x5x5 mode=batch dir=bwd dtype=fp64", 8),
        PeerCase("norm dims=2x6x5x5 mode=batch mean=10000", 2),
        PeerCase("norm dims=4x3 mode=batch", 1),
    ],
    ids=str,
)
def test_against_the_whole_batch(case: PeerCase) -> None:
    inputs = case.drawn(fresh_seed())
    with Host(case.ranks, "fuzz(3),early") as host:
        case.check(inputs, host.run(case, inputs))


def test_blocks_that_wait_are_resident() -> None:
    for line in (FORWARD, BACKWARD, "norm dims=8x4096x7x7 mode=batch", "norm dims=64x64x56x56 mode=batch layout=nhwc"):
        case = PeerCase(line, 2)
        launch, parameters = case.plan.launches[0], dict(case.plan.kernels[0].parameters)
        assert launch.cooperative
        assert launch.cluster == (1, 1, 1)
        assert launch.grid[0] <= SM_90A.sm_count * int(parameters["RESIDENT"])
    walking = PeerCase("norm dims=1x50x4x4 mode=batch", 2, WALKING, sm_count=1).plan
    assert 4 * walking.launches[0].grid[0] < 50, "four rows a block, so that blocks walk"


#: Batch norms of networks, whose kernels take all registers that a thread may have, or many.
WIDE = (
    "norm dims=32x256x14x14 mode=batch layout=nhwc dtype=bf16",
    "norm dims=32x64x56x56 mode=batch layout=nhwc dtype=bf16",
    "norm dims=32x2048x7x7 mode=batch layout=nhwc dtype=fp16",
    "norm dims=32x64x56x56 mode=batch",
    "norm dims=8x64x9x9 mode=batch dtype=fp64",
)


@pytest.mark.parametrize("arch", [generation.target for generation in GENERATIONS])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_registers_are_spilled(ranks: int, direction: str, arch: str) -> None:
    """On the architectures that kernels are written for; each run draws one of the cases."""
    line = f"{random.Random(fresh_seed()).choice(WIDE)} dir={direction}"
    spec = spec_named(arch)
    (kernel,) = ENGINE.plan(PeerCase(line, ranks).graph, spec, {}).kernels
    figures = assemble(kernel, machine_arch_of(kernel, spec.compute_capability))
    assert figures.registers > 0
    assert figures.spilled == 0, line


@pytest.mark.parametrize("line", [FORWARD, BACKWARD])
def test_the_same_bits_in_each_run(line: str) -> None:
    case = PeerCase(line, 3)
    inputs = case.drawn(fresh_seed())
    runs = []
    for policy in ("lockstep", "fuzz(1)", "fuzz(2),early", "cta-reverse"):
        with Host(3, policy) as host:
            runs.append([{uid: array.tobytes() for uid, array in one.items()} for one in host.run(case, inputs, 2)])
    assert all(run == runs[0] for run in runs)


def test_norms_of_several_sizes_share_buffers() -> None:
    """Backward and forward, wide and narrow, one behind the other, each with other data."""
    wide, narrow = PeerCase("norm dims=1x6x2x2 mode=batch", 2), PeerCase(BACKWARD, 2, room=2)
    with Host(2, "fuzz(4),races") as host:
        buffers = host.buffers(wide.buffer_bytes)
        for case in (wide, narrow, wide, wide, narrow):
            inputs = case.drawn(fresh_seed())
            with host.held(case, inputs, buffers) as ranks:
                for one in ranks:
                    one.launch()
                case.check(inputs, [one.outputs() for one in ranks])


@pytest.mark.parametrize("line", [f"{FORWARD} running=yes", BACKWARD])
def test_a_rank_that_is_missing(line: str) -> None:
    """The others end after the limit; results are NaN, statistics in memory stay, and the next launch does not wait."""
    case = PeerCase(line, 3)
    inputs = case.drawn(fresh_seed())
    with Host(3, "lockstep", limit_ns=20_000) as host:
        buffers = host.buffers(case.buffer_bytes)
        with host.held(case, inputs, buffers) as ranks:
            for _ in range(2):
                for one in ranks[:2]:
                    one.launch()
            for rank in range(2):
                found, before = ranks[rank].outputs(), ranks[2].outputs()
                rank_word, failure = buffers[rank].to_host()[:8].view(np.uint32)
                assert (rank_word, failure) == (rank, 3)
                for uid, array in found.items():
                    if uid == case.streamed.uid:
                        assert np.isnan(array).all()
                    elif line == BACKWARD:
                        assert np.isfinite(array).all(), "gradients of scale and bias need no other rank"
                    else:
                        assert array.tobytes() == before[uid].tobytes(), "statistics stay as they were"


#: Edits of ``row_peers.cuh``, and what they take away.
MUTANTS = {
    "the flag": ("now[k].is_of(sequence)", "true"),
    "the scope": ("typedef Mailbox<T, OF_SYSTEM> Box", "typedef Mailbox<T, OF_DEVICE> Box"),
    "the epoch": ("counts()[2 * channel] = sequence;", ""),
    "the double buffer": ("((sequence & 1) * PEERS + writer)", "(0 * PEERS + writer)"),
    "the count before the barrier": (
        "shared.sequences[row] = sequences[turn];",
        "shared.sequences[row] = counts()[2 * number_of(walk, row)] + 1;",
    ),
    "the barrier before the numbers": (
        "    __syncthreads();\n    if (walk.is_first_block())",
        "    if (walk.is_first_block())",
    ),
    "the barrier behind the numbers": ("__syncthreads_and(are_there)", "are_there"),
    "the order of the ranks": ("const u32 writer = lane();", "const u32 writer = (lane() + rank) % PEERS;"),
}

#: A row that two blocks share, and rows of several warps of a block.
ONE_ROW = PeerCase("norm dims=1x1x16x16 mode=batch", 2, SHARED)
SEVERAL_ROWS = PeerCase("norm dims=1x8x2x2 mode=batch", 2, WALKING)
#: Mutants that a single row does not show.
OF_ROWS = ("the barrier before the numbers", "the barrier behind the numbers", "the order of the ranks")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_reported(mutant: str, tmp_path: Path) -> None:
    """By a race, by a wait for ever, or by a wrong result."""
    old, new = MUTANTS[mutant]
    engines = tmp_path / "engines"
    shutil.copytree(Path(lowdnn.__file__).parent / "engines", engines, ignore=shutil.ignore_patterns("*.py*"))
    header = engines / "norm" / "row_peers.cuh"
    text = header.read_text(encoding="utf-8")
    assert text.count(old) == 1, mutant
    header.write_text(text.replace(old, new), encoding="utf-8")
    case = SEVERAL_ROWS if mutant in OF_ROWS else ONE_ROW
    sources = SourceTree(engines)
    reports = (_report(case, policy, sources) for policy in POLICIES)
    assert any(reports), mutant


def _report(case: PeerCase, policy: str, sources: SourceTree) -> str:
    """How a run of four launches, each with other data, fails; "" where it does not."""
    with Host(case.ranks, policy, sources, limit_ns=20_000) as host, ExitStack() as owned:
        buffers = host.buffers(case.buffer_bytes)
        runs = []
        for _ in range(4):
            inputs = case.drawn(fresh_seed())
            runs.append((inputs, owned.enter_context(host.held(case, inputs, buffers))))
        try:
            for _, ranks in runs:
                for one in ranks:
                    one.launch()
            for inputs, ranks in runs:
                case.check(inputs, [one.outputs() for one in ranks])
        except (DriverError, AssertionError) as error:
            return str(error)
    return ""


def test_what_no_buffers_are() -> None:
    graph = PeerCase(FORWARD, 2).graph
    (norm,) = graph.operations
    assert isinstance(norm, NormForward)
    first, second = norm.peer_stats
    for tensors, error, field, expected in (
        (
            (first, replace(second, data_type=DataType.HALF)),
            UnsupportedDataTypeError,
            "peer_stats[1].data_type",
            "FLOAT",
        ),
        ((first, replace(second, uid=first.uid)), BadParamError, "peer_stats", "a tensor for each peer"),
        ((first, replace(second, dims=(1, 7, 1, 1))), ShapeMismatchError, "peer_stats[1].dims", "as peer_stats[0]"),
        (
            (first, second, replace(second, uid=77)),
            ShapeMismatchError,
            "peer_stats[0].dims",
            "room for 4 channels of 3",
        ),
        (tuple(replace(first, uid=uid) for uid in range(9)), NotSupportedError, "peer_stats", "at most 8 peers"),
        ((first, replace(second, strides=(1, 2, 1, 1))), ShapeMismatchError, "peer_stats[1].strides", "packed"),
    ):
        with raises(error, f"norm_forward.{field}", expected=expected):
            replace(norm, peer_stats=tensors)
    (layer,) = parse_case("norm dims=4x8 mode=layer").graph().operations
    assert isinstance(layer, NormForward)
    with raises(NotSupportedError, "norm_forward.peer_stats", expected="BATCH_NORM"):
        replace(layer, peer_stats=(first, second))
    refusal = BatchNorm().refuse(graph, SM_90A)
    assert refusal is not None
    assert "peer_stats: expected at most one, got 2" in refusal.reason
    with raises(NotSupportedError, "norm.peer_stats", expected="at most one"):
        norm.reference({})


def test_documents_without_peers_are_those_of_before() -> None:
    case = PeerCase(FORWARD, 2)
    alone = parse_case(FORWARD).graph()
    assert "peer_stats" not in alone.to_json()
    assert OperationGraph.from_json(alone.to_json()) == alone
    assert OperationGraph.from_json(case.graph.to_json()) == case.graph
    assert alone.key != case.graph.key
    # The key that this graph had before operations had peers.
    assert alone.key.startswith("777cd9708dc0")

"""``lowdnn run --sanitize``: its schedules, its verdicts, and what it says of a kernel that lacks a barrier."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cli.case_results import Request, Result
from lowdnn.cli.main import main
from lowdnn.cli.sanitizing import schedules, verdicts
from lowdnn.driver.emulated.options import Options
from lowdnn.engines.registry import ENGINES
from lowdnn.runtime.sources import KernelSource, SourceTree
from tests.support.data import fresh_seed

TEXT_CASES = Path(__file__).parents[1] / "cases"
CASE = "matmul m=20 n=24 k=40 dtype=fp32"
SANITIZE = ["run", CASE, "--engine", "matmul_simt", "--device", "emulated", "--sanitize", "--seed", "5"]


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def without_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is compiled without its CTA barriers."""
    read = SourceTree.read

    def mutilated(self: SourceTree, kernel: object) -> KernelSource:
        source = read(self, kernel)  # type: ignore[arg-type]
        return replace(source, text=source.text.replace("__syncthreads();", ""), digest="0" * 64)

    monkeypatch.setattr(SourceTree, "read", mutilated)
    monkeypatch.setenv("LOWDNN_DISK_CACHE", "off")


def test_a_right_kernel_gets_one_clean_verdict_for_each_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SANITIZE, "--schedules", "2"]) == 0
    verdicts = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in verdicts] == [["clean", policy] for policy in schedules(5, 2)]
    assert all(CASE.split(" dtype")[0] in line for line in verdicts)


@pytest.mark.parametrize("place", range(3))
def test_one_schedule_with_a_fault_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    def found(*_: object) -> Iterator[Result]:
        for number in range(3):
            status = "error" if number == place else "ok"
            yield Result(CASE, "emulated", f"p{number}", "matmul_simt", "", status, 0.0, 0.0, 0, 5)

    monkeypatch.setattr("lowdnn.cli.sanitizing.verdicts", found)
    assert main(SANITIZE) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()].count("FAULT") == 1


def test_the_schedules_are_policies_that_differ_and_follow_from_the_seed() -> None:
    chosen = schedules(2**32 - 1, 5)
    assert len({Options.parse(text) for text in chosen}) == len(chosen) == 10
    assert sum(text.startswith("fuzz") for text in chosen) == 5
    assert chosen == schedules(2**32 - 1, 5)
    assert set(chosen).isdisjoint(schedules(7, 5)[3:])


@pytest.mark.usefixtures("without_barriers")
def test_a_kernel_that_lacks_barriers_is_told_with_its_whole_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SANITIZE, "--schedules", "0"]) == 1
    output = capsys.readouterr().out
    assert "FAULT    warp-serial(5),late,races" in output
    assert "uninitialised-read: 4 bytes at " in output or "uninitialised-read: 16 bytes at " in output
    assert "\n    kernel matmul_simt" in output
    assert "\n    PTX line " in output
    assert (
        "repeat: lowdnn run --device emulated --engine matmul_simt --policy 'warp-serial(5),late,races' --check"
        in output
    )


@pytest.mark.usefixtures("without_barriers")
def test_json_has_the_facts_of_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SANITIZE, "--schedules", "0", "--json"]) == 1
    found = {verdict["policy"]: verdict for verdict in lines(capsys)}
    assert set(found) == set(schedules(5, 0))
    fault = found["warp-serial(5),late,races"]["fault"]
    assert isinstance(fault, dict)
    assert fault["kind"] == "uninitialised-read"
    assert fault["kernel"].startswith("matmul_simt")
    assert fault["ptx_line"] > 0
    assert fault["block"] == [0, 0, 0]
    assert fault["buffer"] == "shared memory"


#: Small cases of engines; any other engine gets the first of the text cases that it takes.
CASES = {
    "conv_implicit_gemm_mma": "conv n=1 c=8 hw=6x6 k=16 rs=3x3 pad=1 dtype=fp16 epilogue=bias+relu",
    "conv_direct": "conv n=1 c=3 hw=6x6 k=8 rs=3x3 pad=1 dtype=fp32",
    "conv_depthwise": "conv n=1 c=6 hw=6x6 k=6 groups=6 rs=3x3 pad=1 dtype=fp16 dir=wgrad",
    "conv_fprop_wgmma": "conv n=1 c=8 hw=6x6 k=16 rs=3x3 pad=1 dtype=fp16 epilogue=bias+relu",
    "conv_dgrad_wgmma": "conv n=1 c=16 hw=6x6 k=8 rs=3x3 pad=1 stride=2 dtype=bf16 dir=dgrad",
    "conv_wgrad_wgmma": "conv n=1 c=16 hw=6x6 k=8 rs=3x3 pad=1 dtype=bf16 dir=wgrad",
    "conv_dgrad_wgmma_tf32x3": "conv n=1 c=8 hw=6x6 k=8 rs=3x3 pad=1 dtype=fp32 dir=dgrad",
    "conv_grouped_mma": "conv n=1 c=16 hw=6x6 k=16 groups=2 rs=3x3 pad=1 dtype=bf16",
    "conv_narrow_mma": "conv n=1 c=12 hw=20x30 k=36 rs=1x1 dtype=bf16",
    "conv_stem": "conv n=1 c=3 hw=6x6 k=8 rs=3x3 pad=1 stride=2 dtype=bf16 dir=dgrad",
    "conv_stem_mma": "conv n=1 c=3 hw=6x6 k=8 rs=3x3 pad=1 dtype=bf16 epilogue=bias+relu",
    "conv_stem_dgrad_mma": "conv n=1 c=3 hw=6x6 k=8 rs=3x3 pad=1 stride=2 dtype=bf16 dir=dgrad",
    "conv_stem_wgrad_mma": "conv n=1 c=3 hw=6x6 k=8 rs=3x3 pad=1 stride=2 dtype=bf16 dir=wgrad",
    "conv_wgrad_packed": "conv n=1 c=12 hw=4x6 k=20 rs=1x1 dtype=bf16 dir=wgrad",
    "conv_prologue_wgmma": "conv n=1 c=8 hw=6x6 k=16 rs=3x3 pad=1 dtype=fp16 prologue=scale+bias+relu",
    "matmul_mma": "matmul m=40 n=24 k=72 dtype=bf16",
    "matmul_wgmma": "matmul m=40 n=24 k=72 dtype=bf16",
    "matmul_prologue_wgmma": "matmul m=40 n=24 k=72 layout=nt dtype=bf16 prologue=scale+bias+relu",
    "matmul_simt": CASE,
    "pointwise": "pointwise dims=5x33 ops=relu dtype=fp16",
    "reduction": "reduction dims=5x300 axes=1 op=add dtype=fp32",
    "transform": "transform op=transpose dims=2x20x70 perm=0,2,1 dtype=bf16",
    "block_scale": "block_scale dims=5x100 axis=1 dtype=bf16",
    "norm_rows": "norm dims=5x100 mode=layer dtype=bf16",
    "batch_norm": "norm dims=2x8x5x5 mode=batch dtype=bf16",
    "softmax": "softmax dims=5x100 dtype=bf16",
    "resample": "resample n=1 c=8 hw=6x6 mode=max window=3 stride=2 pad=1 dtype=bf16",
    "resample_reduction": "resample n=1 c=8 hw=6x6 mode=avg window=6 dtype=bf16 layout=nchw",
    "moe_matmul_simt": "moe experts=2 rows=40 n=24 k=40 dtype=fp32",
    "moe_wgrad_simt": "moe dir=wgrad experts=2 rows=40 n=24 k=40 dtype=fp32",
    "moe_matmul_mma": "moe experts=2 rows=40 n=24 k=40 dtype=bf16",
    "moe_matmul_wgmma": "moe experts=2 rows=40 n=24 k=40 dtype=bf16",
    "moe_wgrad_wgmma": "moe dir=wgrad experts=2 rows=40 n=24 k=40 dtype=bf16",
    "matmul_list_wgmma": "matmuls m=40x20 n=24x8 k=72x40 layout=nt dtype=bf16",
    "attention_mma": "sdpa b=1 h=2 hk=1 q=20 kv=70 d=16 causal=bottom_right stats=yes",
    "attention_backward_mma": "sdpa_bwd b=1 h=2 hk=1 q=20 kv=70 d=16 right=0 bias=1h cap=2 dropout=0.25 ragged=yes",
    "attention_backward_wgmma": "sdpa_bwd b=1 h=2 hk=1 q=20 kv=140 d=16 right=0 place=bottom_right",
    "attention_decode": "sdpa b=1 h=2 hk=1 q=3 kv=150 d=16 causal=bottom_right stats=yes",
    "attention_wgmma": "sdpa b=1 h=2 hk=1 q=20 kv=150 d=16 causal=bottom_right stats=yes",
    "paged_cache": "transform op=load dims=2x3x15x24 page=4 dtype=bf16",
    "band_matrix": "transform op=expand dims=9x20 axis=1 lower=2 upper=1 dtype=bf16",
    "bit_mask": "transform op=pack_bits dims=3x5x7",
    "attention_backward_parts": "sdpa_bwd b=1 h=2 hk=1 q=5 kv=7 d=12 dtype=fp32",
    "rope": "rope b=2 h=5 s=7 d=64 size=32 dtype=bf16",
}


#: Engines without a case: composite has no kernels of its own, the others run only as parts of it.
WITHOUT_CASES = {"composite", "block_mask", "ragged"}


@pytest.mark.parametrize("engine", [engine.name for engine in ENGINES if engine.name not in WITHOUT_CASES])
def test_every_engine_is_clean_under_every_schedule(engine: str) -> None:
    seed = fresh_seed() >> 3
    request = Request(engine, is_checked=True, is_exact=False, repeats=0, seed=seed)
    found = list(verdicts(parse_case(CASES.get(engine) or first_case(engine)), request, "sm_90a", schedules(seed, 2)))
    assert [(one.policy, one.status, one.detail) for one in found] == [(one, "ok", "") for one in schedules(seed, 2)]


def first_case(engine: str) -> str:
    (found,) = (one for one in ENGINES if one.name == engine)
    lines = (line for path in sorted(TEXT_CASES.glob("*.txt")) for line in path.read_text().splitlines())
    return next(
        line
        for line in lines
        if line and not line.startswith("#") and found.refuse(parse_case(line).graph(), SM_90A) is None
    )


def test_a_case_that_no_engine_takes_is_refused_once(capsys: pytest.CaptureFixture[str]) -> None:
    refused = ["run", CASE, "--engine", "conv_direct", "--sanitize", "--json"]
    assert main(refused) == 1
    assert [verdict["status"] for verdict in lines(capsys)] == ["refused"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--device", "cuda"], "run.sanitize: expected the emulated device, got --device cuda"),
        (["--device", "cuda"], "python -m tools.checks.sanitize"),
        (["--policy", "lockstep"], "run.policy: expected none beside --sanitize"),
        (["--schedules", "-1"], "run.schedules: expected 0 to 10000, got -1"),
        (["--engine", "nope"], "run.engine: expected one of all"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", CASE, "--sanitize", *arguments]) == 2
    assert text in capsys.readouterr().err

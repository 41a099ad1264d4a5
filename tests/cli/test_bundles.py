"""``lowdnn cache export`` and ``import``: what another process then does without a compiler."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lowdnn
from lowdnn.backend.at_hand import choice_at_hand
from lowdnn.cases import parse_case
from lowdnn.cli.main import main
from lowdnn.enums import HeurMode
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import ArchMismatchError, AttributeTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

CASES = {
    "product": "matmul m=40 n=48 k=32 b=1 dtype=fp16 epilogue=bias+relu",
    "norm": "softmax dims=4x100 dtype=fp16",
    "network": "rnn cell=gru t=2 b=2 i=16 h=16 dtype=fp16",
}

#: Runs graphs in the ways of the library, and tells what was compiled and loaded.
PROGRAM = """
import json, sys
import numpy as np
import lowdnn, lowdnn.adv as adv, lowdnn.capi
import lowdnn.frontend as cudnn
from lowdnn.cases import parse_case
from lowdnn.cli.execution import run_graph
from lowdnn.enums import HeurMode

bundle = lowdnn.load_bundle(sys.argv[1], trust=True) if sys.argv[1] else None
facts = {}
with lowdnn.create_handle(sys.argv[2], bundle=bundle) as handle:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)
    dims = {"a": (1, 40, 32), "b": (1, 32, 48), "bias": (1, 1, 48)}
    a, b, bias = (graph.tensor(each, name=name) for name, each in dims.items())
    graph.relu(graph.add(graph.matmul(a, b), bias)).set_output(True).set_name("y").set_data_type(half)
    values = {name: np.ones(each, np.float16) for name, each in dims.items()}
    facts["y"] = float(graph.run(**values)["y"].numpy().max())
    facts["engines"] = sorted(handle.engines._made)
    facts["plans"] = graph.get_execution_plan_count()
    for text in sys.argv[3:]:
        case = parse_case(text)
        found = handle.rank(case.graph(), HeurMode.A).best
        run_graph(handle, case.graph(), found.plan, case.inputs(1, exact=False), repeats=0)
    facts["counters"] = handle.runtime.counters.snapshot()
facts["is_nvrtc_loaded"] = "nvrtc" in open("/proc/self/maps").read() or "cuda.bindings.nvrtc" in sys.modules
print(json.dumps(facts))
"""


def process(bundle: str, device: str, *texts: str) -> dict[str, Any]:
    """Runs the program, and returns the facts that it tells."""
    command = [sys.executable, "-c", PROGRAM, bundle, device, *texts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "cases.txt"
    path.write_text("# lowdnn cases with counts\n" + "".join(f"12\t{case}\n" for case in CASES.values()))
    return path


@pytest.fixture
def bundle(log: Path, device: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """The bundle of the cases for the device of the test."""
    path = log.with_name("service.bundle")
    with lowdnn.create_handle(device) as handle:
        arch, sm_count = handle.arch.name, handle.arch.sm_count
    facts_of_device = ["--arch", arch, "--sm-count", str(sm_count)]
    assert main(["cache", "export", "--log", str(log), *facts_of_device, "-o", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["arch"], facts["sm_count"], facts["plans"]) == (arch, sm_count, 3)
    assert facts["machine_code"] >= 3
    assert facts["bytes"] == path.stat().st_size
    return path


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LOWDNN_CACHE_DIR", str(tmp_path / "empty"))
    return tmp_path / "empty"


def check_nothing_compiled(facts: dict[str, Any]) -> None:
    counters = facts["counters"]
    assert not facts["is_nvrtc_loaded"]
    assert not {"compiles", "cache_misses", "images_refused", "bundled_plans_refused"} & counters.keys()
    assert counters["bundled_plans"] == len(CASES)
    assert counters["bundle_hits"] >= 1
    assert facts["engines"] == ["matmul_wgmma"], "the other engines are not imported"
    assert facts["y"] == 33.0


def test_a_process_with_a_bundle_compiles_nothing(bundle: Path, device: str, empty_cache: Path) -> None:
    texts = (CASES["norm"], CASES["network"])
    facts = process(str(bundle), device, *texts)
    check_nothing_compiled(facts)
    without = process("", device, *texts)
    assert without["is_nvrtc_loaded"]
    assert without["counters"]["compiles"] >= 1
    assert without["plans"] == facts["plans"], "the others are ranked behind it when somebody asks"
    assert without["y"] == facts["y"]


def test_a_process_behind_an_import_compiles_nothing(
    bundle: Path,
    device: str,
    empty_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["cache", "import", str(bundle)]) == 2
    assert "trust: expected True, from a caller who trusts its maker" in capsys.readouterr().err
    assert not empty_cache.exists()
    assert main(["cache", "import", str(bundle), "--trust"]) == 0
    assert str(empty_cache) in capsys.readouterr().out
    check_nothing_compiled(process("", device, CASES["norm"], CASES["network"]))
    assert main(["cache", "verify"]) == 0
    tune = ["tune", CASES["norm"], "matmul m=40 n=40 k=40", "--device", device, "--processes", "0", "--json"]
    monkeypatch.setenv("LOWDNN_TUNING_PATH", str(empty_cache.with_name("tuning")))
    assert main(tune) == 0
    told = capsys.readouterr().err
    assert told.startswith(
        "lowdnn: 1 of the cases follow a bundle, which comes before records until lowdnn cache clear"
    )
    assert CASES["norm"] in told
    assert main(["cache", "clear"]) == 0
    assert main([*tune, "--again"]) == 0
    assert capsys.readouterr().err == ""


def test_a_bundle_of_another_device_is_refused(bundle: Path) -> None:
    found = lowdnn.load_bundle(bundle, trust=True)
    with raises(ArchMismatchError, "bundle.arch", expected="sm_80, as this device", got="sm_90a"):
        lowdnn.create_handle("emulated", arch="sm_80", bundle=found)
    with raises(AttributeTypeError, "handle.bundle", expected="None, or a Bundle", got="'a/path'"):
        lowdnn.create_handle("emulated", bundle="a/path")  # type: ignore[arg-type]
    with lowdnn.create_handle("emulated", bundle=found) as handle:
        assert lowdnn.create_handle(same_device_as=handle).runtime.bundle is found


def test_a_shared_plan_cache_loads_from_the_bundle_of_each_handle(bundle: Path) -> None:
    found = lowdnn.load_bundle(bundle, trust=True)
    with lowdnn.PlanCache() as cache, lowdnn.create_handle("emulated", bundle=found, plan_cache=cache) as first:
        others = [lowdnn.create_handle(same_device_as=first, plan_cache=cache) for _ in range(2)]
        assert {other.loader for other in others} == {first.loader}
        assert first.loader.bundle is found
        runtime = Runtime(first.runtime.driver, config=first.runtime.config)
        assert cache.home(runtime).bundle is None
        runtime.close()
        for other in others:
            other.close()


def test_few_kernels_of_a_bundle_serve_new_shapes(
    tmp_path: Path, empty_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The set of kernels of a range: shapes that the bundle does not have run on them, and wait for no compiler."""
    path = tmp_path / "bundle"
    case = "matmul m=1..8192 n=256 k=512 dtype=fp16"
    arguments = [case, "--max-kernels", "2", "--shapes", "6", "--arch", "sm_90a", "-o", str(path), "--json"]
    assert main(["cache", "export", *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["machine_code"] <= 2
    assert facts["plans"] >= 6
    bundle = lowdnn.load_bundle(path, trust=True)
    with lowdnn.create_handle("emulated", bundle=bundle, compile_policy="avoid") as handle:
        rows = random.Random(fresh_seed()).sample(range(1, 8193), 20)
        for m in rows:
            graph = parse_case(case.replace("1..8192", str(m))).graph()
            best = handle.rank(graph, HeurMode.A).best
            assert best is not None
            handle.load_candidate(choice_at_hand(handle, best))
        counters = handle.runtime.counters.snapshot()
        assert not {"compiles", "compile_waits", "cache_misses"} & counters.keys(), rows
        assert counters["modules_loaded"] <= 2
        assert counters["plans_at_hand"] >= 1, "the best plans have other kernels"


def test_shapes_that_too_few_kernels_leave_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [CASES["product"], CASES["norm"], "--max-kernels", "1", "--arch", "sm_90a", "-o", str(tmp_path / "out")]
    assert main(["cache", "export", *texts]) == 1
    assert re.search(r"shapes without kernel +1\n", capsys.readouterr().out)
    assert len(lowdnn.load_bundle(tmp_path / "out", trust=True).plans) == 1


def test_a_damaged_file_imports_nothing(bundle: Path, empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bundle.read_bytes()
    bundle.write_bytes(content[:-1])
    assert main(["cache", "import", str(bundle), "--trust"]) == 2
    assert re.search(r"BAD_PARAM bundle .*\.images: expected \d+ bytes in all", capsys.readouterr().err)
    assert not empty_cache.exists()


def test_a_place_is_checked_before_anything_is_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root could put a file in the place of a device or a pipe."""
    monkeypatch.setattr("lowdnn.cli.bundles.bundle_of", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "link", "pipe", "nowhere/file", "pipe/file", "", "/proc/file"):
        place = str(tmp_path / name) if name else ""
        assert main(["cache", "export", CASES["norm"], "--arch", "sm_90a", "-o", place]) == 2
        assert "BAD_PARAM bundle '" in (error := capsys.readouterr().err)
        assert "expected a file that can be written" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "sm_90a"], "cache.export.cases: expected at least one case, got none"),
        (["nothing", "--arch", "sm_90a"], "case: expected a line that starts with"),
        (["rope b=1 h=1 s=8 d=8", "--arch", "sm_9"], "arch: expected one of sm_80"),
        (["rope b=1 h=1 s=8 d=8", "--arch", "sm_80", "--sm-count", "0"], "cache.export.sm_count: expected 1 to 4096"),
        (["rope b=1 h=1 s=8 d=8", "--arch", "sm_80", "--jobs", "0"], "cache.export.jobs: expected 1 to 256, got 0"),
        (["--log", "/nowhere", "--arch", "sm_80"], "BAD_PARAM cases: expected a readable file after @"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["cache", "export", *arguments, "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

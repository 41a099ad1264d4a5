"""Every architecture as an emulated device: attributes, targets that it loads, and plans that run right on it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lowdnn.arch.specs import ArchSpec, all_specs, spec_named
from lowdnn.backend.graph_descriptors import DeviceProperties
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.oracle import evaluate
from lowdnn.cli.main import main
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.driver.base import DeviceAttribute, DriverError
from lowdnn.enums import HeurMode
from lowdnn.frontend import (
    create_device_properties,
    create_handle,
    data_type,
    destroy_handle,
    from_numpy,
    heur_mode,
    pygraph,
)
from lowdnn.heuristics.ranking import rank
from lowdnn.status import ArchMismatchError
from tests.support.data import fresh_seed
from tests.support.running import run_plan
from tests.support.tolerance import assert_exact

#: Cases of a product, convolutions, a reduction and a conversion to fp8.
LINES = (
    "matmul m=70 n=40 k=33 b=2 dtype=bf16 epilogue=bias+relu",
    "conv n=2 c=8 hw=9x9 k=16 rs=3x3 pad=1 dtype=fp16",
    "conv n=1 c=32 hw=6x6 k=32 rs=3x3 pad=1 groups=8 dtype=bf16 dir=dgrad",
    "reduction dims=300x70 axes=0 op=add dtype=fp32",
    "pointwise dims=130 ops=relu dtype=e4m3",
)
PTX = ".version 8.0\n.target {}\n.address_size 64\n.visible .entry k()\n{{\nret;\n}}\n"


@pytest.fixture(params=all_specs(), ids=lambda spec: spec.name)
def spec(request: pytest.FixtureRequest) -> ArchSpec:
    found: ArchSpec = request.param
    return found


def test_a_handle_has_the_facts_of_its_device(spec: ArchSpec) -> None:
    with Handle.open("emulated", arch=spec.name) as handle:
        assert handle.arch == spec
        properties = DeviceProperties(handle=handle)
        assert create_device_properties(properties.json_representation()).arch == spec
        attribute = handle.runtime.context.attribute
        assert handle.runtime.context.compute_capability == spec.compute_capability
        assert attribute(DeviceAttribute.MULTIPROCESSOR_COUNT) == spec.sm_count
        assert attribute(DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) == spec.shared_bytes_per_block
        assert attribute(DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR) == spec.threads_per_sm
        assert attribute(DeviceAttribute.L2_CACHE_BYTES) == spec.l2_bytes
        assert attribute(DeviceAttribute.CLUSTER_LAUNCH) == (spec.compute_capability >= (9, 0))


@pytest.mark.parametrize("line", LINES)
def test_the_first_choice_is_right(spec: ArchSpec, line: str) -> None:
    case, seed = parse_case(line), fresh_seed()
    graph, inputs = case.graph(), case.inputs(seed, exact=True)
    with Handle.open("emulated", arch=spec.name) as handle:
        best = rank(graph, handle.arch, HeurMode.A, handle.engines).best
        assert best is not None
        actual = run_plan(handle.runtime, best.plan, graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type, f"{line} on {spec.name}, seed {seed}")


def test_a_pygraph_is_built_and_executed(spec: ArchSpec) -> None:
    handle = create_handle("emulated", arch=spec.name)
    try:
        graph = pygraph(handle=handle, io_data_type=data_type.HALF, compute_data_type=data_type.FLOAT)
        a, b = (graph.tensor(name=name, dim=[1, 32, 32], stride=[1024, 32, 1]) for name in "ab")
        c = graph.matmul(a, b)
        c.set_output(True)
        graph.build()
        values = np.eye(32, dtype=np.float16)[None] * 3
        result = from_numpy(np.zeros_like(values), handle)
        graph.execute({a: from_numpy(values, handle), b: from_numpy(values, handle), c: result}, handle=handle)
        np.testing.assert_array_equal(result.numpy(), values * 3)
    finally:
        destroy_handle(handle)


def test_a_graph_is_planned_for_a_device_that_is_not_there(spec: ArchSpec) -> None:
    major, minor = spec.compute_capability
    graph = pygraph(sm_version=10 * major + minor, io_data_type=data_type.HALF, compute_data_type=data_type.FLOAT)
    a, b = (graph.tensor(name=name, dim=[1, 512, 512], stride=[1 << 18, 512, 1]) for name in "ab")
    graph.matmul(a, b).set_output(True)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([heur_mode.A])
    first = graph.get_plan_name_at_index(0)
    assert ("wgmma" in first) == spec.has_wgmma


def test_the_command_line_takes_the_device(spec: ArchSpec, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", LINES[0], "--device", "emulated", "--arch", spec.name, "--exact", "--json"]) == 0
    (result,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert result["status"] == "ok"
    assert spec.has_wgmma or "wgmma" not in result["engine"]


def test_the_environment_names_the_device(spec: ArchSpec) -> None:
    config = Config.from_environment({"LOWDNN_DEVICE": "emulated", "LOWDNN_EMULATED_ARCH": spec.name.upper()})
    with Handle.open(config=config) as handle:
        assert handle.arch.name == spec.name


def test_modules_are_loaded_that_the_device_runs(spec: ArchSpec) -> None:
    driver = open_driver("emulated", arch=spec.name)
    driver.init()
    driver.context_set_current(driver.primary_context_retain(0))
    for target in ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120a", "sm_130"):
        image = PTX.format(target).encode()
        if spec.runs(target):
            driver.module_unload(driver.module_load_data(image))
            continue
        with pytest.raises(DriverError, match=f"PTX for {target} on {spec.name}") as caught:
            driver.module_load_data(image)
        assert caught.value.name == "CUDA_ERROR_NO_BINARY_FOR_GPU"


def test_a_newer_device_than_any_that_is_known_runs_the_oldest_kernels() -> None:
    graph, seed = parse_case(LINES[0]).graph(), fresh_seed()
    inputs = parse_case(LINES[0]).inputs(seed, exact=True)
    with Handle.open("emulated", arch="sm_130") as handle:
        assert handle.arch == spec_named("sm_130")
        best = rank(graph, handle.arch, HeurMode.A, handle.engines).best
        assert best is not None
        assert {kernel.target for kernel in best.plan.kernels} == {"sm_80"}
        actual = run_plan(handle.runtime, best.plan, graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, graph.tensors[uid].data_type, f"seed {seed}")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120a"])
def test_another_device_is_refused(arch: str) -> None:
    with pytest.raises(ArchMismatchError, match=rf"arch: expected one of sm_80, .*, got '{arch}'"):
        Handle.open("emulated", arch=arch)


def test_a_plan_for_another_device_is_refused() -> None:
    with Handle.open("emulated", arch="sm_120") as handle:
        best = rank(parse_case(LINES[0]).graph(), spec_named("sm_90a"), HeurMode.A, handle.engines).best
        assert best is not None
        with pytest.raises(ArchMismatchError, match=r"plan\.target_arch: expected sm_120, got sm_90a"):
            handle.load(best.plan)

"""Facts of devices: common rules, published limits, and the facts that each capability gets."""

from __future__ import annotations

import pytest

from lowdnn.arch import specs
from lowdnn.arch.multiprocessor import RESERVED_SHARED_BYTES
from lowdnn.arch.specs import SM_80, SM_87, SM_89, SM_90A, SM_100, SM_121, ArchSpec, all_specs, spec_for, spec_named
from lowdnn.driver import nvrtc
from lowdnn.plan import MathUnit
from lowdnn.status import ArchMismatchError

#: Shared KiB of a block, shared KiB, threads and blocks of a multiprocessor. Source: CUDA Programming Guide.
PUBLISHED = {
    "8.0": (163, 164, 2048, 32),
    "8.6": (99, 100, 1536, 16),
    "8.7": (163, 164, 1536, 16),
    "8.9": (99, 100, 1536, 24),
    "9.0": (227, 228, 2048, 32),
    "10.0": (227, 228, 2048, 32),
    "10.3": (227, 228, 2048, 32),
    "11.0": (227, 228, 1536, 24),
    "12.0": (99, 100, 1536, 24),
    "12.1": (99, 100, 1536, 24),
}


def test_every_device_is_there_once_and_in_order() -> None:
    capabilities = [spec.compute_capability for spec in all_specs()]
    assert capabilities == sorted(set(capabilities))
    assert {".".join(map(str, capability)) for capability in capabilities} >= PUBLISHED.keys()
    assert all(spec.name.startswith("sm_{}{}".format(*spec.compute_capability)) for spec in all_specs())


@pytest.mark.parametrize("capability", PUBLISHED)
def test_limits_are_the_published_ones(capability: str) -> None:
    per_block, per_sm, threads, blocks = PUBLISHED[capability]
    spec = spec_for(*map(int, capability.split(".")))
    assert spec.shared_bytes_per_block == per_block * 1024
    assert spec.shared_bytes_per_sm == per_sm * 1024
    assert (spec.threads_per_sm, spec.max_blocks_per_sm) == (threads, blocks)
    assert spec.shared_bytes_per_block + RESERVED_SHARED_BYTES == spec.shared_bytes_per_sm


@pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.name)
def test_limits_are_those_of_the_assembler(spec: ArchSpec) -> None:
    """ptxas refuses more blocks on a multiprocessor and more threads there than the device holds."""
    threads, blocks = spec.threads_per_sm, spec.max_blocks_per_sm
    assert assembles(spec, threads=32, blocks=blocks)
    assert not assembles(spec, threads=32, blocks=blocks + 1)
    assert assembles(spec, threads=threads // blocks, blocks=blocks)
    assert not assembles(spec, threads=threads // blocks + 32, blocks=blocks)


def assembles(spec: ArchSpec, threads: int, blocks: int) -> bool:
    """Whether ptxas heeds the launch bounds on the device."""
    compiled = nvrtc.compile_program(
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks}) k() {{}}',
        name="k",
        headers={},
        options=("--gpu-architecture=sm_{}{}".format(*spec.compute_capability), "--ptxas-options=-v"),
        output=nvrtc.Output.CUBIN,
    )
    return "minnctapersm will be ignored" not in compiled.log


@pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.name)
def test_rates_are_possible(spec: ArchSpec) -> None:
    assert spec.attained.keys() == spec.flops_per_clock.keys()
    assert all(0 < share < 1 for share in spec.attained.values())
    assert 0.8 * spec.board.bytes_per_s < spec.copy_bytes_per_s < spec.board.bytes_per_s
    assert spec.clock_hz <= 1e3 * spec.board.clock_khz
    has_wgmma = any(unit.name.startswith("WGMMA") for unit in spec.flops_per_clock)
    assert has_wgmma == spec.has_wgmma
    assert spec.rate(MathUnit.MMA_F16) >= 2 * spec.rate(MathUnit.MMA_TF32) >= 2 * spec.rate(MathUnit.FMA_F64)


@pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.name)
def test_the_compiler_knows_the_device(spec: ArchSpec) -> None:
    options = ("--gpu-architecture=sm_{}{}".format(*spec.compute_capability),)
    compiled = nvrtc.compile_program(
        'extern "C" __global__ void k() {}', name="k", headers={}, options=options, output=nvrtc.Output.CUBIN
    )
    assert compiled.image.startswith(b"\x7fELF")


def test_a_name_is_an_attribute_of_the_module_where_there_is_a_file_of_it() -> None:
    assert specs.SM_90A is spec_named("sm_90a")
    for name in ("SM_99", "sm_90a", "SM_90"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(specs, name)


@pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.name)
def test_a_device_is_found_by_capability_and_by_name(spec: ArchSpec) -> None:
    assert spec_for(*spec.compute_capability) is spec
    assert spec_named(spec.name) is spec


@pytest.mark.parametrize(
    ("capability", "nearest"),
    [((13, 0), SM_121), ((12, 9), SM_121), ((10, 1), SM_100), ((9, 1), SM_89), ((8, 5), SM_80), ((8, 7), SM_87)],
)
def test_an_unknown_device_has_the_facts_of_the_nearest_older_one_whose_kernels_it_runs(
    capability: tuple[int, int], nearest: ArchSpec
) -> None:
    found = spec_for(*capability)
    assert found.name == "sm_{}{}".format(*capability)
    assert found.compute_capability == capability
    assert found.board == nearest.board
    assert found.shared_bytes_per_block == nearest.shared_bytes_per_block
    assert found.runs("sm_80")
    assert not found.runs("sm_90a")
    assert spec_named(found.name) == found


@pytest.mark.parametrize("capability", [(7, 5), (5, 0), (0, 0)])
def test_an_older_device_is_refused(capability: tuple[int, int]) -> None:
    with pytest.raises(
        ArchMismatchError, match=r"compute_capability: expected 8\.0 or newer, got {}\.{}".format(*capability)
    ):
        spec_for(*capability)


@pytest.mark.parametrize("name", ["sm_75", "sm_90", "sm_120a", "sm_130a", "SM_80", "8.0", "", "sm_" + "1" * 5000])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ArchMismatchError, match=r"arch: expected one of sm_80, sm_86, .*, sm_121, or a newer one, got"):
        spec_named(name)


def test_a_device_may_say_that_it_has_less_shared_memory_but_not_more() -> None:
    assert SM_90A.with_shared_bytes(1 << 20, 1 << 20) == SM_90A
    less = SM_87.with_shared_bytes(99 << 10, 100 << 10)
    assert (less.shared_bytes_per_block, less.shared_bytes_per_sm) == (99 << 10, 100 << 10)

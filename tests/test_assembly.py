"""``tools/assemble.py``: what it reads from ptxas, what it lists and relies on, and that a stale table shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.arch.specs import ArchSpec, all_specs
from lowdnn.cases import parse_case
from lowdnn.plan import KernelRef, Plan
from tools import assemble as tool

LOG = """ptxas info    : 64 bytes gmem, 128 bytes cmem[4]
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     40 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 3 barriers, 40 bytes cumulative stack size, 6528 bytes smem
"""
SERIALISED = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in k\n"


def test_figures_are_read_from_the_log() -> None:
    assert tool.figures_of(LOG) == tool.Figures(128, 6528, 40, 20, 3)


def test_spills_and_serialised_wgmma_are_unfit() -> None:
    assert tool.Figures(255, 0, 40, 0, 1).unfit_on("sm_80") == ""
    for arch in ("sm_80", "sm_90a"):
        assert tool.Figures(255, 0, 0, 20, 1).unfit_on(arch) == "20 bytes spilled"
        assert "C7510" in tool.figures_of(SERIALISED).unfit_on(arch)
    assert tool.Figures(255, 0, 0, 20, 1).unfit_on("sm_120") == "", "a device without kernels of its own"


#: Cases of engines with kernels for each generation.
LINES = (
    "matmul m=70 n=64 k=64 dtype=bf16",
    "reduction dims=300x70 axes=0 op=add",
    "pointwise dims=130 ops=relu dtype=e4m3",
)


@pytest.fixture(scope="module")
def plans() -> list[tuple[Plan, ArchSpec]]:
    return list(tool.planned(map(parse_case, LINES)))


@pytest.fixture(scope="module")
def wanted(plans: list[tuple[Plan, ArchSpec]]) -> dict[tool.Key, KernelRef]:
    return tool.jobs(plans)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_a_kernel_is_assembled(wanted: dict[tool.Key, KernelRef], arch: str) -> None:
    kernel = next(kernel for (name, _), kernel in wanted.items() if "reduction_combine" in name)
    figures = tool.assemble(kernel, arch)
    assert figures.unfit_on(arch) == ""
    assert 8 <= figures.registers <= 64


def test_every_architecture_that_plans_a_kernel_is_asked(wanted: dict[tool.Key, KernelRef]) -> None:
    assert {arch for _, arch in wanted} == {
        *(arch.name for arch in all_specs()),
        "sm_90",
    }
    for (name, arch), kernel in wanted.items():
        assert (arch == kernel.target) if kernel.target[-1] == "a" else arch[-1].isdigit(), name


def test_two_kernels_of_one_name_are_told(plans: list[tuple[Plan, ArchSpec]]) -> None:
    """Names are unique over all devices, since they are symbols, file names and fields of the log."""
    plan, arch = plans[0]
    other = replace(plan, kernels=(replace(plan.kernels[0], parameters=(("EXTRA", 1),)),))
    with pytest.raises(ValueError, match=f"two kernels are named {plan.kernels[0].name}"):
        tool.jobs([(plan, arch), (other, all_specs()[-1])])


def test_figures_of_other_sources_are_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = {(kernel, "sm_80"): tool.Figures(8 * place, 0, 0, 0, 1) for place, kernel in enumerate("abc", 1)}
    digests = {"a": "1f", "b": "2f", "c": "3f"}
    monkeypatch.setattr(tool, "TABLE", tmp_path / "kernels.txt")
    assert tool.known_figures(figures, digests) == {}
    spilled = figures | {("b", "sm_80"): tool.Figures(255, 0, 0, 20, 1)}
    tool.TABLE.write_text(tool.table_of(spilled, digests))
    now = digests | {"c": "4f", "e": "5f"}
    assert tool.known_figures(figures, now) == {("a", "sm_80"): figures["a", "sm_80"]}, "b is unfit, c another, e new"
    assert tool.known_figures([("b", "sm_80")], now) == {}, "a is not wanted any more"
    monkeypatch.setattr(tool, "HEADER", "# another compiler")
    assert tool.known_figures(figures, now) == {}


def test_a_line_has_the_architectures_that_share_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few, many = tool.Figures(64, 0, 0, 0, 1), tool.Figures(72, 512, 0, 0, 1)
    figures = {("k", "sm_120"): few, ("k", "sm_80"): few, ("k", "sm_90"): many, ("l", "sm_90a"): many}
    text = tool.table_of(figures, {"k": "1f", "l": "2f"})
    assert text.splitlines()[1:] == ["k 1f 80,120 64 0 0 0 1 | 90 72 512 0 0 1", "l 2f 90a 72 512 0 0 1"]
    monkeypatch.setattr(tool, "TABLE", tmp_path / "kernels.txt")
    tool.TABLE.write_text(text)
    assert tool.known_figures(figures, {"k": "1f", "l": "2f"}) == figures


def test_a_fortieth_is_assembled_again_by_a_seed() -> None:
    known = [(f"k{number}", arch) for number in range(1000) for arch in ("sm_80", "sm_86", "sm_120")]
    first = tool.chosen_again(known, 1)
    assert len({name for name, _ in first}) == len(first) == 25
    assert {arch for _, arch in first} == {"sm_80", "sm_86", "sm_120"}
    assert set(first) <= set(known)
    assert first == tool.chosen_again(known[::-1], 1)
    assert first != tool.chosen_again(known, 2)
    assert tool.chosen_again([], 1) == []


def test_a_digest_is_of_source_and_options(wanted: dict[tool.Key, KernelRef]) -> None:
    kernel = next(iter(wanted.values()))
    other = replace(kernel, parameters=(*kernel.parameters, ("EXTRA", 1)))
    assert len({tool.digest_of(one) for one in (kernel, other, replace(kernel, target="sm_86"))}) == 3


def test_differences_read_like_a_diff() -> None:
    lines = tool.TABLE.read_text().splitlines()
    assert tool.differences("\n".join(lines) + "\n") == []
    other_barriers = lines[5].rpartition(" ")[0] + " 99"
    found = tool.differences("\n".join([*lines[:5], other_barriers, *lines[6:]]) + "\n")
    assert found[0].startswith("--- tests/assembly/kernels.txt")
    assert [line[0] for line in found[3:]] == ["-", "+"]

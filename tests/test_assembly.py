"""``tools/assemble.py``: what it reads from ptxas, what it lists and relies on, and that a stale table shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.plan import KernelRef
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
    assert tool.Figures(255, 0, 40, 0, 1).unfit == ""
    assert tool.Figures(255, 0, 0, 20, 1).unfit == "20 bytes spilled"
    assert "C7510" in tool.figures_of(SERIALISED).unfit


@pytest.fixture(scope="module")
def kernels() -> list[KernelRef]:
    return [kernel for kernel, _ in tool.jobs().values()]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_kernel_is_assembled(kernels: list[KernelRef], arch: str) -> None:
    kernel = next(kernel for kernel in kernels if "reduction_combine" in kernel.name)
    figures = tool.assemble(kernel, arch)
    assert figures.unfit == ""
    assert 8 <= figures.registers <= 64


def test_figures_of_other_sources_are_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = {f"{kernel} sm_80": tool.Figures(8 * place, 0, 0, 0, 1) for place, kernel in enumerate("abcd", 1)}
    digests = dict(zip(figures, ("1f", "2f", "3f", "0f"), strict=True))
    monkeypatch.setattr(tool, "TABLE", tmp_path / "kernels.txt")
    monkeypatch.setattr(tool, "SOURCES", tmp_path / "sources.txt")
    assert tool.known_figures(digests) == {}
    spilled = figures | {"b sm_80": tool.Figures(255, 0, 0, 20, 1)}
    tool.TABLE.write_text(tool.table_of(spilled))
    tool.SOURCES.write_text(tool.sources_of(digests, spilled))
    now = digests | {"c sm_80": "4f", "e sm_80": "5f"}
    assert tool.known_figures(now) == {"a sm_80": figures["a sm_80"]}, "b is unfit, c another, d to be checked, e new"


def test_a_digest_is_of_source_target_and_compiler(kernels: list[KernelRef], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = kernels[:2]
    found = [tool.digest_of(*job) for job in ((first, "sm_80"), (first, "sm_90"), (second, "sm_80"))]
    monkeypatch.setattr(tool.nvrtc, "version", lambda: (99, 0))
    assert len({*found, tool.digest_of(first, "sm_80")}) == 4


def test_differences_read_like_a_diff() -> None:
    lines = tool.TABLE.read_text().splitlines()
    assert tool.differences(tool.TABLE, "\n".join(lines) + "\n") == []
    other_barriers = lines[5].rpartition(" ")[0] + " 9"
    changed = [*lines[:5], other_barriers, *lines[6:]]
    found = tool.differences(tool.TABLE, "\n".join(changed) + "\n")
    assert found[0].startswith("--- tests/assembly/kernels.txt")
    assert [line[0] for line in found[3:]] == ["-", "+"]

"""``tools/assemble.py``: what it reads from ptxas, what it lists, and that a stale table shows."""

from __future__ import annotations

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


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_kernel_is_assembled(arch: str) -> None:
    kernel: KernelRef = next(kernel for kernel, _ in tool.jobs().values() if "reduction_combine" in kernel.name)
    figures = tool.assemble(kernel, arch)
    assert figures.unfit == ""
    assert 8 <= figures.registers <= 64


def test_differences_read_like_a_diff() -> None:
    lines = tool.TABLE.read_text().splitlines()
    assert tool.differences("\n".join(lines) + "\n") == []
    other_barriers = lines[5].rpartition(" ")[0] + " 9"
    changed = [*lines[:5], other_barriers, *lines[6:]]
    found = tool.differences("\n".join(changed) + "\n")
    assert found[0].startswith("--- tests/assembly/kernels.txt")
    assert [line[0] for line in found[3:]] == ["-", "+"]

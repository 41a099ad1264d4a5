"""Assembles kernels for real targets: what ptxas says about registers and spills."""

from __future__ import annotations

from lowdnn.driver import nvrtc
from lowdnn.plan import KernelRef
from lowdnn.runtime.sources import SourceTree


def assert_no_spills(kernel: KernelRef, target: str) -> None:
    """Assembles ``kernel`` for ``target`` (``sm_80``, ``sm_90``...); fails where registers are spilled."""
    source = SourceTree().read(kernel)
    options = [option for option in source.options if not option.startswith("--gpu-architecture")]
    compiled = nvrtc.compile_program(
        source.text,
        name=kernel.name,
        headers=dict(source.headers),
        options=(f"--gpu-architecture={target}", *options, "--ptxas-options=-v"),
        output=nvrtc.Output.CUBIN,
    )
    assert "0 bytes spill stores, 0 bytes spill loads" in compiled.log, compiled.log

"""Other measures of PyTorch: first calls, host times, and memory over many steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tools.checks.frameworks.cases import Case
from tools.checks.frameworks.pytorch import Work


@torch.no_grad()
def host_us() -> float:
    """Host time of a convolution whose plan is known, until PyTorch returns; the median of bursts."""
    module, x = nn.Conv2d(64, 64, 3, padding=1).cuda().half(), torch.randn(1, 64, 8, 8, device="cuda").half()
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(100):
            module(x)
        times.append((time.perf_counter() - started) / 100)
    return float(np.median(times) * 1e6)


@torch.no_grad()
def first_call_s() -> float:
    """Time of the first convolution of a process."""
    module, x = nn.Conv2d(64, 64, 3, padding=1).cuda().half(), torch.randn(8, 64, 28, 28, device="cuda").half()
    torch.cuda.synchronize()
    started = time.perf_counter()
    module(x)
    torch.cuda.synchronize()
    return time.perf_counter() - started


@torch.no_grad()
def new_shape_ms() -> list[float]:
    """Host times of the first convolution of each of some shapes, whose kernels are loaded after the first ones."""
    module, times = nn.Conv2d(64, 64, 3, padding=1).cuda().half().to(memory_format=torch.channels_last), []
    for n in (*range(1, 9), *range(1, 9), *range(9, 41)):
        x = torch.randn(n, 64, 24, 24, device="cuda").half().contiguous(memory_format=torch.channels_last)
        torch.cuda.synchronize()
        started = time.perf_counter()
        module(x)
        times.append((time.perf_counter() - started) * 1e3)
        torch.cuda.synchronize()
    return times[16:]


def endure(steps: int) -> Iterator[dict[str, float]]:
    """Memory of the process and the device during steps of a network, in MiB: after a tenth of them and at the end."""
    work = Work(Case("pytorch", "", "unet", {"n": "2", "size": "32", "precision": "fp16"}), "cuda")
    for step in range(1, steps + 1):
        work.step()
        if step in (steps // 10, steps):
            work.wait()
            free, total = torch.cuda.mem_get_info()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            yield {"steps": step, "host": pages / 256, "device": (total - free) / 2**20}

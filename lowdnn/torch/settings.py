"""torch's settings that plans depend on: the precision of fp32, benchmark mode, determinism."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Settings(NamedTuple):
    """allows_tf32: whether products may round fp32 operands to TF32.  benchmark: whether new graphs are tuned.
    deterministic: whether the same call has to give the same bits."""

    allows_tf32: bool = False
    benchmark: bool = False
    deterministic: bool = False


#: Settings as a plain tuple, or the first of them: a call's key has them, and making ``Settings`` costs 0.2 us.
SettingsKey = tuple[bool, ...]


def reader(kind: str, *, is_gpu: bool) -> Callable[[], SettingsKey]:
    """A function that reads the settings for operations of one kind: "conv", "matmul", "attention", or "" for others.

    Operations on the CPU never round to TF32. It takes some 0.1 us where there is something to read.
    """
    c = torch._C
    benchmark = c._get_cudnn_benchmark
    if kind == "attention":
        return lambda: (False, benchmark(), c._get_deterministic_algorithms() or c._get_cudnn_deterministic())
    if kind and is_gpu:
        precision = c._get_fp32_precision_getter
        return lambda: (precision("cuda", kind) == "tf32", benchmark())
    if kind:
        return lambda: (False, benchmark())
    return tuple

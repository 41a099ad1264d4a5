"""Runtimes, device buffers and a small plan for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.config import Config
from lowdnn.driver.base import Driver
from lowdnn.enums import DataType
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Plan,
    PlanTensor,
    Scalar,
    ScalarType,
    Struct,
    TensorPointer,
    TensorValue,
    WorkspacePointer,
)
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree

#: y[i] = alpha * x[i] + beta, with every kind of argument in one struct.
SCALE_SOURCE = """
struct Tail { float beta; };
struct Params { const float* x; float* y; double* scratch; long long count; float alpha; Tail tail; };
extern "C" __global__ void KERNEL_NAME(const __grid_constant__ Params p) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < p.count) p.y[i] = p.alpha * p.x[i] + p.tail.beta;
  if (i == 0 && p.scratch != nullptr) p.scratch[0] = FACTOR;
}
"""

# -- uids of the tensors of ``scale_plan``
X, Y, ALPHA = 11, 22, 33


def open_runtime(driver: Driver, cache_dir: Path, *, sources: SourceTree | None = None, debug: bool = False) -> Runtime:
    """A runtime that reads no environment."""
    return Runtime(driver, config=Config(cache_dir=cache_dir, debug=debug), sources=sources)


def write_sources(folder: Path, files: dict[str, str]) -> SourceTree:
    """A source tree with these files; the keys are paths below ``folder``."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return SourceTree(folder)


def scale_sources(folder: Path) -> SourceTree:
    return write_sources(folder, {"pointwise/scale.cu": SCALE_SOURCE})


def scale_plan(
    count: int, *, beta: float = 0.5, launches: int = 1, uses_workspace: bool = False, factor: int = 3
) -> Plan:
    """y = alpha x + beta over ``count`` floats, ``alpha`` by value; each launch does the same."""
    scratch: Argument = WorkspacePointer(256) if uses_workspace else Scalar(ScalarType.U64, 0)
    arguments = Struct(
        (
            TensorPointer(X),
            TensorPointer(Y),
            scratch,
            Scalar(ScalarType.I64, count),
            TensorValue(ALPHA, ScalarType.F32),
            Struct((Scalar(ScalarType.F32, beta),)),
        )
    )
    return Plan(
        engine="test_scale",
        engine_index=0,
        graph_key="scale",
        target_arch="sm_80",
        choices=(),
        kernels=(KernelRef("test_scale_f32_sm80", "pointwise/scale.cu", "sm_80", (("FACTOR", factor),)),),
        launches=(Launch(0, (-(-count // 128), 1, 1), (128, 1, 1), (arguments,)),) * launches,
        tensors=(
            PlanTensor(X, "x", DataType.FLOAT, 4 * count, 16, is_output=False),
            PlanTensor(Y, "y", DataType.FLOAT, 4 * count, 16, is_output=True),
            PlanTensor(ALPHA, "alpha", DataType.DOUBLE, 8, 8, is_output=False, is_by_value=True),
        ),
        workspace_bytes=512 if uses_workspace else 0,
    )


def upload(runtime: Runtime, array: NDArray[Any], label: str = "") -> DeviceBuffer:
    """A new device buffer with the bytes of ``array``."""
    buffer = DeviceBuffer.allocate(runtime.context, array.nbytes, label=label)
    if array.nbytes:
        buffer.copy_from_host(np.ascontiguousarray(array))
    return buffer


def download(buffer: DeviceBuffer, dtype: Any) -> NDArray[Any]:
    """The bytes of a device buffer as a flat array of ``dtype``."""
    return np.frombuffer(buffer.to_host().tobytes(), dtype)

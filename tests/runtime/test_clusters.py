"""Clusters that a launch asks for, and those that the kernel itself has, through plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowdnn.driver.base import DeviceAttribute
from lowdnn.enums import DataType
from lowdnn.plan import KernelRef, Launch, Plan, PlanTensor, TensorPointer
from lowdnn.runtime.runtime import Runtime
from tests.support.runtime import download, open_runtime, upload, write_sources

#: Block b stores the blocks of its cluster, and its own number among them.
SOURCE = """
#if OWN_CLUSTER > 1
extern "C" __global__ void __cluster_dims__(OWN_CLUSTER, 1, 1) KERNEL_NAME(int2* out);
#endif
extern "C" __global__ void KERNEL_NAME(int2* out) {
  int size, rank;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) out[blockIdx.x] = make_int2(size, rank);
}
"""
BLOCKS = 32


def cluster_plan(cluster: int, is_own: bool) -> Plan:
    own = cluster if is_own else 1
    kernel = KernelRef(f"test_cluster_{own}_sm90a", "test/cluster.cu", "sm_90a", (("OWN_CLUSTER", own),))
    return Plan(
        engine="test_cluster",
        engine_index=0,
        graph_key="cluster",
        target_arch="sm_90a",
        choices=(),
        kernels=(kernel,),
        launches=(Launch(0, (BLOCKS, 1, 1), (32, 1, 1), (TensorPointer(1),), cluster=(cluster, 1, 1)),),
        tensors=(PlanTensor(1, "out", DataType.INT32, 8 * BLOCKS, 8, is_output=True),),
    )


@pytest.mark.parametrize("is_own", [False, True], ids=["of the launch", "of the kernel"])
@pytest.mark.parametrize("cluster", [2, 8, 16])
def test_blocks_run_in_clusters(device: Runtime, tmp_path: Path, cluster: int, is_own: bool) -> None:
    if not device.context.attribute(DeviceAttribute.CLUSTER_LAUNCH):
        pytest.skip("the GPU has no clusters")
    sources = write_sources(tmp_path, {"test/cluster.cu": SOURCE})
    with open_runtime(device.driver, tmp_path / "cache", sources=sources) as runtime:
        out = upload(runtime, np.zeros(2 * BLOCKS, np.int32))
        runtime.load(cluster_plan(cluster, is_own)).execute((out.address,))
        got = download(out, np.int32).reshape(BLOCKS, 2)
    assert (got[:, 0] == cluster).all()
    np.testing.assert_array_equal(got[:, 1], np.arange(BLOCKS) % cluster)

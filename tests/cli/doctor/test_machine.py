"""Drivers, GPUs, compilers and caches that are not as they should be are told, with what to do."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lowdnn.cli.doctor.facts import kernel_module
from lowdnn.cli.doctor.findings import Finding, Verdict
from lowdnn.cli.doctor.machine import cache, driver, gpus, nccl, nvrtc, temporary
from lowdnn.driver.results import CuResult
from lowdnn.runtime.cache import DiskCache
from lowdnn.status import CompilationFailedError
from tests.cli.doctor.support import H200, facts_of

KEY = "0" * 64


@pytest.mark.parametrize(
    ("result", "remedy"),
    [
        (CuResult.NO_DEVICE, "CUDA_VISIBLE_DEVICES"),
        (CuResult.SYSTEM_DRIVER_MISMATCH, "two versions: reboot"),
        (CuResult.COMPAT_NOT_SUPPORTED_ON_DEVICE, "cuda-compat out of LD_LIBRARY_PATH"),
        (CuResult.SYSTEM_NOT_READY, "start nvidia-fabricmanager"),
        (CuResult.UNKNOWN, "permissions of /dev/nvidia*"),
        (CuResult.STUB_LIBRARY, "stub of libcuda.so.1"),
    ],
)
def test_a_driver_that_does_not_start_has_a_remedy(result: CuResult, remedy: str) -> None:
    reason = f"EXECUTION_FAILED_CUDA_DRIVER cuInit(0): {result.c_name} ({result.value})"
    (found,) = driver(facts_of(cuda=None, reason=reason))
    assert found.verdict is Verdict.FAILURE
    assert found.reason == reason
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("device", "module", "verdict", "remedy"),
    [
        ("auto", "", Verdict.WARNING, "set LOWDNN_DEVICE=emulated"),
        ("cuda", "", Verdict.FAILURE, "install NVIDIA driver 580"),
        ("auto", "580.65.06", Verdict.FAILURE, "the kernel has driver 580.65.06, and this process no libcuda.so.1"),
        ("emulated", "", Verdict.OK, ""),
    ],
)
def test_a_machine_without_a_driver(device: str, module: str, verdict: Verdict, remedy: str) -> None:
    """The check fails where a GPU is asked for, or the kernel has a driver that does not reach the process."""
    (found,) = driver(facts_of(cuda=None, reason="no libcuda.so.1", device=device, kernel_module=module))
    assert found.verdict is verdict
    assert remedy in found.remedy


@pytest.mark.parametrize(("cuda", "verdict"), [(12080, Verdict.FAILURE), (13000, Verdict.OK), (13010, Verdict.OK)])
def test_the_oldest_driver(cuda: int, verdict: Verdict) -> None:
    (found,) = driver(facts_of(H200, cuda=cuda))
    assert found.verdict is verdict
    assert f"CUDA {cuda // 1000}.{cuda % 1000 // 10}" in found.reason


def test_gpus_are_judged_one_by_one() -> None:
    old = H200 | {"number": 1, "name": "Tesla T4", "compute_capability": "7.5"}
    first, second = gpus(facts_of(H200, old))
    assert (first.check, first.verdict) == ("gpu 0", Verdict.OK)
    assert (second.check, second.verdict) == ("gpu 1", Verdict.FAILURE)
    assert "7.5, 8.0 is needed" in second.reason
    assert facts_of(H200, H200 | {"compute_capability": "10.0"}).version_of("compute_capability") == "9.0"


@pytest.mark.parametrize(("device", "verdict"), [("auto", Verdict.WARNING), ("cuda", Verdict.FAILURE)])
def test_a_driver_without_gpus(device: str, verdict: Verdict) -> None:
    (found,) = gpus(facts_of(device=device))
    assert (found.verdict, found.reason) == (verdict, "the driver shows none")


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only root file system without a volume for /tmp."""
    assert [found.verdict for found in temporary(facts_of())] == [Verdict.OK]

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", none)
    (found,) = temporary(facts_of())
    assert found.verdict is Verdict.FAILURE
    assert "mount a volume for /tmp" in found.remedy


@pytest.mark.parametrize(
    ("count", "version", "verdict"), [(1, "", Verdict.OK), (2, "", Verdict.WARNING), (2, "2.28.3", Verdict.OK)]
)
def test_nccl_is_for_several_gpus(count: int, version: str, verdict: Verdict) -> None:
    (found,) = nccl(facts_of(*[H200] * count, nccl=version))
    assert found.verdict is verdict
    assert version in found.reason


def test_a_compiler_that_loads_and_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise CompilationFailedError("nvrtcCompileProgram: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE (7)")

    monkeypatch.setattr("lowdnn.driver.nvrtc.build", broken)
    (found,) = nvrtc(facts_of())
    assert found.verdict is Verdict.FAILURE
    assert "BUILTIN" in found.reason


def test_a_sound_cache(tmp_path: Path) -> None:
    DiskCache(tmp_path / "cache").put(KEY, b"payload")
    assert [(each.check, each.verdict) for each in _cache(tmp_path / "cache")] == [
        ("cache", Verdict.OK),
        ("disk", Verdict.OK),
    ]


def test_a_damaged_cache(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "cache")
    store.put(KEY, b"payload")
    (file,) = (tmp_path / "cache").rglob("*.bin")
    file.write_bytes(file.read_bytes()[:-1])
    (found,) = _cache(tmp_path / "cache")
    assert found.verdict is Verdict.WARNING
    assert "1 files" in found.reason
    assert found.remedy == "lowdnn cache verify --repair"


def test_a_cache_that_is_only_read(tmp_path: Path) -> None:
    DiskCache(tmp_path / "cache").put(KEY, b"payload")
    (found,) = _cache(tmp_path / "cache", is_writable=False)
    assert found.verdict is Verdict.WARNING
    assert "is only read" in found.reason


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 100, 10, 10, 100, 10, 10, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda _: full)
    *_, found = _cache(tmp_path / "not_there_yet" / "cache")
    assert (found.check, found.verdict) == ("disk", Verdict.WARNING)
    assert "40960 bytes are free" in found.reason


def test_no_cache_is_told_with_its_reason() -> None:
    (found,) = cache(facts_of())
    assert (found.verdict, found.reason) == (Verdict.WARNING, "switched off")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 06:29:28 UTC 2025\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n", "580.82.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  590.44  Release Build\n", "590.44"),
        ("something else 1.2.3\n", ""),
        (None, ""),
    ],
)
def test_the_version_of_the_module(text: str | None, version: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "version").write_text(text)
    assert kernel_module(tmp_path / "version") == version


def _cache(directory: Path, **other: bool) -> list[Finding]:
    known: dict[str, Any] = asdict(DiskCache(directory).facts()) | other
    found = facts_of(cache=directory)
    return list(cache(replace(found, info=dict(found.info) | {"cache": known})))

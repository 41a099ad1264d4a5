from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.driver import nvrtc
from lowdnn.engines.registry import ENGINES
from lowdnn.events import Counters
from lowdnn.plan import KernelRef
from lowdnn.runtime.bundle import Bundle
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import KernelCompiler, cache_key, compile_source, lowered, machine_arch_of
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import CompilationFailedError
from tests.support.runtime import write_sources

KERNEL = KernelRef("fill_f32", "fill.cu", "sm_80", (("VALUE", 3),), "__device__ float f() { return VALUE; }\n")
TEXT = '#include "generated.cuh"\nextern "C" __global__ void KERNEL_NAME(float* x) { x[0] = f(); }\n'


@pytest.fixture
def sources(tmp_path: Path) -> SourceTree:
    return write_sources(tmp_path / "engines", {"fill.cu": TEXT})


def make_compiler(sources: SourceTree, cache: DiskCache | None, store: ModuleStore | None = None) -> KernelCompiler:
    return KernelCompiler(sources=sources, store=store or ModuleStore(None), cache=cache, counters=Counters())


def counts(compiler: KernelCompiler) -> dict[str, int]:
    return compiler.counters.snapshot()


def first_image(compiler: KernelCompiler, kernel: KernelRef = KERNEL, machine_arch: str = "") -> bytes:
    return next(compiler.images(kernel, machine_arch)).data


def test_ptx_is_lowered_to_the_oldest_isa(sources: SourceTree) -> None:
    image = first_image(make_compiler(sources, None))
    assert b"\n.version 8.3\n" in image
    assert b".entry fill_f32(" in image


def test_machine_code_is_for_the_device_at_hand(sources: SourceTree) -> None:
    assert machine_arch_of(KERNEL, (8, 6)) == "sm_86"
    assert machine_arch_of(replace(KERNEL, target="sm_90a"), (9, 0)) == "sm_90a"
    machine_code, ptx = make_compiler(sources, None).images(KERNEL, "sm_90")
    assert (machine_code.machine_arch, machine_code.data[:4]) == ("sm_90", b"\x7fELF")
    assert (ptx.machine_arch, ptx.data) == ("", first_image(make_compiler(sources, None)))


def test_a_device_that_nvrtc_does_not_know_gets_ptx(sources: SourceTree) -> None:
    (ptx,) = make_compiler(sources, None).images(KERNEL, "sm_990")
    assert ptx.data == first_image(make_compiler(sources, None))


@pytest.mark.parametrize("machine_arch", ["", "sm_90"])
def test_the_second_process_compiles_nothing(
    sources: SourceTree, tmp_path: Path, machine_arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path / "cache")
    first = make_compiler(sources, cache)
    image = first_image(first, machine_arch=machine_arch)
    assert counts(first) == {"cache_misses": 1, "compiles": 1}
    monkeypatch.setattr(nvrtc, "build", lambda: pytest.fail("NVRTC was asked for its build again"))
    second = make_compiler(sources, cache)
    assert first_image(second, machine_arch=machine_arch) == image
    assert counts(second) == {"cache_hits": 1}
    companions = [path for path in cache.directory.glob("v1/*") if path.suffix == ".cuh"]
    assert [path.read_text() for path in companions] == [KERNEL.generated]


def test_devices_and_compilers_share_a_cache(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One home directory on machines with other GPUs, or with another NVRTC, whose file differs too."""
    cache = DiskCache(tmp_path / "cache")
    made = {arch: first_image(make_compiler(sources, cache), machine_arch=arch) for arch in ("", "sm_80", "sm_90")}
    monkeypatch.setattr(nvrtc, "library_file", lambda: "another file")
    monkeypatch.setattr(nvrtc, "build", lambda: "another build")
    other = make_compiler(sources, cache)
    first_image(other, machine_arch="sm_90")
    assert counts(other) == {"cache_misses": 1, "compiles": 1}
    monkeypatch.undo()
    again = make_compiler(sources, cache)
    assert {arch: first_image(again, machine_arch=arch) for arch in made} == made
    assert counts(again) == {"cache_hits": 3}


def test_an_unknown_file_of_nvrtc_is_asked_each_time(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = iter(("one", "two"))
    monkeypatch.setattr(nvrtc, "library_file", lambda: "")
    monkeypatch.setattr(nvrtc, "build", lambda: next(builds))
    for _ in range(2):
        compiler = make_compiler(sources, DiskCache(tmp_path / "cache"))
        first_image(compiler)
        assert counts(compiler)["compiles"] == 1


def test_an_edited_kernel_is_compiled_again(sources: SourceTree, tmp_path: Path) -> None:
    compiler = make_compiler(sources, DiskCache(tmp_path / "cache"))
    first_image(compiler)
    first_image(compiler, replace(KERNEL, parameters=(("VALUE", 4),)))
    assert counts(compiler)["compiles"] == 2


@pytest.mark.parametrize("machine_arch", ["", "sm_90"])
def test_a_damaged_entry_is_compiled_again(sources: SourceTree, tmp_path: Path, machine_arch: str) -> None:
    cache = DiskCache(tmp_path / "cache")
    image = first_image(make_compiler(sources, cache), machine_arch=machine_arch)
    for path in cache.directory.glob("v1/*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert first_image(make_compiler(sources, cache), machine_arch=machine_arch) == image


def stored_kernel(sources: SourceTree, tmp_path: Path) -> ModuleStore:
    """A store that has the kernel."""
    digest = sources.read(KERNEL).digest
    entry = {
        "name": KERNEL.name,
        "target": "sm_80",
        "file": "fill.ptx",
        "sha256": hashlib.sha256(b"stored").hexdigest(),
        "nvrtc": "13.0",
    }
    root = tmp_path / "ptx"
    root.mkdir()
    (root / "fill.ptx").write_bytes(b"stored")
    (root / "MANIFEST.json").write_text(json.dumps({"lowdnn_ptx": 1, "kernels": {digest: entry}}))
    return ModuleStore(root)


def test_the_store_comes_first(sources: SourceTree, tmp_path: Path) -> None:
    compiler = make_compiler(sources, DiskCache(tmp_path / "cache"), stored_kernel(sources, tmp_path))
    assert first_image(compiler, machine_arch="sm_80") == b"stored"
    assert counts(compiler) == {"store_hits": 1}
    assert [image.machine_arch for image in compiler.images(KERNEL, "sm_80")] == ["", "sm_80"]


def test_a_device_whose_driver_must_not_assemble_gets_machine_code(
    sources: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of the store then count as on disk once there is machine code of them."""
    store, cache = stored_kernel(sources, tmp_path), DiskCache(tmp_path / "cache")
    counters = Counters()
    compiler = KernelCompiler(sources=sources, store=store, cache=cache, counters=counters, leaves_assembly=False)
    assert compiler.is_on_disk(KERNEL)
    assert not compiler.is_on_disk(KERNEL, "sm_80")
    assert [image.machine_arch for image in compiler.images(KERNEL, "sm_80")] == ["sm_80", ""]
    assert compiler.is_on_disk(KERNEL, "sm_80")
    assert [image.machine_arch for image in compiler.images(KERNEL)] == [""]
    monkeypatch.setattr(nvrtc, "library_file", lambda: "")
    assert first_image(compiler, machine_arch="sm_80") == b"stored"
    assert not compiler.is_on_disk(KERNEL, "sm_80")


def test_an_image_on_disk_is_of_this_kernel_and_device(sources: SourceTree, tmp_path: Path) -> None:
    compiler = make_compiler(sources, DiskCache(tmp_path / "cache"))
    assert not compiler.is_on_disk(KERNEL, "sm_80")
    first_image(compiler, machine_arch="sm_80")
    assert compiler.is_on_disk(KERNEL, "sm_80")
    assert not compiler.is_on_disk(KERNEL)
    assert not compiler.is_on_disk(KERNEL, "sm_90")
    assert not compiler.is_on_disk(replace(KERNEL, parameters=(("VALUE", 4),)), "sm_80")
    assert not make_compiler(sources, None).is_on_disk(KERNEL, "sm_80")


def test_a_kernel_that_does_not_compile(sources: SourceTree) -> None:
    with pytest.raises(CompilationFailedError, match=r"(?s)fill_f32\.cu.*generated\.cuh\(1\): error"):
        first_image(make_compiler(sources, None), replace(KERNEL, generated="float f() { return missing; }"))


def test_warnings_of_the_compiler_are_logged(sources: SourceTree, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="lowdnn.compile"):
        first_image(
            make_compiler(sources, None), replace(KERNEL, generated="__device__ float f() { int unused; return 1; }")
        )
    (record,) = caplog.records
    assert "compiler_log kernel=fill_f32" in record.getMessage()
    assert "unused" in record.getMessage()


def test_lowering_touches_the_version_line_only() -> None:
    text = b"// .version 9.0 in a comment\n.version 9.0\n.target sm_80\n"
    assert lowered(text) == b"// .version 9.0 in a comment\n.version 8.3\n.target sm_80\n"
    assert lowered(b".version 7.8\n") == b".version 7.8\n"
    assert lowered(b"\x7fELF") == b"\x7fELF"


def test_cache_key_depends_on_source_output_and_compiler(sources: SourceTree) -> None:
    source = sources.read(KERNEL)
    keys = {
        cache_key(source, "", "V13.0.48"),
        cache_key(source, "sm_80", "V13.0.48"),
        cache_key(source, "sm_90", "V13.0.48"),
        cache_key(source, "", "V13.0.88"),
        cache_key(replace(source, digest="other"), "", "V13.0.48"),
    }
    assert len(keys) == 5


def test_compiling_is_reproducible(sources: SourceTree) -> None:
    source = sources.read(KERNEL)
    assert compile_source(source) == compile_source(source)


def shipped(compiler: KernelCompiler, *machine_archs: str) -> Bundle:
    images = {
        (image.source, image.output): image for arch in machine_archs for image in compiler.to_bundle(KERNEL, arch)
    }
    return Bundle("sm_90a", 132, "", tuple(images.values()), ())


def test_images_of_a_bundle_come_first_and_nvrtc_is_not_asked(
    sources: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_code, ptx = make_compiler(sources, None).images(KERNEL, "sm_90")
    bundle = shipped(make_compiler(sources, None), "sm_90")
    compiler = KernelCompiler(
        sources=sources, store=ModuleStore(None), cache=None, counters=Counters(), shipped=(bundle,)
    )
    with monkeypatch.context() as patch:
        for name in ("_library", "_library_path"):
            patch.setattr(nvrtc, name, lambda: pytest.fail("NVRTC was loaded"))
        images = compiler.images(KERNEL, "sm_90")
        assert [next(images), next(images)] == [machine_code, ptx], "PTX where the driver refuses the machine code"
        assert first_image(compiler) == ptx.data
        assert first_image(compiler, machine_arch="sm_86") == ptx.data, "a device that its machine code is not for"
        assert counts(compiler) == {"bundle_hits": 4}
    assert next(images) == machine_code, "and what is compiled, where it refuses both"
    other = replace(KERNEL, generated=KERNEL.generated + "// changed")
    first_image(compiler, other, "sm_90")
    assert counts(compiler)["compiles"] == 2, "a kernel that has changed is not the bundle's"


def test_the_first_bundle_that_has_an_image_gives_it(sources: SourceTree) -> None:
    bundle = shipped(make_compiler(sources, None), "")
    empty, other = (Bundle("sm_90a", 132, "", images, ()) for images in ((), (replace(bundle.images[0], data=b"x"),)))
    compiler = KernelCompiler(
        sources=sources, store=ModuleStore(None), cache=None, counters=Counters(), shipped=(empty, bundle, other)
    )
    assert first_image(compiler) == bundle.images[0].data


def test_a_precompiled_kernel_needs_no_ptx_in_a_bundle() -> None:
    store = ModuleStore.installed()
    kernel = next(kernel for engine in ENGINES for kernel in engine.precompiled())
    source = SourceTree().read(kernel)
    compiler = KernelCompiler(sources=SourceTree(), store=store, cache=None, counters=Counters())
    (image,) = compiler.to_bundle(kernel, machine_arch_of(kernel, (9, 0)))
    assert (image.source, image.output) == (source.digest, machine_arch_of(kernel, (9, 0)))
    assert compiler.to_bundle(kernel, "") == []

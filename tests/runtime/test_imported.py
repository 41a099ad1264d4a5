"""Bundles in the disk cache."""

from __future__ import annotations

import errno
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

import lowdnn.runtime.cache as cache_module
from lowdnn.documents import MAX_BYTES
from lowdnn.runtime.bundle import Bundle, BundledImage, BundledPlan
from lowdnn.runtime.cache import CacheWarning, DiskCache
from lowdnn.runtime.cache_upkeep import verify
from lowdnn.runtime.imported import ImportedBundles, import_bundle
from lowdnn.status import BadParamError, SizeInsufficientError
from tests.support.errors import raises


def bundle(name: str) -> Bundle:
    """A bundle with a plan and two images, for a digit of hexadecimal numbers."""
    images = (
        BundledImage(name * 64, "sm_90a", "kernel", name.encode() * 1000),
        BundledImage(name * 64, "ptx", "kernel", name.encode() * 2000),
    )
    return Bundle(
        "sm_90a", 132, "NVRTC", images, (BundledPlan(name * 64, "pointwise", (), "0" * 64, name * 64, (8,), ""),)
    )


def imported(cache: DiskCache, arch: str = "sm_90a", sm_count: int = 132) -> ImportedBundles:
    return ImportedBundles(DiskCache(cache.directory), arch, sm_count)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def test_bundles_add_up(cache: DiskCache) -> None:
    assert imported(cache).plan("a" * 64) is None
    assert not cache.directory.exists()
    for name in "ab":
        import_bundle(bundle(name), cache)
    newer = replace(
        bundle("a"), images=(), plans=(BundledPlan("a" * 64, "matmul_mma", (), "1" * 64, "b" * 64, (), ""),)
    )
    import_bundle(newer, cache)
    found = imported(cache)
    assert found.plan("a" * 64) == newer.plans[0]
    assert found.plan("b" * 64) == bundle("b").plans[0]
    assert [plan.graph[0] for plan in found.plans_like("b" * 64)] == ["a", "b"]
    assert found.has_image("a" * 64, "sm_90a")
    assert found.image("a" * 64, "sm_90a") == b"a" * 1000
    assert found.image("b" * 64, "ptx") == b"b" * 2000
    assert found.image("c" * 64, "ptx") is None
    for other in (imported(cache, "sm_80"), imported(cache, sm_count=114)):
        assert other.plan("a" * 64) is None
        assert other.image("a" * 64, "sm_90a") is None


def test_what_is_damaged_or_gone_is_a_miss(cache: DiskCache) -> None:
    import_bundle(bundle("a"), cache)
    image = next(path for path in cache.directory.glob("v1/*") if path.stat().st_size > 2000)
    image.unlink()
    assert imported(cache).image("a" * 64, "ptx") is None
    assert imported(cache).image("a" * 64, "sm_90a") is not None
    for path in cache.directory.glob("v1/*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert imported(cache).plan("a" * 64) is None
    import_bundle(bundle("a"), cache)
    assert imported(cache).image("a" * 64, "ptx") == b"a" * 2000
    assert verify(cache.directory).damaged == ()


@pytest.mark.parametrize("written", range(3))
def test_a_full_disk_imports_nothing(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    import_bundle(bundle("a"), cache)
    before = sorted(os.listdir(cache.directory / "v1"))
    write, writes = cache_module.write, iter(range(written))

    def full(*arguments: object) -> None:
        if next(writes, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cache_module, "write", full)
    with raises(BadParamError, "cache.directory", expected="a directory with room", got=str(cache.directory)):
        import_bundle(bundle("b"), cache)
    assert sorted(os.listdir(cache.directory / "v1")) == before
    assert imported(cache).plan("b" * 64) is None
    assert imported(cache).plan("a" * 64) is not None


def test_a_bundle_has_to_fit_the_cache(tmp_path: Path) -> None:
    small = DiskCache(tmp_path / "cache", limit_bytes=MAX_BYTES + 2999)
    with raises(SizeInsufficientError, "cache.limit_bytes", expected=f"at least {MAX_BYTES + 3000}", got=""):
        import_bundle(bundle("a"), small)
    assert not small.directory.exists()


def test_a_directory_that_others_may_write_gets_nothing(cache: DiskCache) -> None:
    cache.directory.mkdir(mode=0o777)
    cache.directory.chmod(0o777)
    with pytest.warns(CacheWarning), raises(BadParamError, "cache.directory", got="lets others write"):
        import_bundle(bundle("a"), cache)


def test_several_processes_import_at_once(cache: DiskCache) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=import_bundle, args=(bundle(name), cache)) for name in "0123456789abcdef"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 16
    assert all(imported(cache).plan(name * 64) for name in "0123456789abcdef")

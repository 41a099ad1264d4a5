from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from lowdnn.runtime.module_store import ModuleStore
from lowdnn.status import SublibraryVersionMismatchError

PTX = b".version 8.0\n"


def write_store(root: Path, **changes: Any) -> Path:
    entry = {
        "name": "conv_f32",
        "target": "sm_80",
        "file": "sm_80/conv_f32.ptx",
        "sha256": hashlib.sha256(PTX).hexdigest(),
        "nvrtc": "13.0",
    }
    (root / "sm_80").mkdir(parents=True)
    (root / "sm_80" / "conv_f32.ptx").write_bytes(PTX)
    manifest = {"lowdnn_ptx": 1, "kernels": {"digest": entry | changes}}
    (root / "MANIFEST.json").write_text(json.dumps(manifest))
    return root


def test_finds_a_kernel_by_the_digest_of_its_source(tmp_path: Path) -> None:
    store = ModuleStore(write_store(tmp_path))
    assert store.get("digest") == PTX
    assert store.get("other") is None
    assert store.kernels["digest"].name == "conv_f32"


def test_a_file_that_is_not_the_manifests_is_an_error(tmp_path: Path) -> None:
    root = write_store(tmp_path)
    (root / "sm_80" / "conv_f32.ptx").write_bytes(PTX + b"\n")
    with pytest.raises(SublibraryVersionMismatchError, match=r"conv_f32\.ptx: expected sha256"):
        ModuleStore(root).get("digest")
    (root / "sm_80" / "conv_f32.ptx").unlink()
    with pytest.raises(SublibraryVersionMismatchError):
        ModuleStore(root).get("digest")


@pytest.mark.parametrize("file", ["../secret.ptx", "/etc/passwd", "sm_80/../../x.ptx", "sm_80/x.txt"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path, file: str) -> None:
    with pytest.raises(SublibraryVersionMismatchError, match="file"):
        ModuleStore(write_store(tmp_path, file=file))


def test_malformed_manifests(tmp_path: Path) -> None:
    with pytest.raises(SublibraryVersionMismatchError, match="kernels"):
        ModuleStore(write_store(tmp_path, nvrtc=13))
    (tmp_path / "MANIFEST.json").write_text('{"lowdnn_ptx": 2}')
    with pytest.raises(SublibraryVersionMismatchError, match="lowdnn_ptx: expected 1, got 2"):
        ModuleStore(tmp_path)


def test_no_folder_is_an_empty_store() -> None:
    assert ModuleStore(None).get("digest") is None
    assert isinstance(ModuleStore.installed(), ModuleStore)

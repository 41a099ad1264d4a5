"""Builds ``ptx/``: the PTX of every kernel that an engine lists as precompiled, and MANIFEST.json.

    python tools/build_ptx.py            rebuild the folder
    python tools/build_ptx.py --check    fail if the folder is not what a rebuild would give

The folder holds ``<target>/<kernel name>.ptx``. The manifest names each by the digest of its whole source, so an edited
kernel is never served stale PTX; the check finds a stale, missing or surplus file before a user does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from lowdnn.driver import nvrtc
from lowdnn.engines.registry import ENGINES
from lowdnn.plan import KernelRef
from lowdnn.runtime.compile import compile_source
from lowdnn.runtime.module_store import MANIFEST_VERSION
from lowdnn.runtime.sources import SourceTree

ROOT = Path(__file__).resolve().parent.parent / "ptx"
MANIFEST = "MANIFEST.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    wanted = build()
    if arguments.check:
        return report(differences(wanted))
    write(wanted)
    print(f"{ROOT}: {len(wanted) - 1} kernels")
    return 0


def build() -> dict[str, bytes]:
    """The folder's files by relative path."""
    tree = SourceTree()
    version = ".".join(map(str, nvrtc.version()))
    files: dict[str, bytes] = {}
    kernels: dict[str, dict[str, str]] = {}
    for kernel in precompiled():
        source = tree.read(kernel)
        ptx = compile_source(source)
        file = f"{kernel.target}/{kernel.name}.ptx"
        files[file] = ptx
        kernels[source.digest] = {
            "name": kernel.name,
            "target": kernel.target,
            "file": file,
            "sha256": hashlib.sha256(ptx).hexdigest(),
            "nvrtc": version,
        }
    ordered = dict(sorted(kernels.items(), key=lambda item: item[1]["file"]))
    manifest = {"lowdnn_ptx": MANIFEST_VERSION, "kernels": ordered}
    return files | {MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()}


def precompiled() -> list[KernelRef]:
    """All engines' precompiled kernels; two kernels with one name and target are a defect."""
    found: dict[tuple[str, str], KernelRef] = {}
    for engine in ENGINES:
        for kernel in engine.precompiled():
            known = found.setdefault((kernel.target, kernel.name), kernel)
            if known != kernel:
                raise SystemExit(f"two kernels are named {kernel.name} for {kernel.target}")
    return list(found.values())


def existing() -> dict[str, bytes]:
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in ROOT.rglob("*") if path.is_file()}


def differences(wanted: dict[str, bytes]) -> list[str]:
    present = existing()
    missing = [f"missing: ptx/{file}" for file in wanted if file not in present]
    surplus = [f"surplus: ptx/{file}" for file in present if file not in wanted]
    stale = [f"stale: ptx/{file}" for file in wanted if file in present and present[file] != wanted[file]]
    return missing + surplus + stale


def report(found: list[str]) -> int:
    for line in found:
        print(line)
    print("ptx/ is up to date" if not found else "run: python tools/build_ptx.py")
    return 1 if found else 0


def write(wanted: dict[str, bytes]) -> None:
    for file in existing():
        if file not in wanted:
            (ROOT / file).unlink()
    for file, data in wanted.items():
        path = ROOT / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())

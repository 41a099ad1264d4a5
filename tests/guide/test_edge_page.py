"""A program with a bundle needs nothing of what the page ``production/edge`` leaves out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowdnn.cli.main import main
from lowdnn.guide.pages import page

_LEAVES_OUT = """
import sys
from importlib.abc import MetaPathFinder

class LeftOut(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{part}.") for part in PARTS):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, LeftOut())
"""


def test_what_is_left_out_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC and the folders that the page names; the emulated device stays, since it stands in for the GPU."""
    text = page("production/edge").text
    (row,) = (line for line in text.splitlines() if line.startswith("| `lowdnn/cli`"))
    parts = [part.replace("/", ".") for part in re.findall(r"`(lowdnn/\w+)`", row)]
    assert {"lowdnn.cli", "lowdnn.capi"} <= set(parts)
    assert all((Path(sys.modules["lowdnn"].__path__[0]) / part.partition(".")[2]).is_dir() for part in parts)
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWDNN_DISK_CACHE", "off")
    case = "pointwise dims=64x64 ops=relu dtype=fp16"
    assert main(["cache", "export", case, "--arch", "sm_87", "-o", "edge.bundle"]) == 0
    blocked = [*parts, "cuda.bindings.nvrtc"]
    command = [sys.executable, "-c", f"PARTS = {blocked}\n{_LEAVES_OUT}\n{program}"]
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

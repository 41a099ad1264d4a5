"""cudnn-frontend's unmodified wheel on lowdnn's libraries and the emulated device, one process for each file of graphs.

The wheel looks for cuDNN and the CUDA runtime once in a process, and keeps what it finds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "graphs"
FILES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(find_spec("cudnn") is None, reason="nvidia-cudnn-frontend is not installed")


@pytest.mark.parametrize("file", FILES)
def test_graphs(file: str, kernel_cache_dir: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    own = {"LOWDNN_DEVICE": "emulated", "LOWDNN_TEST_KERNELS": str(kernel_cache_dir), "PYTHONPATH": path}
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.cudnn_frontend.plugin")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER / f"{file}.py")],
        cwd=ROOT,
        env=kept | own,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The worked examples of the page ``adding``: its code is that of ``adding/``, and runs in a copy of the package.

Nothing is registered in this process: the copy has the example's files at their places and its lines in the registry
and in pygraph, as a tree has to which a contributor adds them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lowdnn.engines.registry import ENGINES
from lowdnn.guide.pages import page

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = Path(__file__).parent / "adding"
_CASES = "tests/cases/cumulative_sum.txt"
#: Lines that the example adds to a file of the tree, by the file: where they go, and the lines.
_EDITS = {
    "lowdnn/engines/registry.py": {
        "from lowdnn.ops.custom_reduction import": "from lowdnn.ops.cumulative_sum import CumulativeSum\n",
        ")\n\n_SINGLE": '    EngineEntry(1000, "cumulative_sum", "cumulative_sum.cumulative_sum.CumulativeSumEngine",'
        " (CumulativeSum,)),\n",
    },
    "lowdnn/frontend/python_graph.py": {
        "from lowdnn.frontend.serialization import": "from lowdnn.frontend.scans import ScanMethods\n",
        "    InspectionMethods,\n": "    ScanMethods,\n",
    },
}
_RUN = ("-m", "lowdnn", "run")
_TEXT = page("adding").text
_BLOCKS = re.findall(r"```\w*\n(.*?)```", _TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of lowdnn to which the example is added."""
    root = tmp_path_factory.mktemp("adding")
    shutil.copytree(ROOT / "lowdnn", root / "lowdnn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "ptx", root / "ptx")
    for place, source in _files().items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / place)
    for place, lines in _EDITS.items():
        text = (root / place).read_text(encoding="utf-8")
        for anchor, added in lines.items():
            assert text.count(anchor) == 1
            text = text.replace(anchor, added + anchor)
        (root / place).write_text(text, encoding="utf-8")
    return root


def test_page_quotes_the_files() -> None:
    """Every file of the example is a block of the page as it is, and every line that it adds elsewhere."""
    blocks = set(_BLOCKS)
    assert [place for place, source in _files().items() if source.read_text(encoding="utf-8") not in blocks] == []
    assert [place for place in _files() if f"`{place}`" not in _TEXT] == []
    for place, lines in _EDITS.items():
        assert f"`{place}`" in _TEXT
        assert "".join(lines.values()) in blocks


def test_index_is_not_taken() -> None:
    assert 1000 not in {entry.index for entry in ENGINES.entries}


def test_cases_run(tree: Path) -> None:
    """Each line of the example's cases gives the reference's values, on integers its bits."""
    lines = [line for line in (_EXAMPLE / Path(_CASES).name).read_text().splitlines() if line and line[0] != "#"]
    for check in ("--check", "--exact"):
        verdicts = [line.split()[0] for line in _run(tree, *_RUN, f"@{_CASES}", check).splitlines()]
        assert verdicts == ["ok"] * len(lines)


def test_missing_barrier_is_found(tree: Path) -> None:
    """The kernel is clean under every schedule; without its second barrier each schedule reports the race."""
    kernel = tree / "lowdnn/engines/cumulative_sum/cumulative_sum.cu"
    source = kernel.read_text(encoding="utf-8")
    case = ("cumulative_sum dims=2x1000 axis=1", "--sanitize", "--schedules", "1")
    verdicts = {line.split()[0] for line in _run(tree, *_RUN, *case).splitlines()}
    assert verdicts == {"clean"}
    before, barrier, after = source.rpartition("__syncthreads();")
    assert barrier
    kernel.write_text(before + after, encoding="utf-8")
    try:
        said = _run(tree, *_RUN, *case, status=1)
    finally:
        kernel.write_text(source, encoding="utf-8")
    assert "clean" not in said
    assert "data-race" in said
    assert "(warp_sums +0)" in said


def test_program_runs(tree: Path) -> None:
    (program,) = (block for block in _BLOCKS if "import lowdnn\n" in block)
    assert _run(tree, "-c", program).splitlines()[-1] == "[1. 3. 6.]"


def test_wrong_axis_is_named(tree: Path) -> None:
    said = _run(tree, *_RUN, "cumulative_sum dims=3x5 axis=2", status=2)
    assert "cumulative_sum.axis: expected axes under the rank 2, got [2]" in said


@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy")
def test_types_are_right(tree: Path) -> None:
    modules = [place.removesuffix(".py").replace("/", ".") for place in _files() if place.endswith(".py")]
    names = (argument for module in modules for argument in ("-m", module.removesuffix(".__init__")))
    _run(tree, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", "types", *names)


def _files() -> dict[str, Path]:
    """The files of the example by their places in the tree."""
    found = [path for path in sorted(_EXAMPLE.rglob("*")) if path.suffix in (".py", ".cu")]
    return {f"lowdnn/{path.relative_to(_EXAMPLE)}": path for path in found} | {_CASES: _EXAMPLE / Path(_CASES).name}


def _run(tree: Path, *arguments: str, status: int = 0) -> str:
    """The output of Python in ``tree``."""
    environment = os.environ | {"PYTHONPATH": str(tree), "LOWDNN_DEVICE": os.environ.get("LOWDNN_DEVICE", "emulated")}
    done = subprocess.run(
        (sys.executable, *arguments), cwd=tree, env=environment, check=False, text=True, capture_output=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    return said

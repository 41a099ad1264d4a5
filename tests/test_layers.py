"""A module imports only its own package and packages of a lower layer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import lowdnn

PACKAGE = Path(lowdnn.__file__).parent

#: Lowest first; a part may import itself and every part before it. Parts of one line may not import each other.
LAYERS = (
    ("one_line",),
    ("status",),
    ("enums", "documents", "forking"),
    ("dtypes", "config", "codec", "tensor_map"),
    ("schema", "events"),
    ("plan",),
    ("arch",),
    ("driver",),
    ("runtime",),
    ("ops",),
    ("graph",),
    ("codegen",),
    ("engines",),
    ("heuristics",),
    ("backend",),
    ("cases",),
    ("bench", "frontend"),
    ("cli",),
    ("__main__",),
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_parts(path: Path) -> set[str]:
    """The parts of lowdnn that a file imports; ``from lowdnn import x`` counts as x."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {parts[1] for name in names if (parts := name.split("."))[0] == "lowdnn" and len(parts) > 1}
    return found - {"__version__"}


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert parts <= set(RANK)


def test_imports_go_down() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports lowdnn.{target}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (part := part_of(path)) != "__init__"
        for target in sorted(imported_parts(path))
        if target != part and RANK[target] >= RANK[part]
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_driver_imports_cuda() -> None:
    allowed = {PACKAGE / "driver" / "cuda.py", PACKAGE / "driver" / "nvrtc.py"}
    wrong = [
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path not in allowed and _imports_cuda(path)
    ]
    assert not wrong, wrong


def test_only_config_reads_the_environment() -> None:
    wrong = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "config.py" and re.search(r"os\.environ|getenv", path.read_text())
    ]
    assert not wrong, wrong


def _imports_cuda(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] == "cuda" for a in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cuda":
            return True
    return False

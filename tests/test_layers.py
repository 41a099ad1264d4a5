"""A module imports only its own part and lower ones: of the library, and of each package that has an inner order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import lowdnn

PACKAGE = Path(lowdnn.__file__).parent


@dataclass(frozen=True)
class Order:
    """The parts of ``package``, lowest first; those of one line may not import each other.

    A part is a module or a package; a module belongs to the part with the longest name that holds it. The line of "*"
    is that of all modules and packages that no line names.
    """

    package: str
    lines: tuple[tuple[str, ...], ...]

    def place(self, module: str) -> tuple[int, str]:
        """(line, part) of a module or of a name in one."""
        inside = f"{module}.".removeprefix(f"{self.package}.")
        found = [(rank, part) for rank, line in enumerate(self.lines) for part in line if inside.startswith(f"{part}.")]
        rest = [(rank, inside.partition(".")[0]) for rank, line in enumerate(self.lines) if "*" in line]
        return max(found or rest, key=lambda place: len(place[1]), default=(-1, ""))

    def wrong(self, imports: Mapping[str, Iterable[str]]) -> list[str]:
        """The imports that do not go down, and modules that no line names. ``imports``: names, by importing module."""
        own = f"{self.package}."
        problems = []
        for module, names in imports.items():
            if not module.startswith(own):
                continue
            rank, part = self.place(module)
            if not part:
                problems.append(f"{module}: no line of the order of {self.package} names it")
            targets = {self.place(name) for name in names if name.startswith(own)}
            higher = sorted(to for to_rank, to in targets if to and to != part and to_rank >= rank)
            problems += [f"{module} imports {own}{to}" for to in higher]
        return problems


LIBRARY = Order(
    "lowdnn",
    (
        ("one_line", "mirrored"),
        ("status",),
        ("enums", "documents", "forking", "checks", "text_files"),
        ("dtypes", "config", "codec", "observer", "tensor_map", "rnn_enums", "subquadratic_enums"),
        ("schema", "events"),
        ("logs",),
        ("plan",),
        ("arch",),
        ("driver",),
        ("runtime",),
        ("ops",),
        ("graph",),
        ("cases",),
        ("codegen",),
        ("engines",),
        ("heuristics",),
        ("backend",),
        ("adv",),
        ("bench", "capi", "frontend"),
        ("distributed", "operations", "torch"),
        ("telemetry",),
        ("guide",),
        ("cli",),
        ("__main__",),
    ),
)

ENGINES = Order(
    "lowdnn.engines",
    (
        # The model of the machine, and what all engines share.
        ("indices", "model", "limits"),
        ("base",),
        ("launch", "relocation"),
        ("engine_set", "plan_parts", "row_moves"),
        ("problem_engine",),
        ("single_operation",),
        # Families whose kernels others launch too, and what those who do so share.
        ("transform", "reduction", "pointwise"),
        ("gemm",),
        ("floor",),
        ("delegation", "rows"),
        # Families, most of which need no other.
        ("*",),
        ("conv.depthwise", "conv.direct", "conv.implicit_gemm", "conv.packed", "conv.wgmma", "moe"),
        ("conv.grouped", "conv.narrow", "conv.stem", "conv.winograd"),
        # Everything together.
        ("composite",),
        ("registry",),
    ),
)

EMULATED = Order(
    "lowdnn.driver.emulated",
    (
        ("faults", "results", "values"),
        ("parsing", "memory.space"),
        ("memory.arena",),
        ("lanes",),
        ("memory",),
        ("copying",),
        ("checking",),
        ("running",),
        ("generating",),
        ("instructions",),
        ("device", "options"),
        ("program",),
        ("reports",),
        ("execution",),
        ("machine",),
        ("graphs", "launching"),
        ("queues",),
        ("moves", "state"),
        ("streams",),
        ("context",),
        ("graph_calls", "host_calls", "peers"),
        ("driver",),
    ),
)


def names_imported(path: Path) -> list[str]:
    """The dotted names that a file imports; ``from lowdnn import x`` gives ``lowdnn.x``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if name != "lowdnn.__version__"]


def module_of(path: Path) -> str:
    parts = ("lowdnn", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("order", [LIBRARY, ENGINES, EMULATED], ids=lambda order: order.package)
def test_imports_go_down(order: Order) -> None:
    wrong = order.wrong({module_of(path): names_imported(path) for path in sorted(PACKAGE.rglob("*.py"))})
    assert not wrong, "\n".join(wrong)


def test_imports_that_do_not_go_down_are_found() -> None:
    order = Order("p", (("low",), ("a", "b", "a.inner"), ("high",)))
    assert order.wrong({"p.a": ["p.low.x", "numpy", "p"], "p.high.m": ["p.a.x", "p.high.n"]}) == []
    assert order.wrong({"p.low": ["p.a.x"]}) == ["p.low imports p.a"]
    assert order.wrong({"p.a.y": ["p.b.x"], "p.b": ["p.b.z"]}) == ["p.a.y imports p.b"]
    assert order.wrong({"p.a.inner.z": ["p.a.x"]}) == ["p.a.inner.z imports p.a"]
    assert Order("p", (("low",), ("*",))).wrong({"p.other": ["p.low"], "p.low": ["p.other"]}) == [
        "p.low imports p.other"
    ]
    assert order.wrong({"p.other": []}) == ["p.other: no line of the order of p names it"]


def test_imports_for_types_count(tmp_path: Path) -> None:
    (tmp_path / "low.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.high.m import X\ndef f():\n    import p.high\n"
    )
    imports = {"p.low": names_imported(tmp_path / "low.py")}
    assert imports == {"p.low": ["typing.TYPE_CHECKING", "p.high.m.X", "p.high"]}
    assert Order("p", (("low",), ("high",))).wrong(imports) == ["p.low imports p.high"]
    assert Order("p", (("high",), ("low",))).wrong(imports) == []


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

"""Two versions of lowdnn in processes of their own: a slower kernel is found, and an equal one is not called slower."""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest

from lowdnn.bench.alternation import HERE, Timer, alternated, root_of
from lowdnn.bench.verdicts import Word
from lowdnn.status import BadParamError, InternalError
from tests.support.errors import raises

PRODUCT, ROWS = "matmul m=64 n=64 k=64", "softmax dims=4x64"
#: The begin of the kernel of the product.
ENTRY = "KERNEL_NAME(const __grid_constant__ Params p) {"


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This lowdnn with a kernel that sleeps for some 5 % of what the product counts."""
    root = tmp_path_factory.mktemp("slower")
    shutil.copytree(HERE / "lowdnn", root / "lowdnn", ignore=shutil.ignore_patterns("__pycache__"))
    with (root / "lowdnn" / "__init__.py").open("a") as module:
        module.write('print("a lowdnn that prints")\n')
    kernel = root / "lowdnn" / "engines" / "matmul" / "matmul_mma.cu"
    kernel.write_text(kernel.read_text().replace(ENTRY, f'{ENTRY} asm volatile("nanosleep.u32 130;");'))
    return root


def test_a_slower_kernel_is_found_and_equal_ones_are_not(slower: Path) -> None:
    batches = [[PRODUCT, ROWS], ["matmul m=4"]]
    product, rows, wrong = alternated(HERE, batches, "emulated", pairs=3, rounds=2, ours=slower)
    assert (product.case, product.word) == (PRODUCT, Word.SLOWER)
    assert (product.low, product.high) == pytest.approx((product.change, product.change))
    assert 0.04 < product.change < 0.06
    assert (rows.case, rows.word) == (ROWS, Word.NONE)
    assert wrong.word is Word.CANNOT_TELL
    assert "after: BAD_PARAM matmul.n" in wrong.why
    (faster,) = alternated(slower, [[PRODUCT]], "emulated", pairs=3, rounds=1)
    assert faster.word is Word.FASTER


def test_a_wheel_is_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "lowdnn-9-py3-none-any.whl"
    with ZipFile(wheel, "w") as file:
        file.writestr("lowdnn/__init__.py", "__version__ = '9'")
    with root_of(wheel) as root:
        assert (root / "lowdnn" / "__init__.py").is_file()
    assert not root.exists()
    with root_of(HERE) as root:
        assert root == HERE


@pytest.mark.parametrize("content", [None, b"no zip", b""])
def test_another_base_is_refused(tmp_path: Path, content: bytes | None) -> None:
    base = tmp_path / "base.whl" if content is not None else tmp_path
    if content is not None:
        base.write_bytes(content)
    expected = "a checkout of lowdnn, a wheel, or a file of saved runs"
    with raises(BadParamError, "bench.compare", expected=expected, got=str(base)), root_of(base):
        pass


def test_a_process_that_ends_is_told(tmp_path: Path) -> None:
    (tmp_path / "lowdnn").mkdir()
    (tmp_path / "lowdnn" / "__init__.py").write_text("raise SystemExit(3)")
    with Timer(tmp_path, "emulated") as timer:
        timer.prepare([ROWS])
        with pytest.raises(InternalError, match="ended with status 3"):
            timer.prepared()

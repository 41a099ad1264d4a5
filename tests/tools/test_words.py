"""The check of words finds each kind of fault at its line, and nothing in sentences that a stranger understands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.checks import words

_MANY = " ".join(["word"] * 41)
_ENOUGH = " ".join(["word"] * 40)


@pytest.mark.parametrize(
    ("place", "text", "fault"),
    [
        ("a.py", '"""Of a stage."""\n', "lowdnn/a.py:1: expected a sentence that begins with its subject, got 'Of'"),
        ("a.py", 'def f():\n    """Bytes. Those of a stage."""\n', "a.py:2: expected a sentence that begins"),
        ("a.py", '"""The record.\n\nrows: their number.  size: of a stage.\n"""\n', "got 'of': of a stage."),
        ("a.py", '"""The record.\n\nsize: of a stage, in bytes.\n"""\n', "got 'of': of a stage, in bytes."),
        (
            "a.py",
            "x = 1  # The same of rows\n",
            "a.py:1: expected a sentence that begins with its subject",
        ),
        (
            "a.py",
            "#: What\n#: a block does.\nx = 1\n",
            "a.py:1: expected a sentence that begins with its",
        ),
        (
            "a.cu",
            "int x;  // That of a warp\n",
            "a.cu:1: expected a sentence that begins with its",
        ),
        ("a.cu", "int keys;  // that exist\n", "a.cu:1: expected a sentence that begins with its subject, got 'that'"),
        ("a.py", '"""The set.\n\nengines: those that run.\n"""\n', "got 'those': those that run."),
        (
            "a.py",
            '"""Those that are set."""\n',
            "a.py:1: expected a sentence that begins with its subject, got 'Those'",
        ),
        (
            "a.py",
            "# As many blocks as fit.\n",
            "a.py:1: expected a sentence that begins with its subject, got 'As many'",
        ),
        (
            "a.py",
            '"""They do even if rows do not."""\n',
            "expected a sentence that begins with its subject, got 'They'",
        ),
        ("a.py", '"""All of them, oldest first."""\n', "begins with its subject, got 'All of them'"),
        ("a.cuh", "// Sums.\n// What it reads.\n", "a.cuh:1: expected a sentence that begins with its subject"),
        ("a.py", f'"""{_MANY}."""\n', "a.py:1: expected at most 40 words in a sentence, got 41"),
        ("a.cu", f"// Short.\n//\n// {_MANY}\n", "a.cu:1: expected at most 40 words in a sentence, got 41"),
        ("README.md", f"# Title\n\n- {_ENOUGH}\n- {_MANY}\n", "README.md:4: expected at most 40 words in a sentence"),
        ("README.md", f"| a | {_MANY} |\n", "README.md:1: expected at most 40 words in a sentence, got 41"),
        ("a.py", "#: Bytes and rows.\nA, B = 1, 2\n", "a.py:2: expected a comment for each constant, got one for A, B"),
        ("a.py", "class A:\n    B = C = 1  # both\n", "a.py:2: expected a comment for each constant, got one for B, C"),
        ("a.cu", "// Sizes.\nconstexpr int A = f(1, 2), B = 3;\n", "a.cu:2: expected a comment for each constant"),
        ("a.cuh", "constexpr u32 A = 1, B = 2;  // barriers\n", "a.cuh:1: expected a comment for each constant"),
    ],
)
def test_fault_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, text: str, fault: str) -> None:
    _write(tmp_path, place, text)
    assert words.main(tmp_path) == 1
    output = capsys.readouterr().out
    assert fault in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("a.py", f'"""{_ENOUGH}; {_ENOUGH}."""\n'),
        ("a.py", '"""Softmax.\n\ny = ' + "x[i] + " * 60 + 'b\n"""\n'),
        ("a.py", f'"""Sums.\n\n    of = 1  # {_MANY}\n\nRows.\n"""\n'),
        ("a.py", '"""What is a tile?"""\n'),
        ("a.py", 'x = "# Of a string, which is no comment"\n'),
        ("a.py", "#: Bytes of a stage.\nA = 1\nB = 2\n\nC, D = 1, 2\n"),
        ("a.py", "# -- events -----\nA, B = 1, 2\n"),
        ("a.cu", 'asm volatile("// Of a string");\n'),
        ("a.py", '"""Rows of a tile. They are neighbours. Such rows are read once. That takes 7 us."""\n'),
        ("a.py", '"""Which lanes wait.\n\nsize: its bytes.\n"""\n'),
        ("a.cu", "// Rows of a tile.\nconstexpr int A = f<1, 2>(3);\n"),
        ("README.md", f"```\nOf {_MANY}\n```\n"),
    ],
)
def test_nothing_is_found_in_plain_sentences(tmp_path: Path, place: str, text: str) -> None:
    _write(tmp_path, place, text)
    assert words.main(tmp_path) == 0


def test_folders_are_chosen(tmp_path: Path) -> None:
    _write(tmp_path, "a.py", "# Of a stage\n")
    assert words.main(tmp_path, ["tests"]) == 0
    assert words.main(tmp_path, ["lowdnn"]) == 1


def _write(root: Path, place: str, text: str) -> None:
    path = root / place if place.endswith(".md") else root / "lowdnn" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

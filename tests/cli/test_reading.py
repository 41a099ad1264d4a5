"""``lowdnn run`` with every kind of wrong input: one line, exit status 2, no traceback and no waiting."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lowdnn.cases import parse_case
from lowdnn.cli.main import main
from lowdnn.cli.reading import Line, ReadCase, check_cases
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError
from tests.support.mutated_cases import Mutations, lines_of

CASES = Path(__file__).parent.parent / "cases"
_MUTATIONS = 3000


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises TimeoutError where the block takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("matmul m=10000000000 n=100000 k=100000", "case.tensors: expected at most"),
        ("matmul m=1000000 n=1000000 k=1", "in 'matmul m=1000000 n=1000000 k=1'"),
        ("transform op=concat dims=3x0x16 parts=9223372036854775807 axis=1", "bytes"),
        ("softmax dims=0x4503599627370496", "bytes, the memory of the host"),
        ("transform op=concat dims=3x4 parts=1,2 axis=9", "transform.axis: expected axes under the rank 2, got [9]"),
        ("transform op=expand dims=13x13 axis=2", "transform.axis: expected axes under the rank 2, got [2]"),
        ("transform op=load dims=34x70 page=4", "transform.dims: expected batch, heads, rows and size"),
        ("block_scale dims=130x300 axis=9", "block_scale.axis: expected axes under the rank 2, got [9]"),
        ("reduction dims=3x4 axes=1,9 op=add", "reduction.axes: expected axes under the rank 2, got [1, 9]"),
        ("softmax dims=3x4 axes=9", "softmax.axes: expected axes under the rank 2"),
        ("norm dims=3x4 mode=layer scale=none dir=bwd axes=9", "norm.axes: expected axes under the rank 2"),
        ("norm dims=3x4 mode=layer axes=9", "norm.axes: expected axes under the rank 2"),
        ("resample n=1 c=1 hw=4x4 mode=max window=1e9999999", "resample.window: expected numbers > 0"),
        ("resample n=1 c=1 hw=4x4 mode=max window=1e99999999999999", "got '1e99999999999999'"),
        ("resample n=1 c=1 hw=4x4 mode=max window=2 pad=1e99999999999999", "resample.pad: expected numbers"),
        ("rope b=1 h=1 s=4 d=8 first=9223372036854775808", "rope.first: expected an integer >= 0"),
        ("rng dims=8 source=device offset=92233720368547758070", "rng.offset: expected an integer >= 0"),
        ("sdpa b=1 h=1 q=4 d=8 dropout=1", "sdpa.dropout: expected a number from 0 to less than 1, got '1'"),
        ("sdpa b=1 h=1 q=4 d=8 dropout=nan", "sdpa.dropout: expected a number from 0"),
        ("norm dims=3x4 mode=layer deviation=inf", "norm.deviation: expected a finite number, got 'inf'"),
        ("matmul m=\u0663 n=1 k=1", "matmul.m: expected an integer >= 0"),
        ("mat\x1b[2Jmul m=1", r"got 'mat\x1b[2Jmul m=1'"),
        ("matmul m\x1b[2J=1", r"matmul.m\x1b[2J: expected key=value"),
        ("", "cases: expected a case in quotes, or @FILE, got ''"),
        ("matmul m=1..8 n=4 k=4", "case: expected a number in the place of each range, got 'matmul m=1..8 n=4 k=4'"),
        ("@/dev/zero", "cases: expected a readable file after @, got '/dev/zero', which is no regular file"),
        ("@/dev/stdin/x", "cases: expected a readable file after @"),
        ("@\x00", "cases: expected a readable file after @"),
        ("@/", "cases: expected a readable file after @, got '/': "),
    ],
)
def test_wrong_cases_are_one_line_and_status_2(case: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--sanitize"]):
        with at_most(20):
            assert main(["run", "pointwise dims=4 ops=relu", case, "--device", "emulated", *options]) == 2
        output = capsys.readouterr()
        assert text in output.err
        assert output.out == ""
        assert output.err.startswith("lowdnn: ")
        assert output.err.removesuffix("\n").isprintable()


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with at_most(20):
        assert main(["run", f"@{tmp_path / 'pipe'}"]) == 2
    assert "pipe', which is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "text"), [(b"\xff\xfe", "can't decode"), (b"x" * ((64 << 20) + 1), "at most")])
def test_files_that_are_no_cases(tmp_path: Path, content: bytes, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cases.txt").write_bytes(content)
    assert main(["run", f"@{tmp_path / 'cases.txt'}"]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "x" * 9000,
        "softmax " + "y" * 9000,
        "softmax dims=" + "9x" * 9000,
        "pointwise dims=9 ops=" + "relu+" * 9000 + "a",
        "transform op=concat dims=3x4 axis=9 parts=" + ",".join("1" * 3000),
    ],
)
def test_long_lines_are_cut(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cases").write_text(text)
    assert main(["run", f"@{tmp_path / 'cases'}", "--device", "emulated"]) == 2
    assert len(capsys.readouterr().err) < 1000


READERS = {
    "run": ("run", "--device", "emulated"),
    "tune": ("tune", "--device", "emulated"),
    "bench": ("bench", "--device", "emulated"),
    "kernels": ("kernels", "--device", "emulated"),
    "export": ("cache", "export", "--arch", "sm_90a", "-o", "OUTPUT"),
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("line", "text"),
    [("softmax dims=4x8 axes=9", "axes under the rank 2"), ("softmax", "softmax.dims: expected a value")],
)
def test_errors_in_a_file_have_its_name_and_line(
    command: str, line: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cases.txt"
    file.write_bytes(f"# a form feed and \u2028 end no line\x0c\r\n5\tsoftmax dims=4x8\r\n{line}\n".encode())
    words = (word.replace("OUTPUT", str(tmp_path / "output")) for word in READERS[command])
    assert main([*words, f"@{file}"]) == 2
    error = capsys.readouterr().err
    assert f"lowdnn: BAD_PARAM {file}:3: " in error
    assert text in error
    assert error.count("\n") == 1


def test_memory_that_runs_out_meanwhile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("lowdnn.cli.run.results", exhausted)
    assert main(["run", "pointwise dims=4 ops=relu", "--device", "emulated"]) == 2
    assert capsys.readouterr().err == "lowdnn: HOST_ALLOCATION_FAILED: the host's memory is not large enough\n"


def test_mutated_cases_raise_documented_errors_only() -> None:
    mutations = Mutations(lines_of(CASES))
    refused = 0
    for seed in range(_MUTATIONS):
        line = mutations.line(seed)
        try:
            with at_most(20):
                error = _error_of(line)
        except BaseException as wrong:
            raise AssertionError(f"seed {seed}: {line[:300]!r}") from wrong
        assert error is None or str(error).isprintable(), (seed, line)
        refused += error is not None
    assert 0.2 < refused / _MUTATIONS < 0.8


def _error_of(line: str) -> LowdnnError | None:
    """The error of a case, if any, in all steps of ``lowdnn run`` before planning, with the data of small cases."""
    try:
        case = parse_case(line)
        assert parse_case(str(case)) == case
        check_cases([ReadCase(case, 1, Line(line))])
        graph = case.graph()
    except (BadParamError, NotSupportedError) as error:
        return error
    assert case.length >= 0
    if sum(tensor.span_bytes for tensor in graph.tensors.values()) < 1 << 18:
        for is_exact in (False, True):
            assert all(isinstance(array, np.ndarray) for array in case.inputs(1, exact=is_exact).values())
    return None

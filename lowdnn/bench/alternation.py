"""Two versions of lowdnn on the same cases, each in a process of its own, timed in turns.

A pair of processes is started anew several times, since what one process measures differs from what the next one does.
Within a pair the rounds go A B, B A, A B, ..., so that neither a drift of the clock nor who comes first counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from zipfile import BadZipFile, ZipFile

import lowdnn
from lowdnn.bench import workbench
from lowdnn.bench.verdicts import Verdict, Word, of_pairs, paired
from lowdnn.config import with_first
from lowdnn.status import BadParamError, InternalError

#: The root of this lowdnn.
HERE = Path(lowdnn.__file__).parents[1]

_SUFFIX = ".whl"
_MOST_WHEEL_BYTES = 1 << 30


class Timer:
    """A process that times cases with the lowdnn below ``root`` (``workbench``)."""

    def __init__(self, root: Path, device: str) -> None:
        self._root = root
        answers, theirs = os.pipe()
        self._answers = os.fdopen(answers, encoding="utf-8")
        # -P: the script's own folder, which is this lowdnn's, must not come first. -W: this process has warned already.
        command = (sys.executable, "-P", "-W", "ignore", workbench.__file__, device, str(theirs))
        try:
            self._process = subprocess.Popen(
                command,
                env=with_first({"PYTHONPATH": str(root)}),
                cwd=root,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # another lowdnn may print what it likes
                pass_fds=(theirs,),
                process_group=0,  # Ctrl-C ends this process, which ends the other one
            )
        finally:
            os.close(theirs)

    def prepare(self, cases: Sequence[str]) -> None:
        """Begins to prepare the cases."""
        self._ask({"prepare": list(cases)})

    def prepared(self) -> list[str]:
        """Waits until the cases are prepared; returns the error of each, or an empty string."""
        return [one["error"] for one in self._answer()["prepared"]]

    def round(self) -> list[float | None]:
        """The microseconds of each case; None for one with an error."""
        self._ask({"round": None})
        times: list[float | None] = self._answer()["us"]
        return times

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()
        self._answers.close()

    def _ask(self, request: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the missing answer tells
            print(json.dumps(request), file=self._process.stdin, flush=True)

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            status = self._process.wait()
            raise InternalError(f"bench: the process with the lowdnn of {self._root} ended with status {status}")
        return json.loads(line)


@contextmanager
def root_of(base: Path) -> Iterator[Path]:
    """The folder that has the package: a checkout itself, or what a wheel holds. Raises BadParamError for others."""
    rule = "a checkout of lowdnn, a wheel, or a file of saved runs"
    with ExitStack() as stack:
        root = base
        if base.suffix == _SUFFIX:
            root = Path(stack.enter_context(TemporaryDirectory(prefix="lowdnn-wheel-")))
            try:
                with ZipFile(base) as wheel:
                    if sum(entry.file_size for entry in wheel.infolist()) > _MOST_WHEEL_BYTES:
                        raise BadParamError.at("bench.compare", expected=rule, got=f"{base}, which is too large")
                    wheel.extractall(root)
            except (OSError, BadZipFile) as error:
                raise BadParamError.at("bench.compare", expected=rule, got=f"{base}: {error}") from None
        if not (root / "lowdnn" / "__init__.py").is_file():
            raise BadParamError.at("bench.compare", expected=rule, got=str(base))
        yield root.resolve()


def alternated(
    base: Path, batches: Sequence[Sequence[str]], device: str, pairs: int, rounds: int, ours: Path = HERE
) -> list[Verdict]:
    """A verdict on each case of all batches: the lowdnn at ``ours`` after that at ``base``, in ``pairs`` of processes.

    Raises InternalError where a process ends before its time.
    """
    found: dict[str, list[tuple[float, float]]] = {case: [] for batch in batches for case in batch}
    errors: dict[str, str] = {}
    for _ in range(pairs):
        with Timer(base, device) as before, Timer(ours, device) as after:
            for batch in batches:
                before.prepare(batch)
                after.prepare(batch)
                for name, timer in (("before", before), ("after", after)):
                    prepared = zip(batch, timer.prepared(), strict=True)
                    errors |= {case: f"{name}: {error}" for case, error in prepared if error}
                for case, samples in zip(batch, _rounds(before, after, rounds), strict=True):
                    if case not in errors:
                        found[case].append(paired(samples))
    return [
        Verdict(case, Word.CANNOT_TELL, why=errors[case]) if case in errors else of_pairs(case, pairs_of_case)
        for case, pairs_of_case in found.items()
    ]


def _rounds(before: Timer, after: Timer, rounds: int) -> list[list[tuple[float, float]]]:
    """For each case its (before, after) in all rounds; one that cannot be timed has none."""
    columns: list[list[tuple[float | None, float | None]]] = []
    for number in range(rounds):
        if number % 2 == 0:
            old, new = before.round(), after.round()
        else:
            new, old = after.round(), before.round()
        columns.append([*zip(old, new, strict=True)])
    return [
        [(one, other) for one, other in samples if one is not None and other is not None]
        for samples in zip(*columns, strict=True)
    ]
